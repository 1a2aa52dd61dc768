"""The optimiser over this process's pieces of the parameters, and the router's balance."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from redraft.errors import NumericalError
from redraft.model.network import LLaDA2
from redraft.model.router import routers
from redraft.training.muon import Muon
from redraft.training.parallel import Distributed, Ranks
from redraft.training.pieces import Piece
from redraft.training.recipe import OptimizerConfig


class Optimizer:
    """AdamW, or Muon for the matrices inside the layers and AdamW for the rest, as one object with one state.

    Both work on plain local tensors, this process's rows of each parameter that is trained. dtype: of Muon's products,
    None for the weights' own.
    """

    def __init__(self, distributed: Distributed, config: OptimizerConfig, dtype: torch.dtype | None = None):
        self.distributed, self.config = distributed, config
        self.trained = {name: p for name, p in distributed.model.named_parameters() if p.requires_grad}
        self.held = {name: _local(parameter) for name, parameter in self.trained.items()}
        hidden = {
            name
            for name, p in self.trained.items()
            if p.ndim >= 2 and name.startswith("layers.") and ".gate.weight" not in name and config.kind == "muon"
        }
        rest = [(name, p) for name, p in self.held.items() if name not in hidden]
        groups = [
            {"params": [(n, p) for n, p in rest if p.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [(n, p) for n, p in rest if p.ndim < 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]  # adapters are all matrices
        betas = (config.beta1, config.beta2)
        self.parts: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=config.rate, betas=betas, foreach=True)]
        if hidden:
            pieces = {self.held[name]: distributed.pieces[name] for name in hidden}
            matrices = [(name, p) for name, p in self.held.items() if name in hidden]
            decay = config.weight_decay
            self.parts.append(
                Muon(matrices, pieces, distributed.ranks, lr=config.muon_rate, weight_decay=decay, dtype=dtype)
            )
        self.rates = [config.rate, config.muon_rate][: len(self.parts)]

    def step(self, factor: float) -> float:
        """Sums the gradients over the processes, clips, steps at `factor` times the peak rate and clears them; returns
        the norm of the whole gradient. Raises NumericalError before the step if that is not finite."""
        self.distributed.settle()
        self.distributed.sum_gradients()
        for name, parameter in self.trained.items():
            gradient = parameter.grad
            self.held[name].grad = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        norm = self._norm()
        if not torch.isfinite(norm):
            raise NumericalError(
                "the gradient is not finite; the step was not taken and the last checkpoint is untouched"
            )
        nn.utils.clip_grads_with_norm_(self.held.values(), self.config.clip, norm)
        for part, rate in zip(self.parts, self.rates, strict=True):
            for group in part.param_groups:
                group["lr"] = rate * factor
            part.step()
            part.zero_grad(set_to_none=True)
        for parameter in self.trained.values():
            parameter.grad = None
        return float(norm)

    def _norm(self) -> Tensor:
        """The 2-norm of the gradient over all processes, rows that several hold counted once."""
        owned = [
            parameter.grad
            for name, parameter in self.held.items()
            if parameter.grad is not None and self.distributed.pieces[name].owner
        ]
        # A process that owns nothing must round as the others do: its zero has the parameters' dtype.
        norm = nn.utils.get_total_norm(owned) if owned else next(iter(self.held.values())).new_zeros(()).detach()
        if self.distributed.ranks.world == 1:
            return norm
        squares = self.distributed.ranks.sums({"squares": float(norm) ** 2})["squares"]
        return torch.tensor(squares**0.5, device=norm.device, dtype=norm.dtype)

    def state(self) -> dict[str, Tensor]:
        """The optimiser's local tensors by "name/entry"; an entry of a parameter's shape is cut as that one is."""
        out = {}
        for part in self.parts:
            for group in part.param_groups:
                for name, parameter in zip(group["param_names"], group["params"], strict=True):
                    for entry, value in part.state.get(parameter, {}).items():
                        out[f"{name}/{entry}"] = value
        return out

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Takes local tensors by the names of `state`."""
        entries: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            name, _, entry = key.rpartition("/")
            entries.setdefault(name, {})[entry] = value
        for part in self.parts:
            for group in part.param_groups:
                for name, parameter in zip(group["param_names"], group["params"], strict=True):
                    if name in entries:
                        part.state[parameter] = entries[name]

    def piece(self, name: str) -> Piece:
        """How the parameter behind an entry of `state` lies over the processes."""
        return self.distributed.pieces[name.rpartition("/")[0]]


def _local(parameter: nn.Parameter) -> nn.Parameter:
    """A parameter, or the rows of a cut one that this process holds: the same memory."""
    data = parameter.detach()
    return nn.Parameter(data.to_local()) if isinstance(data, DTensor) else parameter


@torch.no_grad()
def balance(model: LLaDA2, rate: float, ranks: Ranks) -> float:
    """Auxiliary-loss-free balancing: `expert_bias += rate · sign(mean load - load)`, loads of the last step summed over
    the processes. Clears the loads; returns the largest expert's load over the mean, over all layers."""
    ranks.sum_tensors([router.load for router in routers(model)])
    worst = 1.0
    for router in routers(model):
        mean = router.load.mean()
        if mean > 0:
            worst = max(worst, float(router.load.max() / mean))
            router.expert_bias += rate * torch.sign(mean - router.load)
        router.load.zero_()
    return worst
