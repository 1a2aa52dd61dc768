"""Muon: momentum orthogonalised by Newton-Schulz iterations (Jordan et al. 2024), for matrices and stacks of them.

torch.optim.Muon takes single matrices only, and packed experts are a stack [E, out, in] in which each expert is a
matrix of its own. An update has a root-mean-square of about 0.2 · lr, AdamW's size (Moonlight, arXiv 2502.16982,
equation 4).

Over several processes the work is shared out. Of a parameter that several hold whole, one process computes the update
and the others get it. A stack cut between its matrices needs nothing. A matrix cut by rows is put together on one
process: all of them travel there in one all-to-all, and the updates back in another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from redraft.training.parallel import Ranks
from redraft.training.pieces import Piece


class Muon(torch.optim.Optimizer):
    """named: this process's rows of each parameter, by name. pieces: how they lie over the processes. dtype: that the
    iterations multiply in, None for the parameters' own; bfloat16 is enough for them (Jordan et al.)."""

    def __init__(
        self,
        named: list[tuple[str, nn.Parameter]],
        pieces: Mapping[nn.Parameter, Piece],
        ranks: Ranks,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(named, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.pieces, self.ranks, self.dtype = pieces, ranks, dtype

    @torch.no_grad()
    def step(self, closure=None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            found = [p for p in group["params"] if p.grad is not None]
            # The same order on every process, the largest first, so that turns share the work evenly.
            parameters = sorted(found, key=lambda p: math.prod(self.pieces[p].shape), reverse=True)
            momenta = [self._momentum(p, group["momentum"]) for p in parameters]
            for parameter, update in zip(parameters, self._updates(parameters, momenta), strict=True):
                size = 0.2 * max(self.pieces[parameter].shape[-2:]) ** 0.5
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * size)

    def _momentum(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        if parameter.grad is None:
            return state["momentum"]
        state["momentum"].mul_(momentum).add_(parameter.grad)
        return parameter.grad + momentum * state["momentum"]

    def _updates(self, parameters: list[nn.Parameter], momenta: list[Tensor]) -> list[Tensor]:
        """The orthogonalised momentum of each parameter, its rows of this process."""
        out: dict[int, Tensor] = {}
        copied: dict[dist.ProcessGroup | None, list[int]] = {}
        cut = []
        for i, parameter in enumerate(parameters):
            piece = self.pieces[parameter]
            if piece.ranges > 1 and parameter.ndim == 2:
                cut.append(i)
            elif piece.copies > 1:
                copied.setdefault(piece.copy_group, []).append(i)
            else:
                out[i] = self._orthogonalised(momenta[i])
        for group, indices in copied.items():
            me, size = dist.get_rank(group), dist.get_world_size(group)
            for turn, i in enumerate(indices):
                out[i] = self._orthogonalised(momenta[i]) if turn % size == me else torch.zeros_like(momenta[i])
            self.ranks.sum_tensors([out[i] for i in indices], group)
        if cut:
            pieces = [self.pieces[parameters[i]] for i in cut]
            out |= dict(zip(cut, self._put_together([momenta[i] for i in cut], pieces), strict=True))
        return [out[i] for i in range(len(parameters))]

    def _put_together(self, rows: list[Tensor], pieces: list[Piece]) -> list[Tensor]:
        """The updates of matrices cut by rows over all processes; process i mod all computes matrix i."""
        world, me = self.ranks.world, self.ranks.rank
        mine = [i for i in range(len(rows)) if i % world == me]

        def sizes(indices: list[int], rank: int) -> list[int]:
            spans = (pieces[i].span(rank) for i in indices)
            return [(end - start) * pieces[i].shape[1] for i, (start, end) in zip(indices, spans, strict=True)]

        out_order = [[i for i in range(len(rows)) if i % world == rank] for rank in range(world)]
        flat = torch.cat([rows[i].flatten() for indices in out_order for i in indices])
        there = [sum(sizes(indices, me)) for indices in out_order]
        here = [sum(sizes(mine, rank)) for rank in range(world)]
        received = flat.new_empty(sum(here))
        dist.all_to_all_single(received, flat, here, there)
        parts = [part.split(sizes(mine, rank)) for rank, part in enumerate(received.split(here))]
        whole = [
            self._orthogonalised(torch.cat([part[k] for part in parts]).view(pieces[i].shape))
            for k, i in enumerate(mine)
        ]
        back = [
            update[slice(*pieces[i].span(rank))].flatten()
            for rank in range(world)
            for i, update in zip(mine, whole, strict=True)
        ]
        dist.all_to_all_single(flat, torch.cat(back) if back else received, there, here)
        split = iter(flat.split([size for indices in out_order for size in sizes(indices, me)]))
        updates = {i: next(split).view_as(rows[i]) for indices in out_order for i in indices}
        return [updates[i] for i in range(len(rows))]

    def _orthogonalised(self, x: Tensor) -> Tensor:
        return orthogonalised(x.to(self.dtype or x.dtype)).to(x.dtype)


def orthogonalised(x: Tensor, iterations: int = 5) -> Tensor:
    """The nearest semi-orthogonal matrix to each matrix of [..., out, in], roughly, by a quintic iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = x.mT if x.shape[-2] > x.shape[-1] else x
    wide = wide / (wide.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = wide @ wide.mT
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide.mT if x.shape[-2] > x.shape[-1] else wide
