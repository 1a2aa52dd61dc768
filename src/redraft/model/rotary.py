"""Rotary position embedding on the first `rotary_dim` channels, in rotate-half form.

Frequencies are computed at every forward, never stored: a buffer could be cast to a lower dtype, or be left as
garbage when a model is materialised from the meta device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from redraft.model.config import ModelConfig
from redraft.model.precision import at_least_float32


def frequencies(config: ModelConfig, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Radians a position of each channel pair, [rotary_dim / 2], highest first."""
    exponent = torch.arange(0, config.rotary_dim, 2, device=device, dtype=dtype) / config.rotary_dim
    return config.rope_theta**-exponent


def rotation(config: ModelConfig, positions_BT: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(cos, sin), each [B, T, 1, rotary_dim] in float32 (float64 for a float64 model)."""
    dtype = at_least_float32(dtype)
    angle = positions_BT.to(dtype).unsqueeze(-1) * frequencies(config, dtype, positions_BT.device)
    angle = torch.cat((angle, angle), dim=-1).unsqueeze(2)
    return angle.cos(), angle.sin()


def rotate(x_BTHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the first `rotary_dim` channels of every head; the others pass."""
    width = cos.shape[-1]
    turned, rest = x_BTHD[..., :width].to(cos.dtype), x_BTHD[..., width:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned.to(x_BTHD.dtype), rest), dim=-1)
