"""Linear layers without bias, and SwiGLU, in inference by the CPU kernel where it applies.

Shapes: C inputs, O outputs, F width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from redraft.kernels.cpu.library import TYPES
from redraft.kernels.dispatch import fused
from redraft.kernels.int8 import Int8, plain


def linear(x: Tensor, weight_OC: Tensor | Int8, dtype: torch.dtype | None = None) -> Tensor:
    """x [..., C] times the transposed weight, [..., O]; differentiable. dtype: of the result, x's if None.

    By the CPU kernel a row's result depends on that row alone, bit for bit, and is rounded to `dtype` only.
    """
    kernel = fused(x, weight_OC) if dtype is None or dtype in TYPES else None
    if kernel is None:
        out = F.linear(x, plain(weight_OC, x.dtype))
        return out if dtype is None else out.to(dtype)
    return kernel.linear(x.reshape(-1, x.shape[-1]), weight_OC, dtype).view(*x.shape[:-1], weight_OC.shape[0])


def swiglu(x: Tensor, gate_FC: Tensor | Int8, up_FC: Tensor | Int8, down_OF: Tensor | Int8) -> Tensor:
    """down(silu(gate(x)) * up(x)), [..., O] in x's dtype; differentiable. By the CPU kernel the width F is never
    rounded to bfloat16 before silu."""
    kernel = fused(x, gate_FC, up_FC, down_OF)
    if kernel is None:
        gate, up, down = (plain(weight, x.dtype) for weight in (gate_FC, up_FC, down_OF))
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)
    return kernel.swiglu(x.reshape(-1, x.shape[-1]), gate_FC, up_FC, down_OF).view(*x.shape[:-1], down_OF.shape[0])


class Linear(nn.Linear):
    """torch's, by `linear`; without bias."""

    def __init__(self, inputs: int, outputs: int, device=None, dtype=None):
        super().__init__(inputs, outputs, bias=False, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight)
