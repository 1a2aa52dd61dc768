"""The dtype that a run computes in; its weights, gradients and optimiser stay in float32."""

from __future__ import annotations

import contextlib

import torch


def compute_dtype(setting: str, device: str) -> torch.dtype | None:
    """bfloat16 where `run.precision` asks for it, or at "auto" where the processor has instructions for it (elsewhere
    it is several times slower than float32); None for the weights' own."""
    if setting == "float32" or (setting == "auto" and device == "cpu" and not _multiplies_bfloat16()):
        return None
    return torch.bfloat16


def autocast(dtype: torch.dtype | None, device: str) -> contextlib.AbstractContextManager:
    """Matrix products in `dtype` inside."""
    return contextlib.nullcontext() if dtype is None else torch.autocast(device, dtype=dtype)


def _multiplies_bfloat16() -> bool:
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
