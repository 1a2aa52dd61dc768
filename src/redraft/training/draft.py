"""Multi-turn forward (MTF): the model drafts on its own noise, and the next round trains on that draft.

It closes the gap between random errors in training and the model's own, fluent ones in decoding (LLaDA2.1 report,
section 3). Shapes: M copies, N noisy positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from redraft.errors import ConfigError
from redraft.model.network import LLaDA2
from redraft.training.forward import noisy_hidden
from redraft.training.layout import Layout
from redraft.training.noise import Noisy, document_generator


@dataclass(frozen=True, kw_only=True)
class DraftConfig:
    """share: of the documents whose noisy copies the model drafts on, from step `start` on (a model that can't draft
    yet has nothing to teach). rounds: rounds in all, the first on plain noise. threshold_min, threshold_max: band that
    a block's threshold is drawn from. train_rounds: "last", or "all" rounds carry loss."""

    share: float = 0.5
    rounds: int = 2
    start: int = 0
    threshold_min: float = 0.2
    threshold_max: float = 0.95
    train_rounds: str = "last"

    def __post_init__(self) -> None:
        for name in ("share", "threshold_min", "threshold_max"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"objective.mtf.{name} must be from 0 to 1, got {getattr(self, name)}")
        if self.threshold_min > self.threshold_max:
            raise ConfigError(
                f"objective.mtf.threshold_min must be at most threshold_max, got {self.threshold_min} and "
                f"{self.threshold_max}"
            )
        if self.rounds < 1 or self.start < 0:
            raise ConfigError(f"objective.mtf needs rounds >= 1 and start >= 0, got {self.rounds} and {self.start}")
        if self.train_rounds not in ("last", "all"):
            raise ConfigError(f'objective.mtf.train_rounds must be "last" or "all", got {self.train_rounds!r}')


@torch.no_grad()
def draft(
    model: LLaDA2, layout: Layout, noisy: Noisy, config: DraftConfig, *, seed: int, step: int, round_: int, mask_id: int
) -> Noisy:
    """One turn of the model on its chosen documents: masked positions above a drawn threshold, and the surest one of a
    block, take the model's prediction, as decoding would write them."""
    chosen, thresholds = [], []
    for number, document in enumerate(layout.documents):
        rng = document_generator(seed, step, document.index, use=round_)
        if rng.random() < config.share:
            chosen.append(number)
            drawn = rng.uniform(config.threshold_min, config.threshold_max, (layout.copies, len(document.block_U)))
            thresholds.append(torch.from_numpy(drawn))
    if not chosen:
        return noisy
    device = noisy.tokens_MN.device
    part, here_N = layout.select(chosen)
    before = noisy.take(here_N, layout.unit_N[here_N], part.unit_N)
    masked = before.masked_MN
    logits = model.head(noisy_hidden(model, part, before)[masked])
    logits[:, mask_id] = -torch.inf
    probability, token = logits.softmax(dim=-1).max(dim=-1)
    confidence = torch.full(masked.shape, -1.0, dtype=probability.dtype, device=device)
    confidence[masked] = probability
    unit_MN = part.unit_N.expand_as(masked)
    best = confidence.new_full((layout.copies, len(part.block_U)), -1.0)
    best.scatter_reduce_(1, unit_MN, confidence, "amax")
    threshold_MN = torch.cat(thresholds, dim=1).to(best).gather(1, unit_MN)
    write = masked & ((confidence > threshold_MN) | (confidence == best.gather(1, unit_MN)))
    predicted = before.tokens_MN.clone()
    predicted[masked] = token
    tokens, still_masked = noisy.tokens_MN.clone(), noisy.masked_MN.clone()
    tokens[:, here_N] = torch.where(write, predicted, before.tokens_MN)
    still_masked[:, here_N] = masked & ~write
    return replace(noisy, tokens_MN=tokens, masked_MN=still_masked)


def drafts(model: LLaDA2, layout: Layout, noisy: Noisy, config: DraftConfig, **draws: int) -> list[Noisy]:
    """The rounds that carry loss: the last draft, or every one with the plain noise before them."""
    rounds = [noisy]
    if draws["step"] >= config.start and config.share:
        for round_ in range(1, config.rounds):
            rounds.append(draft(model, layout, rounds[-1], config, round_=round_, **draws))
    return rounds if config.train_rounds == "all" else rounds[-1:]
