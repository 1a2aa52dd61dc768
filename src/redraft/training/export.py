"""The finished model as a Hugging Face folder that this project, and any other reader of the layout, loads."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import torch

from redraft.model.checkpoint import save_model
from redraft.model.network import LLaDA2
from redraft.training.lora import merge_lora


def export(model: LLaDA2, tokenizer: Path, folder: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Writes weights (in `dtype`; the router's stay in float32), config, generation config and tokenizer files.

    Adapters are merged into the weights, before these are rounded; `model` itself keeps them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_model(merge_lora(copy.deepcopy(model)).to(dtype), folder)
    for file in tokenizer.iterdir():
        shutil.copy(file, folder / file.name)
    config = model.config
    generation = {
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
        "mask_token_id": config.mask_token_id,
        "block_length": config.block_length,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
    return folder
