"""Routed experts: every row goes through its own few SwiGLU experts.

Shapes: N rows, C hidden, E experts, K experts a row, P (row, expert) pairs, F expert width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.kernels.dispatch import fused
from redraft.kernels.grouped import LowRank, grouped_linear
from redraft.kernels.int8 import Int8


class Exchange(Protocol):
    """Carries pairs to the processes that hold their experts and back, where the experts lie over several."""

    size: int

    def __call__(self, x_PC: Tensor, counts_E: Tensor, compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """What `compute(rows, ends)` gives for x, in x's order. x is sorted by expert; counts_E are its pairs of each
        expert of all processes; `compute` gets rows sorted by the experts of this process."""
        ...


def routed_experts(
    x_NC: Tensor,
    expert_NK: Tensor,
    weight_NK: Tensor,
    gate_up_EHC: Tensor | LowRank | Int8,
    down_ECF: Tensor | LowRank | Int8,
    exchange: Exchange | None = None,
) -> Tensor:
    """Sum over a row's experts of `weight * down(silu(gate(x)) * up(x))`, [N, C] in x's dtype.

    expert_NK: int64 ids; weight_NK: the router's weights; gate_up_EHC: [E, 2F, C], gate rows first. exchange: where
    this process holds E of `exchange.size * E` experts; ids count over all of them.
    In inference on a CPU the kernel of `redraft.kernels.cpu` does all of it, expert by expert. Else the (row, expert)
    pairs are sorted by expert, so that each expert is one matrix product whatever the routing.
    """
    if exchange is None and not isinstance(gate_up_EHC, LowRank) and not isinstance(down_ECF, LowRank):
        kernel = fused(x_NC, gate_up_EHC, down_ECF)
        if kernel is not None:
            return kernel.routed_experts(x_NC, expert_NK, weight_NK, gate_up_EHC, down_ECF)
    gate_up_EHC = gate_up_EHC.widened(x_NC.dtype) if isinstance(gate_up_EHC, Int8) else gate_up_EHC
    down_ECF = down_ECF.widened(x_NC.dtype) if isinstance(down_ECF, Int8) else down_ECF
    rows, per_row = expert_NK.shape
    order = torch.argsort(expert_NK.flatten(), stable=True)
    experts = gate_up_EHC.shape[0] * (exchange.size if exchange else 1)
    counts = torch.bincount(expert_NK.flatten(), minlength=experts)
    x_PC = x_NC.index_select(0, order // per_row)

    def compute(x: Tensor, ends_E: Tensor) -> Tensor:
        gate, up = grouped_linear(x, gate_up_EHC, ends_E).chunk(2, dim=-1)
        return grouped_linear(F.silu(gate) * up, down_ECF, ends_E)

    out = exchange(x_PC, counts, compute) if exchange else compute(x_PC, counts.cumsum(0).to(torch.int32))
    out = out * weight_NK.flatten().index_select(0, order).unsqueeze(-1).to(x_NC.dtype)
    # Back to (row, expert) order and summed there: a fixed order of summation, whatever the neighbours.
    unsorted = torch.empty_like(order)
    unsorted[order] = torch.arange(order.numel(), device=order.device)
    return out.index_select(0, unsorted).view(rows, per_row, -1).sum(dim=1)


def routed_experts_reference(
    x_NC: Tensor, expert_NK: Tensor, weight_NK: Tensor, gate_up_EHC: Tensor, down_ECF: Tensor
) -> Tensor:
    """The slow path that the fast one is tested against: expert by expert, row by row."""
    out = torch.zeros_like(x_NC)
    for expert in range(gate_up_EHC.shape[0]):
        row, slot = torch.where(expert_NK == expert)
        gate, up = F.linear(x_NC[row], gate_up_EHC[expert]).chunk(2, dim=-1)
        y = F.linear(F.silu(gate) * up, down_ECF[expert]) * weight_NK[row, slot].unsqueeze(-1).to(x_NC.dtype)
        out = out.index_add(0, row, y)
    return out
