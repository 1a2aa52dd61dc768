"""The training objective: drafting (M2T) and editing (T2T) streams, and multi-turn forward (MTF).

Source: LLaDA2.1 report sections 3-4; spec/training.md says what the report leaves open. Shapes: B rows, M copies,
N noisy positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.errors import ConfigError
from redraft.model.network import LLaDA2
from redraft.training.layout import Layout, VectorisedAttention
from redraft.training.noise import NoiseConfig, Noisy, add_noise, sample_generator


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """edit_weight: weight of the editing stream beside the drafting stream. mtf: share of samples whose noisy copies
    are replaced by the model's own draft before the round that trains, from step `mtf_start` on (a model that can't
    draft yet has nothing to teach). mtf_threshold_min, _max: band that the draft's threshold is drawn from. copies:
    noisy copies over one clean copy."""

    noise: NoiseConfig = field(default_factory=NoiseConfig)
    copies: int = 1
    edit_weight: float = 1.0
    mtf: float = 0.5
    mtf_rounds: int = 2
    mtf_start: int = 0
    mtf_threshold_min: float = 0.2
    mtf_threshold_max: float = 0.95

    def __post_init__(self) -> None:
        if self.copies < 1:
            raise ConfigError(f"objective.copies must be at least 1, got {self.copies}")
        if self.mtf_rounds < 1:
            raise ConfigError(f"objective.mtf_rounds must be at least 1, got {self.mtf_rounds}")
        for name in ("mtf", "mtf_threshold_min", "mtf_threshold_max"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"objective.{name} must be from 0 to 1, got {getattr(self, name)}")
        if self.edit_weight < 0:
            raise ConfigError(f"objective.edit_weight must be at least 0, got {self.edit_weight}")


@dataclass(frozen=True)
class Draws:
    """What a batch's noise needs beyond its configuration."""

    seed: int
    step: int
    mask_id: int
    replacements: np.ndarray


@dataclass(frozen=True)
class StreamSums:
    """Sums over a micro-batch, to be divided by counts over the whole batch: loss (differentiable), right answers
    and positions of the drafting and the editing stream, and the editing stream's share that was wrong before."""

    draft_loss: Tensor
    edit_loss: Tensor
    draft_count: int
    edit_count: int
    draft_right: int
    edit_right: int
    wrong_count: int
    wrong_right: int


def corrupt(model: LLaDA2, layout: Layout, config: ObjectiveConfig, draws: Draws) -> Noisy:
    """The noisy copies that the last round trains on: random noise, then for a share of the samples the model's own
    draft on it (multi-turn forward, no gradient)."""
    noisy = add_noise(
        layout, config.noise, seed=draws.seed, step=draws.step, mask_id=draws.mask_id, replacements=draws.replacements
    )
    for round_ in range(1, config.mtf_rounds if draws.step >= config.mtf_start else 1):
        noisy = _draft(model, layout, noisy, config, draws, round_)
    return noisy


@torch.no_grad()
def _draft(model: LLaDA2, layout: Layout, noisy: Noisy, config: ObjectiveConfig, draws: Draws, round_: int) -> Noisy:
    """One turn of the model on its chosen samples: masked positions above a drawn threshold, and the surest one of a
    block, take the model's prediction, as decoding would write them."""
    copies, positions = noisy.masked_BMN.shape[1:]
    blocks = positions // layout.block_length
    rows, thresholds = [], []
    for row, index in enumerate(layout.index):
        rng = sample_generator(draws.seed + round_, draws.step, index)
        if rng.random() < config.mtf:
            rows.append(row)
            # Block by block, so that the padding of a micro-batch doesn't change the draws of its shorter rows.
            drawn = rng.uniform(config.mtf_threshold_min, config.mtf_threshold_max, (blocks, copies)).T.copy()
            thresholds.append(torch.from_numpy(drawn).float().repeat_interleave(layout.block_length, dim=1))
    if not rows:
        return noisy
    before, masked = noisy.tokens_BMN[rows], noisy.masked_BMN[rows]
    logits = noisy_logits(model, layout.select(rows), before, masked)
    logits[:, draws.mask_id] = -torch.inf
    probability, token = logits.softmax(dim=-1).max(dim=-1)
    confidence = torch.full(masked.shape, -1.0)
    confidence[masked] = probability.float()
    per_block = confidence.unflatten(2, (blocks, layout.block_length))
    surest = (per_block == per_block.amax(dim=-1, keepdim=True)).flatten(2)
    write = masked & ((confidence > torch.stack(thresholds)) | surest)
    predicted = before.clone()
    predicted[masked] = token
    tokens, still_masked = noisy.tokens_BMN.clone(), noisy.masked_BMN.clone()
    tokens[rows] = torch.where(write, predicted, before)
    still_masked[rows] = masked & ~write
    return Noisy(tokens, still_masked)


def noisy_logits(model: LLaDA2, layout: Layout, tokens_BMN: Tensor, where_BMN: Tensor) -> Tensor:
    """Logits [positions, V] at the chosen noisy positions only."""
    hidden = model(layout.tokens_BT(tokens_BMN), layout.positions_BT, VectorisedAttention(layout), layout.pools_BT)
    return model.head(layout.noisy_part(hidden)[where_BMN])


def stream_sums(model: LLaDA2, layout: Layout, noisy: Noisy) -> StreamSums:
    """Cross-entropy towards the true tokens: at the masked positions, and at all visible supervised ones."""
    where_BMN = layout.supervised_BN.unsqueeze(1).expand_as(noisy.masked_BMN)
    logits = noisy_logits(model, layout, noisy.tokens_BMN, where_BMN)
    target = layout.target_BN.unsqueeze(1).expand_as(noisy.tokens_BMN)[where_BMN]
    loss = F.cross_entropy(logits, target, reduction="none")
    drafting = noisy.masked_BMN[where_BMN]
    right = logits.detach().argmax(dim=-1) == target
    wrong = ~drafting & (noisy.tokens_BMN[where_BMN] != target)
    return StreamSums(
        draft_loss=loss[drafting].sum(),
        edit_loss=loss[~drafting].sum(),
        draft_count=int(drafting.sum()),
        edit_count=int((~drafting).sum()),
        draft_right=int(right[drafting].sum()),
        edit_right=int(right[~drafting].sum()),
        wrong_count=int(wrong.sum()),
        wrong_right=int(right[wrong].sum()),
    )
