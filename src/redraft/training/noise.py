"""Noise: what the noisy copies hold instead of the true tokens (spec/training.md, "Objectives").

Every draw is keyed by (seed, step, sample), so that noise doesn't depend on how a batch is split over micro-batches
or processes. Shapes: B rows, M copies, N noisy positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from redraft.errors import ConfigError
from redraft.training.layout import Layout


@dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """ratio_min, ratio_max: band of a block's mask ratio t. full: share of blocks that are masked entirely, the state
    that decoding starts from. replace_max: the share of visible tokens replaced by random ones is uniform in
    [0, replace_max] per block."""

    ratio_min: float = 0.05
    ratio_max: float = 1.0
    full: float = 0.1
    replace_max: float = 0.3

    def __post_init__(self) -> None:
        if not 0.0 <= self.ratio_min <= self.ratio_max <= 1.0:
            raise ConfigError(
                f"noise.ratio_min and noise.ratio_max must satisfy 0 <= min <= max <= 1, "
                f"got {self.ratio_min} and {self.ratio_max}"
            )
        for name in ("full", "replace_max"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"noise.{name} must be from 0 to 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class Noisy:
    """tokens_BMN: int64, the noisy copies. masked_BMN: bool, supervised positions that hold the mask."""

    tokens_BMN: Tensor
    masked_BMN: Tensor


def sample_generator(seed: int, step: int, index: int) -> np.random.Generator:
    """The generator of everything that is random about one sample in one step."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, (step << 32) ^ index], dtype=np.uint64)))


def add_noise(
    layout: Layout, config: NoiseConfig, *, seed: int, step: int, mask_id: int, replacements: np.ndarray
) -> Noisy:
    """Masks each supervised position with its block's probability t and replaces some of those left visible.

    replacements: the ids that random tokens are drawn from.
    """
    target, supervised = layout.target_BN.numpy(), layout.supervised_BN.numpy()
    tokens = np.repeat(target[:, None], layout.copies, axis=1)
    masked = np.zeros(tokens.shape, bool)
    length = layout.block_length
    for row, (index, real) in enumerate(zip(layout.index, layout.noisy_real_BN.sum(dim=1).tolist(), strict=True)):
        rng = sample_generator(seed, step, index)
        blocks, here = real // length, supervised[row, :real]
        for copy in range(layout.copies):
            ratio = rng.uniform(config.ratio_min, config.ratio_max, blocks)
            ratio = np.where(rng.random(blocks) < config.full, 1.0, ratio).repeat(length)
            share = rng.uniform(0.0, config.replace_max, blocks).repeat(length)
            hide = here & (rng.random(real) < ratio)
            replace = here & ~hide & (rng.random(real) < share)
            random_tokens = rng.choice(replacements, real)
            masked[row, copy, :real] = hide
            tokens[row, copy, :real] = np.where(hide, mask_id, np.where(replace, random_tokens, target[row, :real]))
    return Noisy(torch.from_numpy(tokens), torch.from_numpy(masked))
