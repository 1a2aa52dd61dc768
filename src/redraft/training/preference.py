"""Direct preference optimisation (DPO, Rafailov et al. 2023, arXiv 2305.18290) on the block-diffusion bound.

For a pair of answers x_w (chosen) and x_l (rejected) the loss is -log σ(β [ΔB(x_w) - ΔB(x_l)]), ΔB the bound of
`training.likelihood` under the policy minus that under the reference: the network that training starts from. Both
bounds are taken with the same masks, so that most of the noise of drawing them cancels, and each mask has a level of
its own (LLaDA 1.5, Zhu et al. 2025, arXiv 2505.19223; LLaDA2.0 report).

Shapes: P pairs; their two sides lie side by side as documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional as F

from redraft.errors import ConfigError
from redraft.model.network import LLaDA2
from redraft.training.layout import Layout, lay_out
from redraft.training.likelihood import document_elbo, elbo_masks
from redraft.training.noise import Noisy
from redraft.types import Pair

if TYPE_CHECKING:
    from redraft.training.objective import Draws


@dataclass(frozen=True, kw_only=True)
class PreferenceConfig:
    """beta: how closely the policy is held to the reference. chosen_weight: of the negated bound of the chosen answers
    per token beside the preference loss, which keeps their likelihood from falling with that of the rejected ones (RPO,
    Pang et al. 2024, arXiv 2404.19733); 0 is plain DPO."""

    beta: float = 0.1
    chosen_weight: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.beta < float("inf"):
            raise ConfigError(f"objective.preference.beta must be a number above 0, got {self.beta}")
        if not 0 <= self.chosen_weight < float("inf"):
            raise ConfigError(
                f"objective.preference.chosen_weight must be a number of at least 0, got {self.chosen_weight}"
            )


@dataclass(frozen=True)
class PreparedPairs:
    """Laid-out pairs, their masks, and the bounds [P, 2] (chosen, rejected) of the reference, in nats."""

    layout: Layout
    noisy: Noisy
    reference_P2: Tensor
    counts: dict[str, float]

    @property
    def positions(self) -> int:
        return self.layout.positions


@dataclass(frozen=True)
class PreferenceObjective:
    """DPO as an `Objective`. copies: masks of each block, the Monte Carlo samples of a bound. fill: as in `lay_out`.
    reference: frozen, laid over the processes as the trained network is; None takes that itself with its adapters
    (LoRA) switched off."""

    config: PreferenceConfig
    copies: int
    fill: int
    reference: LLaDA2 | None

    def prepare(self, model: LLaDA2, documents: Sequence[Pair], draws: Draws) -> PreparedPairs:
        sides = [side for pair in documents for side in (pair.chosen, pair.rejected)]
        layout = lay_out(sides, draws.block_length, draws.eos_ids, copies=self.copies, fill=self.fill)
        noisy = elbo_masks(layout, seed=draws.seed, step=draws.step, mask_id=draws.mask_id)
        layout, noisy = layout.to(model.device), noisy.to(model.device)
        with torch.no_grad(), self._reference_of(model) as reference:
            reference_P2 = document_elbo(reference, layout, noisy).unflatten(0, (-1, 2))
        counts = {
            "pairs": float(len(documents)),
            "chosen": float(sum(int(pair.chosen.supervised.sum()) for pair in documents)),
        }
        return PreparedPairs(layout, noisy, reference_P2, counts)

    def loss(self, model: LLaDA2, prepared: PreparedPairs, counts: dict[str, float]) -> tuple[Tensor, dict[str, float]]:
        elbo_P2 = document_elbo(model, prepared.layout, prepared.noisy).unflatten(0, (-1, 2))
        reward_P2 = self.config.beta * (elbo_P2 - prepared.reference_P2)
        margin_P = reward_P2[:, 0] - reward_P2[:, 1]
        preference, chosen = -F.logsigmoid(margin_P).sum(), -elbo_P2[:, 0].sum()
        loss = preference / counts["pairs"] + self.config.chosen_weight * chosen / counts["chosen"]
        sums = {
            "preference": preference,
            "chosen": chosen,
            "margin": margin_P.sum(),
            "won": (margin_P > 0).sum(),
            "chosen_reward": reward_P2[:, 0].sum(),
            "rejected_reward": reward_P2[:, 1].sum(),
        }
        return loss, {name: float(value.detach()) for name, value in sums.items()}

    def report(self, sums: dict[str, float], counts: dict[str, float]) -> dict[str, float]:
        """loss; chosen_loss: negated bound of the chosen answers per token; margin: mean of β [ΔB(x_w) - ΔB(x_l)];
        reward_accuracy: share of pairs where it is above 0; chosen_reward, rejected_reward: its two parts."""
        preference, chosen = sums["preference"] / counts["pairs"], sums["chosen"] / counts["chosen"]
        return {
            "loss": preference + self.config.chosen_weight * chosen,
            "preference_loss": preference,
            "chosen_loss": chosen,
            "margin": sums["margin"] / counts["pairs"],
            "reward_accuracy": sums["won"] / counts["pairs"],
            "chosen_reward": sums["chosen_reward"] / counts["pairs"],
            "rejected_reward": sums["rejected_reward"] / counts["pairs"],
        }

    @contextmanager
    def _reference_of(self, model: LLaDA2) -> Iterator[LLaDA2]:
        if self.reference is not None:
            yield self.reference
            if isinstance(self.reference, FSDPModule):
                self.reference.reshard()  # no backward pass comes that would drop what was gathered
            return
        with adapters_off(model):
            yield model


@contextmanager
def adapters_off(model: LLaDA2) -> Iterator[None]:
    """Inside, the network computes what it did before it was given adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

    adapted = [module for module in model.modules() if isinstance(module, (BaseTunerLayer, ModulesToSaveWrapper))]
    for module in adapted:
        module.enable_adapters(False)
    try:
        yield
    finally:
        for module in adapted:
            module.enable_adapters(True)
