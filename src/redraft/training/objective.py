"""The training objective: a drafting stream (M2T) and an editing stream (T2T) over noise or the model's own drafts.

Sources: LLaDA2.1 report, sections 3-4; LLaDA2.0 report, sections 3-5 (1/t weights, confidence loss); spec/training.md
says what they leave open. Every variant is a setting of this one objective. Shapes: M copies, N noisy positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from redraft.errors import ConfigError
from redraft.kernels.cross_entropy import head_cross_entropy
from redraft.model.network import LLaDA2
from redraft.training.balance import DocumentBalance
from redraft.training.draft import DraftConfig, drafts
from redraft.training.forward import noisy_hidden
from redraft.training.layout import Layout, lay_out
from redraft.training.noise import NoiseConfig, Noisy, add_noise
from redraft.training.preference import PreferenceConfig
from redraft.types import Sample


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """kind: "documents", or "preference" for pairs, which take `copies` and `preference` alone of these settings.

    copies: noisy copies over one clean copy. draft_weight, edit_weight: of the two streams, each a mean over its own
    positions. weighting: "flat", or "elbo": 1/t at a position masked with probability t, a mean over all positions that
    could have been masked. confidence: weight of the entropy at masked positions that are predicted right (CAP).
    balance_weight: of the routers' sequence-wise balance loss in each layer, a mean over documents."""

    kind: str = "documents"
    copies: int = 1
    draft_weight: float = 1.0
    edit_weight: float = 1.0
    weighting: str = "flat"
    confidence: float = 0.0
    balance_weight: float = 0.0
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    mtf: DraftConfig = field(default_factory=DraftConfig)
    preference: PreferenceConfig = field(default_factory=PreferenceConfig)

    def __post_init__(self) -> None:
        self._check_kind()
        if self.copies < 1:
            raise ConfigError(f"objective.copies must be at least 1, got {self.copies}")
        if self.noise.complementary and self.copies % 2:
            raise ConfigError(f"objective.noise.complementary needs an even objective.copies, got {self.copies}")
        if self.noise.levels == "antithetic" and self.copies % 2:
            raise ConfigError(f"objective.noise.levels antithetic needs an even objective.copies, got {self.copies}")
        for name in ("draft_weight", "edit_weight", "confidence", "balance_weight"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"objective.{name} must be at least 0, got {getattr(self, name)}")
        if not self.draft_weight + self.edit_weight > 0:
            raise ConfigError("objective.draft_weight and objective.edit_weight can't both be 0")
        if self.weighting not in ("flat", "elbo"):
            raise ConfigError(f'objective.weighting must be "flat" or "elbo", got {self.weighting!r}')

    def _check_kind(self) -> None:
        """Refuses settings that the kind would pass over."""
        if self.kind not in ("documents", "preference"):
            raise ConfigError(f'objective.kind must be "documents" or "preference", got {self.kind!r}')
        used = {"kind", "copies", "preference"}
        names = {f.name for f in fields(self)} - used if self.kind == "preference" else {"preference"}
        for f in fields(self):
            default = f.default if f.default_factory is MISSING else f.default_factory()
            if f.name in names and getattr(self, f.name) != default:
                raise ConfigError(f"objective.{f.name} has no effect with objective.kind {self.kind!r}; leave it out")


@dataclass(frozen=True)
class Draws:
    """What a batch's noise needs beyond its configuration. block_length: that of this step."""

    seed: int
    step: int
    mask_id: int
    eos_ids: tuple[int, ...]
    block_length: int
    replacements: np.ndarray


class Objective(Protocol):
    """What the loop trains by. Sums and counts are over a forward; the loop adds them over the whole batch, so that
    neither accumulation nor data parallelism changes a loss."""

    def prepare(self, model: LLaDA2, documents: Sequence[Any], draws: Draws) -> Any:
        """Everything random about a forward, without gradient. Has `counts: dict[str, float]` and `positions: int`."""
        ...

    def loss(self, model: LLaDA2, prepared: Any, counts: dict[str, float]) -> tuple[Tensor, dict[str, float]]:
        """The forward's part of the batch's loss, whose counts are given, and sums for `report`."""
        ...

    def report(self, sums: dict[str, float], counts: dict[str, float]) -> dict[str, float]:
        """A step's metrics; one of them is `loss`."""
        ...


@dataclass(frozen=True)
class Prepared:
    """A laid-out batch and the rounds that carry loss."""

    layout: Layout
    rounds: tuple[Noisy, ...]
    counts: dict[str, float]

    @property
    def positions(self) -> int:
        return self.layout.positions * len(self.rounds)


@dataclass(frozen=True)
class DraftAndEdit:
    """The two streams."""

    config: ObjectiveConfig
    fill: int

    def prepare(self, model: LLaDA2, documents: Sequence[Sample], draws: Draws) -> Prepared:
        config = self.config
        layout = lay_out(documents, draws.block_length, draws.eos_ids, copies=config.copies, fill=self.fill)
        noisy = add_noise(
            layout,
            config.noise,
            seed=draws.seed,
            step=draws.step,
            mask_id=draws.mask_id,
            replacements=draws.replacements,
        )
        layout, noisy = layout.to(model.device), noisy.to(model.device)
        rounds = drafts(model, layout, noisy, config.mtf, seed=draws.seed, step=draws.step, mask_id=draws.mask_id)
        masked = sum(int(round_.masked_MN.sum()) for round_ in rounds)
        maskable = sum(int((round_.ratio_MN > 0).sum()) for round_ in rounds)
        counts: dict[str, float] = {
            "masked": masked,
            "draft": masked if config.weighting == "flat" else maskable,
            "edit": len(rounds) * layout.copies * int(layout.supervised_N.sum()) - masked,
            "documents": len(rounds) * len(layout.documents),
        }
        return Prepared(layout, tuple(rounds), counts)

    def loss(self, model: LLaDA2, prepared: Prepared, counts: dict[str, float]) -> tuple[Tensor, dict[str, float]]:
        total = torch.zeros((), device=model.device)
        sums: dict[str, float] = dict.fromkeys(SUMS, 0.0)
        balance = DocumentBalance(prepared.layout)
        with balance.watching(model) if self.config.balance_weight else nullcontext():
            for noisy in prepared.rounds:
                part, of_round = self._round(model, prepared.layout, noisy, counts)
                total = total + part
                for name, value in of_round.items():
                    sums[name] += float(value)
        sums["balance"] = float(balance.total.detach())
        return total + self.config.balance_weight * balance.total / counts["documents"], sums

    def _round(
        self, model: LLaDA2, layout: Layout, noisy: Noisy, counts: dict[str, float]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        config, where = self.config, layout.supervised_MN
        target, masked = layout.target_MN[where], noisy.masked_MN[where]
        scored = head_cross_entropy(
            model.head,
            noisy_hidden(model, layout, noisy)[where],
            target,
            vocabulary=model.config.vocab_size,
            entropy=config.confidence > 0,
        )
        draft_loss, right = scored.loss_N[masked], scored.right_N
        if config.weighting == "elbo":
            draft_loss = draft_loss / noisy.ratio_MN[where][masked].to(draft_loss.dtype)
        draft, edit = draft_loss.sum(), scored.loss_N[~masked].sum()
        loss = config.draft_weight * draft / max(1.0, counts["draft"])
        loss = loss + config.edit_weight * edit / max(1.0, counts["edit"])
        sums = {"draft_loss": draft.detach(), "edit_loss": edit.detach()}
        if scored.entropy_N is not None:
            entropy = scored.entropy_N[masked & right].sum()
            loss = loss + config.confidence * entropy / max(1.0, counts["masked"])
            sums["entropy"] = entropy.detach()
        wrong = ~masked & (noisy.tokens_MN[where] != target)
        sums |= {
            "draft_right": (right & masked).sum(),
            "edit_right": (right & ~masked).sum(),
            "wrong": wrong.sum(),
            "repaired": (right & wrong).sum(),
        }
        return loss, sums

    def report(self, sums: dict[str, float], counts: dict[str, float]) -> dict[str, float]:
        config = self.config
        masked, draft, edit, wrong = (
            max(1.0, n) for n in (*(counts[k] for k in ("masked", "draft", "edit")), sums["wrong"])
        )
        draft_loss, edit_loss = sums["draft_loss"] / draft, sums["edit_loss"] / edit
        out = {
            "loss": config.draft_weight * draft_loss
            + config.edit_weight * edit_loss
            + config.confidence * sums["entropy"] / masked
            + config.balance_weight * sums["balance"] / counts["documents"],
            "draft_loss": draft_loss,
            "edit_loss": edit_loss,
            "draft_accuracy": sums["draft_right"] / masked,
            "edit_accuracy": sums["edit_right"] / edit,
            "repair_accuracy": sums["repaired"] / wrong,
            "wrong_share": sums["wrong"] / edit,
        }
        if config.confidence:
            out["entropy"] = sums["entropy"] / masked
        if config.balance_weight:
            out["router_balance"] = sums["balance"] / counts["documents"]
        return out


SUMS = ("draft_loss", "edit_loss", "entropy", "balance", "draft_right", "edit_right", "wrong", "repaired")
