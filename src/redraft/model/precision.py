"""Which dtype the sensitive parts compute in: float32, or float64 when the model is float64."""

from __future__ import annotations

import torch


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for everything else."""
    return torch.float64 if dtype == torch.float64 else torch.float32
