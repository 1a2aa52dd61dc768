"""A checkpoint folder, made ready to generate: network, tokenizer, control ids. Ids never come from code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from redraft.engine.defaults import generation_config
from redraft.engine.generate import ControlIds
from redraft.errors import ConfigError, InvalidInput
from redraft.model import checkpoint
from redraft.model.config import ModelConfig
from redraft.model.folder import checkpoint_folder
from redraft.model.network import LLaDA2
from redraft.text.tokenizer import Tokenizer


def load(
    path: str | Path | None, device: str | torch.device | None, dtype: str | torch.dtype | None
) -> tuple[LLaDA2, Tokenizer | None, ControlIds]:
    """The network in evaluation mode, the tokenizer if there is one, and the control ids.

    path: None for the model inside the package. device, dtype: see `resolve_device` and `resolve_dtype`. RedraftError
    for a checkpoint or a setting that can't be had.
    """
    place = resolve_device(device)
    precision = resolve_dtype(dtype, place)
    folder = checkpoint_folder(path)
    generation = generation_config(folder)
    tokenizer = Tokenizer.load(folder) if (folder / "tokenizer.json").exists() else None
    model = checkpoint.load_model(folder, device=place, dtype=precision).eval()
    return model, tokenizer, control_ids(model.config, generation, tokenizer)


def control_ids(config: ModelConfig, generation: dict[str, Any] | None = None, tokenizer: Any = None) -> ControlIds:
    """Mask and EOS ids from the configuration, else the generation config, else the tokenizer."""
    generation = generation or {}
    mask = config.mask_token_id
    if mask is None:
        mask = generation.get("mask_token_id", getattr(tokenizer, "mask_id", None))
    if mask is None:
        raise ConfigError("mask_token_id is missing; config.json, generation_config.json or the tokenizer must name it")
    stated = generation.get("eos_token_id")
    listed = [] if stated is None else stated if isinstance(stated, list) else [stated]
    eos = {*config.eos_ids, *listed} or set(getattr(tokenizer, "eos_ids", ()))
    for name, value in [("mask_token_id", mask), *(("eos_token_id", value) for value in eos)]:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < config.vocab_size:
            raise ConfigError(f"{name} must be an id below vocab_size ({config.vocab_size}), got {value!r}")
    return ControlIds(mask, frozenset(eos))


def resolve_device(device: str | torch.device | None) -> torch.device:
    """None: the GPU where there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError):
        raise InvalidInput(f'device must name a torch device such as "cpu" or "cuda", got {device!r}') from None
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise InvalidInput(f'device {str(device)!r} is not available here; use "cpu"')
    return resolved


def resolve_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """None: float32 on the CPU, where lower precision is rarely faster, and bfloat16 elsewhere."""
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return checkpoint.resolve_dtype(dtype)
