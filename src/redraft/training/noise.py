"""Noise: what the noisy copies hold instead of the true tokens (spec/training.md, "Objectives").

Every draw is keyed by (seed, step, document), so that noise doesn't depend on how a batch is split over forwards or
processes. Shapes: M copies, N noisy positions, U units (noisy blocks) of a document.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from redraft.errors import ConfigError
from redraft.training.layout import Document, Layout

SMALLEST_RATIO = (
    1e-3  # of a complementary copy, whose ratio may come out as 0: nothing is masked then, and nothing weighs
)


@dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """ratio_min, ratio_max: band of the mask ratio t. ratio_per: "block", or "sequence" for one t for all blocks of a
    copy. levels: how the t of a document's blocks and copies are drawn: "independent"; "stratified", one in each of
    equal parts of the band; or "antithetic", the second copy of two at the mirrored place. full: share of blocks that
    are masked entirely, the state that decoding starts from. complementary: the second copy of two masks what the first
    leaves visible. replace_min, replace_max: the share of visible tokens replaced by random ones is uniform between
    them, per block. merge: share of the copies of a document in which neighbouring blocks are merged into runs of
    2 to merge_blocks that see each other, as multi-block editing does; all blocks of a run but its last hold no mask.
    """

    ratio_min: float = 0.05
    ratio_max: float = 1.0
    ratio_per: str = "block"
    levels: str = "independent"
    full: float = 0.1
    complementary: bool = False
    replace_min: float = 0.0
    replace_max: float = 0.3
    merge: float = 0.0
    merge_blocks: int = 2

    def __post_init__(self) -> None:
        if not 0.0 <= self.ratio_min <= self.ratio_max <= 1.0:
            raise ConfigError(
                f"objective.noise.ratio_min and ratio_max must satisfy 0 <= min <= max <= 1, "
                f"got {self.ratio_min} and {self.ratio_max}"
            )
        if not 0.0 <= self.replace_min <= self.replace_max <= 1.0:
            raise ConfigError(
                f"objective.noise.replace_min and replace_max must satisfy 0 <= min <= max <= 1, "
                f"got {self.replace_min} and {self.replace_max}"
            )
        for name in ("full", "merge"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"objective.noise.{name} must be from 0 to 1, got {getattr(self, name)}")
        if self.ratio_per not in ("block", "sequence"):
            raise ConfigError(f'objective.noise.ratio_per must be "block" or "sequence", got {self.ratio_per!r}')
        if self.levels not in ("independent", "stratified", "antithetic"):
            raise ConfigError(
                f'objective.noise.levels must be "independent", "stratified" or "antithetic", got {self.levels!r}'
            )
        if self.merge_blocks < 2:
            raise ConfigError(f"objective.noise.merge_blocks must be at least 2, got {self.merge_blocks}")


@dataclass(frozen=True)
class Noisy:
    """tokens_MN: int64, the noisy copies. masked_MN: bool, supervised positions that hold the mask. ratio_MN: float64,
    the probability with which a position was masked, 0 where it couldn't be. run_MN: int64, the first unit of the run
    that it lies in; its own unit where blocks aren't merged."""

    tokens_MN: Tensor
    masked_MN: Tensor
    ratio_MN: Tensor
    run_MN: Tensor

    def take(self, here_N: Tensor, unit_N: Tensor, renumbered_N: Tensor) -> Noisy:
        """The noise at some positions, those of whole documents. unit_N: their units here; renumbered_N: there."""
        number = self.run_MN.new_zeros(int(unit_N.max()) + 1)
        number[unit_N] = renumbered_N
        run_MN = number[self.run_MN[:, here_N]]
        return Noisy(self.tokens_MN[:, here_N], self.masked_MN[:, here_N], self.ratio_MN[:, here_N], run_MN)

    def to(self, device: torch.device) -> Noisy:
        return Noisy(*(x.to(device) for x in (self.tokens_MN, self.masked_MN, self.ratio_MN, self.run_MN)))


def document_generator(seed: int, step: int, index: int, use: int = 0) -> np.random.Generator:
    """The generator of everything that is random about one document in one step; one for each use."""
    counter = np.array([0, 0, step, use], np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=np.array([seed, index], np.uint64)))


def add_noise(
    layout: Layout, config: NoiseConfig, *, seed: int, step: int, mask_id: int, replacements: np.ndarray
) -> Noisy:
    """Masks each supervised position with probability t and replaces some of those left visible.

    replacements: the ids that random tokens are drawn from.
    """
    if config.complementary and layout.copies % 2:
        raise ConfigError(f"objective.noise.complementary needs an even number of copies, got {layout.copies}")
    target, supervised = layout.target_N.numpy(), layout.supervised_N.numpy()
    shape = (layout.copies, len(target))
    tokens, masked = np.repeat(target[None], layout.copies, axis=0), np.zeros(shape, bool)
    ratio, run = np.ones(shape), np.zeros(shape, np.int64)
    units = 0
    for document in layout.documents:
        rng = document_generator(seed, step, document.index)
        here, unit_N = document.noisy, layout.unit_N.numpy()[document.noisy] - units
        run_MU, open_MU = _runs(document, layout.copies, config, rng)
        ratio_MU, share_MU = _ratios(run_MU.shape, config, rng), _shares(run_MU.shape, config, rng)
        may_hide = supervised[here] & open_MU[:, unit_N]
        drawn = rng.random(may_hide.shape)
        if (
            config.complementary
        ):  # the same draw for both: what lies below t is masked in one, what lies above in the other
            ratio_MU[1::2], drawn[1::2] = 1.0 - ratio_MU[::2], 1.0 - drawn[::2]
        hide = may_hide & (drawn < ratio_MU[:, unit_N])
        replace = supervised[here] & ~hide & (rng.random(hide.shape) < share_MU[:, unit_N])
        random_tokens = rng.choice(replacements, hide.shape)
        masked[:, here] = hide
        tokens[:, here] = np.where(hide, mask_id, np.where(replace, random_tokens, target[here]))
        ratio[:, here] = np.where(may_hide, ratio_MU.clip(SMALLEST_RATIO)[:, unit_N], 0.0)
        run[:, here] = run_MU[:, unit_N] + units
        units += len(document.block_U)
    return Noisy(*(torch.from_numpy(x) for x in (tokens, masked, ratio, run)))


def _ratios(shape: tuple[int, int], config: NoiseConfig, rng: np.random.Generator) -> np.ndarray:
    """The mask ratio t of each copy and unit."""
    copies, units = shape
    width = 1 if config.ratio_per == "sequence" else units
    place = rng.random((copies, width))  # in [0, 1) of the band
    if config.levels == "stratified":
        strata = rng.permutation(copies * width).reshape(copies, width)
        place = (strata + place) / (copies * width)
    elif config.levels == "antithetic":
        place[1::2] = 1.0 - place[::2]
    ratio = config.ratio_min + (config.ratio_max - config.ratio_min) * place
    full = rng.random((copies, width)) < config.full
    return np.where(full, 1.0, ratio).repeat(units // width, axis=1)


def _shares(shape: tuple[int, int], config: NoiseConfig, rng: np.random.Generator) -> np.ndarray:
    """The share of visible tokens replaced in each copy and unit."""
    return rng.uniform(config.replace_min, config.replace_max, shape)


def _runs(
    document: Document, copies: int, config: NoiseConfig, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """[M, U]: the first unit of each unit's run, and whether the unit may hold masks (the last of a run may)."""
    units = len(document.block_U)
    run, last = np.tile(np.arange(units), (copies, 1)), np.ones((copies, units), bool)
    if not config.merge:
        return run, last
    for copy in range(copies):
        if rng.random() >= config.merge:
            continue
        first = 0
        while first < units:
            stop = min(first + int(rng.integers(2, config.merge_blocks + 1)), units)
            span = document.span_U[first]
            stop = first + int((document.span_U[first:stop] == span).sum())
            run[copy, first:stop] = first
            last[copy, first : stop - 1] = False
            first = stop
    return run, last
