"""Grouped matrix products: rows sorted by group, one weight matrix a group.

Shapes: N rows, G groups, I inputs, O outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_NATIVE = (torch.float32, torch.bfloat16, torch.float16)


def grouped_linear(x_NI: Tensor, weight_GOI: Tensor, ends_G: Tensor) -> Tensor:
    """`x @ weight[g].T` for the rows of each group; differentiable in both.

    ends_G: int32, the exclusive end of each group's rows; the last is N. Uses torch's grouped GEMM, and a
    loop over the groups that have rows where torch has none (float64).
    """
    if x_NI.dtype in _NATIVE:
        return F.grouped_mm(x_NI, weight_GOI.transpose(1, 2), offs=ends_G)
    return grouped_linear_reference(x_NI, weight_GOI, ends_G)


def grouped_linear_reference(x_NI: Tensor, weight_GOI: Tensor, ends_G: Tensor) -> Tensor:
    """The slow path that the fast one is tested against."""
    out, start = [], 0
    for group, end in enumerate(ends_G.tolist()):
        if end > start:
            out.append(F.linear(x_NI[start:end], weight_GOI[group]))
        start = end
    return torch.cat(out) if out else x_NI.new_empty((0, weight_GOI.shape[1]))
