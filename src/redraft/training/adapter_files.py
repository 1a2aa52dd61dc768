"""Adapters as folders in PEFT's own format: `adapter_config.json` and `adapter_model.safetensors`.

`PeftModel.from_pretrained(model, folder)` of PEFT reads them onto the transformers class of this project.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from redraft.errors import CheckpointError, ConfigError
from redraft.model.network import LLaDA2
from redraft.model.storage import write_json, write_shards
from redraft.training.lora import inject, load_lora_state, lora_state

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# PEFT's own prefix, then that of the network inside the transformers class.
_PREFIX = "base_model.model.model."
# What an adapter's configuration may ask for: the file is foreign, and PEFT can do more than adapters on our network.
_READ = {"r", "lora_alpha", "lora_dropout", "use_rslora", "rank_pattern", "alpha_pattern"}
_READ |= {"target_modules", "target_parameters", "modules_to_save"}


def save_adapter(model: LLaDA2, folder: str | os.PathLike[str], *, base: str = "") -> Path:
    """Writes the adapters of an adapted network; files are written aside and renamed. Returns the folder.

    base: the checkpoint that the adapters belong to, as a path or hub name, noted for the reader.
    """
    folder = Path(folder)
    tensors = {_PREFIX + name: tensor.to("cpu") for name, tensor in lora_state(model).items()}
    sizes = {name: tensor.numel() * tensor.itemsize for name, tensor in tensors.items()}
    config: Any = model.peft_config
    content = {k: sorted(v) if isinstance(v, set) else v for k, v in config["default"].to_dict().items()}
    content |= {"base_model_name_or_path": base or None, "inference_mode": True}
    folder.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".saving-", dir=folder))
    try:
        (written,) = write_shards(aside, sizes, tensors.__getitem__, sys.maxsize)
        write_json(aside / CONFIG, content)
        os.replace(aside / written, folder / WEIGHTS)
        os.replace(aside / CONFIG, folder / CONFIG)
    except SafetensorError as error:
        raise CheckpointError(f"{folder} could not be written: {error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def load_adapter(model: LLaDA2, folder: str | os.PathLike[str]) -> LLaDA2:
    """Puts the adapters of a folder into a plain network, in place. Raises CheckpointError if they do not fit."""
    from peft import LoraConfig as PeftConfig

    folder = Path(folder)
    try:
        content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(folder / WEIGHTS)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, SafetensorError) as error:
        raise CheckpointError(f"{folder} is not a readable adapter folder: {' '.join(str(error).split())}") from None
    kind = content.get("peft_type") if isinstance(content, dict) else None
    if kind != "LORA":
        raise CheckpointError(f'{folder / CONFIG}: peft_type must be "LORA", got {kind!r}')
    try:
        inject(model, PeftConfig(**{name: value for name, value in content.items() if name in _READ}))
        load_lora_state(model, {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()})
    except (CheckpointError, ConfigError, TypeError) as error:
        raise CheckpointError(f"{folder}: {' '.join(str(error).split())}") from None
    return model
