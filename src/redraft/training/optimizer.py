"""Optimisers and the router's balance."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from redraft.errors import NumericalError
from redraft.model.network import LLaDA2
from redraft.model.router import Router
from redraft.training.parallel import Ranks
from redraft.training.recipe import OptimizerConfig


class Optimizer:
    """AdamW, or Muon for the matrices inside the layers and AdamW for the rest, as one object with one state."""

    def __init__(self, model: LLaDA2, config: OptimizerConfig, ranks: Ranks):
        self.model, self.config = model, config
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        hidden = {
            name for name, p in named if p.ndim >= 2 and name.startswith("layers.") and ".gate.weight" not in name
        }
        matrices = [(n, p) for n, p in named if n in hidden] if config.kind == "muon" else []
        rest = [(n, p) for n, p in named if config.kind != "muon" or n not in hidden]
        groups = [
            {"params": [(n, p) for n, p in rest if p.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [(n, p) for n, p in rest if p.ndim < 2], "weight_decay": 0.0},
        ]
        betas = (config.beta1, config.beta2)
        self.parts: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=config.rate, betas=betas, foreach=True)]
        if matrices:
            self.parts.append(Muon(matrices, ranks, lr=config.muon_rate, weight_decay=config.weight_decay))
        self.rates = [config.rate, config.muon_rate][: len(self.parts)]

    def step(self, factor: float) -> float:
        """Clips, steps at `factor` times the peak rate, clears the gradients; returns the gradient's norm."""
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip, error_if_nonfinite=False)
        if not torch.isfinite(norm):
            raise NumericalError(
                "the gradient is not finite; the step was not taken and the last checkpoint is untouched"
            )
        for part, rate in zip(self.parts, self.rates, strict=True):
            for group in part.param_groups:
                group["lr"] = rate * factor
            part.step()
            part.zero_grad(set_to_none=True)
        return float(norm)

    def state(self) -> dict[str, Tensor]:
        """The optimiser's tensors by "name/entry"."""
        out = {}
        for part in self.parts:
            for group in part.param_groups:
                for name, parameter in zip(group["param_names"], group["params"], strict=True):
                    for entry, value in part.state.get(parameter, {}).items():
                        out[f"{name}/{entry}"] = value
        return out

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        for part in self.parts:
            for group in part.param_groups:
                for name, parameter in zip(group["param_names"], group["params"], strict=True):
                    prefix = name + "/"
                    entries = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
                    if entries:
                        part.state[parameter] = entries


class Muon(torch.optim.Optimizer):
    """Momentum orthogonalised by Newton-Schulz iterations (Jordan et al. 2024), for matrices and stacks of them.

    torch.optim.Muon takes single matrices only, and packed experts are a stack [E, out, in] in which each expert is a
    matrix of its own. An update has a root-mean-square of about 0.2 · lr, AdamW's size (Moonlight, arXiv 2502.16982,
    equation 4). Each process orthogonalises its share of the parameters.
    """

    def __init__(self, params, ranks: Ranks, lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.ranks = ranks

    @torch.no_grad()
    def step(self, closure=None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = sorted((p for p in group["params"] if p.grad is not None), key=Tensor.numel, reverse=True)
            updates = []
            for i, parameter in enumerate(parameters):
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                momentum = state["momentum"].mul_(group["momentum"]).add_(parameter.grad)
                mine = i % self.ranks.world == self.ranks.rank
                update = parameter.grad + group["momentum"] * momentum
                updates.append(orthogonalised(update) if mine else torch.zeros_like(update))
            self.ranks.sum_tensors(updates)
            for parameter, update in zip(parameters, updates, strict=True):
                size = 0.2 * max(parameter.shape[-2:]) ** 0.5
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * size)


def orthogonalised(x: Tensor, iterations: int = 5) -> Tensor:
    """The nearest semi-orthogonal matrix to each matrix of [..., out, in], roughly, by a quintic iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = x.mT if x.shape[-2] > x.shape[-1] else x
    wide = wide / (wide.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = wide @ wide.mT
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide.mT if x.shape[-2] > x.shape[-1] else wide


def routers(model: LLaDA2) -> list[Router]:
    return [module for module in model.modules() if isinstance(module, Router)]


@torch.no_grad()
def balance(model: LLaDA2, rate: float) -> float:
    """Auxiliary-loss-free balancing: `expert_bias += rate · sign(mean load - load)`, loads of the last step. Clears
    the loads; returns the largest expert's load over the mean, over all layers."""
    worst = 1.0
    for router in routers(model):
        mean = router.load.mean()
        if mean > 0:
            worst = max(worst, float(router.load.max() / mean))
            router.expert_bias += rate * torch.sign(mean - router.load)
        router.load.zero_()
    return worst
