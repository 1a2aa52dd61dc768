"""The finished model as a Hugging Face folder that this project, and any other reader of the layout, loads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from redraft.model.checkpoint import save_model
from redraft.model.network import LLaDA2
from redraft.training.tensors import merged


def export(
    model: LLaDA2,
    tokenizer: Path,
    folder: Path,
    dtype: torch.dtype = torch.bfloat16,
    state: Mapping[str, Tensor] | None = None,
) -> Path:
    """Writes weights (in `dtype`; the router's stay in float32), config, generation config and tokenizer files.

    Adapters are merged into the weights, before these are rounded; `model` itself keeps them. state: the tensors of
    `model` by the names of its `state_dict`, instead of its own: it may then be on the meta device. They are asked for
    one by one, so that no more than a file of the export and a module with adapters, or a tensor, is in memory.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plain = LLaDA2(model.config, device="meta", dtype=dtype)
    plain.file_dtypes = model.file_dtypes
    save_model(plain, folder, state=merged(model, model.state_dict() if state is None else state))
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
