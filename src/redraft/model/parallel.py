"""Expert parallelism: the routed experts of every layer lie over the processes of a group, rows travel to them.

Each process holds a contiguous range of experts. A layer sends every (row, expert) pair to the expert's process by
one all-to-all and gets the results back by another (GShard, arXiv 2006.16668). Routers stay whole on every process.

Shapes: P pairs sent, Q pairs received, C channels, E experts, R processes of the group, L experts of one process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from redraft.errors import ConfigError
from redraft.model.network import Experts, LLaDA2


def share_experts(model: LLaDA2, group: dist.ProcessGroup) -> None:
    """Keeps this process's range of every layer's experts only, and exchanges rows in their forward.

    Every process of the group must then run the same number of forwards and backwards, with any number of rows.
    """
    experts, processes = model.config.num_experts, dist.get_world_size(group)
    if not model.config.num_moe_layers or experts % processes:
        raise ConfigError(f"num_experts ({experts}) must be a multiple of parallel.experts ({processes})")
    held = experts // processes
    first = dist.get_rank(group) * held
    for module in model.modules():
        if isinstance(module, Experts):
            for name, whole in list(module.named_parameters()):
                part = whole.detach()[first : first + held].clone()
                module.register_parameter(name, nn.Parameter(part, whole.requires_grad))
            module.exchange = ExpertExchange(group)


class ExpertExchange:
    """Rows to the processes that hold their experts, and back; see `kernels.moe.Exchange`."""

    def __init__(self, group: dist.ProcessGroup):
        self.group, self.size = group, dist.get_world_size(group)

    def __call__(self, x_PC: Tensor, counts_E: Tensor, compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        sent_RL = counts_E.view(self.size, -1)
        received_RL = torch.empty_like(sent_RL)
        dist.all_to_all_single(received_RL, sent_RL, group=self.group)
        sent, received = sent_RL.sum(dim=1).tolist(), received_RL.sum(dim=1).tolist()
        x_QC = _AllToAll.apply(x_PC, sent, received, self.group)
        # Received by sender, then expert; computed by expert, then sender.
        expert_RL = torch.arange(received_RL.shape[1], device=x_PC.device).expand_as(received_RL)
        order_Q = torch.argsort(expert_RL.flatten().repeat_interleave(received_RL.flatten()), stable=True)
        ends_L = received_RL.sum(dim=0).cumsum(0).to(torch.int32)
        out_QC = compute(x_QC.index_select(0, order_Q), ends_L)
        back_Q = torch.empty_like(order_Q)
        back_Q[order_Q] = torch.arange(order_Q.numel(), device=order_Q.device)
        return _AllToAll.apply(out_QC.index_select(0, back_Q), received, sent, self.group)


class _AllToAll(torch.autograd.Function):
    """Rows split by receiver in, rows by sender out; the gradient travels the same way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchanged(x, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(gradients[0], ctx.received, ctx.sent, ctx.group), None, None, None


def _exchanged(x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
    return out
