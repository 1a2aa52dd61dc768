"""Grouped matrix products: rows sorted by group, one weight matrix a group.

Shapes: N rows, G groups, I inputs, O outputs, R rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

_NATIVE = (torch.float32, torch.bfloat16, torch.float16)
_ALIGNED = 16  # bytes that torch's grouped GEMM wants a row to be a multiple of


@dataclass(frozen=True, slots=True)
class LowRank:
    """A stack of matrices with an update of low rank, `weight[g] + scale · b[g] @ a[g]`, whose sum is never formed.

    weight_GOI: [G, O, I]; a_GRI: [G, R, I]; b_GOR: [G, O, R], cast to the weight's dtype where it is used.
    """

    weight_GOI: Tensor
    a_GRI: Tensor
    b_GOR: Tensor
    scale: float

    @property
    def shape(self) -> torch.Size:
        return self.weight_GOI.shape

    def linear(self, x_NI: Tensor, ends_G: Tensor) -> Tensor:
        """`x @ (weight[g] + scale · b[g] @ a[g]).T` for the rows of each group, [N, O]."""
        spare = -self.a_GRI.shape[1] % (_ALIGNED // x_NI.dtype.itemsize)
        a_GRI = F.pad(self.a_GRI.to(x_NI.dtype), (0, 0, 0, spare))
        b_GOR = F.pad(self.b_GOR.to(x_NI.dtype), (0, spare)).contiguous()
        low_NO = grouped_linear(grouped_linear(x_NI, a_GRI, ends_G), b_GOR, ends_G)
        return grouped_linear(x_NI, self.weight_GOI, ends_G) + self.scale * low_NO


def grouped_linear(x_NI: Tensor, weight_GOI: Tensor | LowRank, ends_G: Tensor) -> Tensor:
    """`x @ weight[g].T` for the rows of each group; differentiable in both.

    ends_G: int32, the exclusive end of each group's rows; the last is N. Uses torch's grouped GEMM, and a
    loop over the groups that have rows where torch has none (float64, rows that aren't whole multiples of 16 bytes).
    """
    if isinstance(weight_GOI, LowRank):
        return weight_GOI.linear(x_NI, ends_G)
    if not len(x_NI):  # still a part of the graph: its gradients are zeros, not missing
        return F.linear(x_NI, weight_GOI[0])
    if x_NI.dtype in _NATIVE and all(width * x_NI.itemsize % _ALIGNED == 0 for width in weight_GOI.shape[1:]):
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
