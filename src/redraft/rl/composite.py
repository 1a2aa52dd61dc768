"""Composite inputs `z_n = y_{t_n} + y_0`: N noisy copies of every block over one clean copy, and the terms that the
likelihood of a response takes from them (LLaDA2.1 report, equations 4-5; spec/rl.md).

A response is filled with EOS to the border of its last block. What follows its first EOS carries no term and shows no
more than that EOS does: it is masked where the EOS is. So the end of a response is one event, and where it is has to
be predicted.

Shapes: M copies (the N noise levels), N noisy positions of one copy, K terms, U units (noisy blocks), D documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from redraft.errors import ConfigError
from redraft.rl.trajectory import State, Trajectory
from redraft.training.data.pack import pack
from redraft.training.layout import Layout, lay_out
from redraft.training.likelihood import elbo_masks
from redraft.training.noise import Noisy, document_generator
from redraft.training.objective import Draws
from redraft.types import Sample

MASKS, STATES, CORRUPTED = 0, 1, 2  # uses of a document's random numbers
NOISES = ("random", "sequence", "trajectory", "steps")


@dataclass(frozen=True, kw_only=True)
class LikelihoodConfig:
    """levels: noisy copies of each block, N. noise: "random" masks, each block with levels of its own; "sequence", the
    same with one level for all blocks of a copy; "trajectory", states that decoding went through, with terms for the
    final tokens; or "steps", such states with terms for the tokens that the step wrote. edits: also terms at visible
    positions that hold a wrong token (M2T+T2T), which drawn noise puts in a share `corrupt` of them, each divided by
    that share and times `edit_weight`; visible positions that hold the right token count `keep_weight` over the other
    share."""

    levels: int = 4
    noise: str = "random"
    edits: bool = False
    corrupt: float = 0.15
    edit_weight: float = 1.0
    keep_weight: float = 0.0

    def __post_init__(self) -> None:
        if self.levels < 1:
            raise ConfigError(f"likelihood.levels must be at least 1, got {self.levels}")
        if self.noise not in NOISES:
            raise ConfigError(f"likelihood.noise must be one of {', '.join(NOISES)}, got {self.noise!r}")
        if not 0 < self.corrupt < 1:
            raise ConfigError(f"likelihood.corrupt must be above 0 and below 1, got {self.corrupt}")
        for name in ("edit_weight", "keep_weight"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"likelihood.{name} must be a number of at least 0, got {getattr(self, name)}")
        if self.edits and self.noise == "steps":
            raise ConfigError('likelihood.edits must be false with likelihood.noise "steps", whose terms hold edits')
        if not self.edits and self.keep_weight:
            raise ConfigError(f"likelihood.keep_weight has no effect without likelihood.edits, got {self.keep_weight}")

    @property
    def replays(self) -> bool:
        """Whether the noise is that of trajectories."""
        return self.noise in ("trajectory", "steps")


@dataclass(frozen=True)
class Composite:
    """One forward's composite input, with its noise fixed: whoever evaluates it, at whatever weights, shares the noise.

    target_MN: int64, the token whose log-probability is a term. weight_MN: float64, the term's weight, the mean over
    the levels included; 0 where there is no term. length_D: int64, tokens of each response up to its first EOS.
    """

    layout: Layout
    noisy: Noisy
    target_MN: Tensor
    weight_MN: Tensor
    length_D: Tensor

    @cached_property
    def terms_MN(self) -> Tensor:
        return self.weight_MN != 0

    @cached_property
    def weight_K(self) -> Tensor:
        return self.weight_MN[self.terms_MN]

    @cached_property
    def unit_K(self) -> Tensor:
        return self.layout.unit_N.expand_as(self.terms_MN)[self.terms_MN]

    @cached_property
    def document_K(self) -> Tensor:
        return self.layout.document_N.expand_as(self.terms_MN)[self.terms_MN]

    @cached_property
    def document_U(self) -> Tensor:
        """int64: the document of each unit."""
        sizes = torch.tensor([len(document.block_U) for document in self.layout.documents])
        return torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(self.layout.unit_N.device)

    def by_block(self, x_K: Tensor) -> Tensor:
        """[U]: weighted sums over the terms of each block."""
        return _sums(self.weight_K.to(x_K.dtype) * x_K, self.unit_K, len(self.document_U))

    def by_document(self, x_K: Tensor) -> Tensor:
        """[D]: weighted sums over the terms of each document."""
        return _sums(self.by_block(x_K), self.document_U, len(self.layout.documents))

    def to(self, device: torch.device) -> Composite:
        moved = self.target_MN.to(device), self.weight_MN.to(device), self.length_D.to(device)
        return Composite(self.layout.to(device), self.noisy.to(device), *moved)


def composites(
    samples: Sequence[Sample],
    config: LikelihoodConfig,
    draws: Draws,
    *,
    length: int,
    trajectories: Mapping[int, Trajectory] | None = None,
) -> list[Composite]:
    """Micro-batches of at most `length` document positions, that is (N + 1) · length of a forward.

    All that is random is keyed by (draws.seed, draws.step, Sample.index): neither the micro-batches nor anything else
    changes a document's noise. trajectories: by `Sample.index`, for noise other than "random".
    """
    return [composite(part, config, draws, trajectories) for part in pack(samples, length)]


def composite(
    samples: Sequence[Sample],
    config: LikelihoodConfig,
    draws: Draws,
    trajectories: Mapping[int, Trajectory] | None = None,
) -> Composite:
    """The composite input of one forward."""
    layout = lay_out(samples, draws.block_length, draws.eos_ids, copies=config.levels)
    terms_N = response_terms(layout, draws.eos_ids)
    if not config.replays:
        return _random(layout, terms_N, config, draws)
    if trajectories is None:
        raise ConfigError(f"likelihood.noise {config.noise!r} needs the trajectories of its samples, got none")
    return _replayed(layout, terms_N, config, draws, trajectories)


def response_terms(layout: Layout, eos: Sequence[int]) -> Tensor:
    """bool [N]: supervised positions up to the first EOS of their unit."""
    ends = layout.supervised_N & torch.isin(layout.target_N, torch.tensor(list(eos), device=layout.target_N.device))
    before = ends.cumsum(0) - ends.long()
    first_N = torch.searchsorted(layout.unit_N, layout.unit_N)  # where each position's unit begins
    return layout.supervised_N & (before == before[first_N])


def _random(layout: Layout, terms_N: Tensor, config: LikelihoodConfig, draws: Draws) -> Composite:
    noisy = elbo_masks(
        layout,
        seed=draws.seed,
        step=draws.step,
        mask_id=draws.mask_id,
        use=MASKS,
        maskable_N=terms_N,
        one_level=config.noise == "sequence",
    )
    fill_N = layout.supervised_N & ~terms_N
    end_N = torch.where(terms_N, torch.arange(len(terms_N)), 0).cummax(0).values  # the EOS that a fill belongs to
    masked_MN = torch.where(fill_N, noisy.masked_MN[:, end_N], noisy.masked_MN)
    tokens_MN = layout.target_MN.masked_fill(masked_MN, draws.mask_id)
    weight_MN = torch.where(terms_N & masked_MN, 1 / noisy.ratio_MN, 0.0)
    if config.edits:
        drawn_MN, random_MN = _corruption(layout, config, draws)
        visible_MN = terms_N & ~masked_MN
        tokens_MN = torch.where(visible_MN & drawn_MN, random_MN, tokens_MN)
        wrong_MN = visible_MN & (tokens_MN != layout.target_MN)
        weight_MN += torch.where(wrong_MN, config.edit_weight / config.corrupt, 0.0)
        weight_MN += torch.where(visible_MN & ~wrong_MN, config.keep_weight / (1 - config.corrupt), 0.0)
    noisy = replace(noisy, tokens_MN=tokens_MN, masked_MN=masked_MN)
    return Composite(layout, noisy, layout.target_MN, weight_MN / config.levels, _lengths(layout, terms_N))


def _corruption(layout: Layout, config: LikelihoodConfig, draws: Draws) -> tuple[Tensor, Tensor]:
    """bool and int64 [M, N]: which visible positions would be replaced, and by what."""
    drawn, tokens = (np.zeros((layout.copies, layout.target_N.numel()), kind) for kind in (bool, np.int64))
    for document in layout.documents:
        rng = document_generator(draws.seed, draws.step, document.index, CORRUPTED)
        size = (layout.copies, document.noisy.stop - document.noisy.start)
        drawn[:, document.noisy] = rng.random(size) < config.corrupt
        tokens[:, document.noisy] = rng.choice(draws.replacements, size)
    return torch.from_numpy(drawn), torch.from_numpy(tokens)


def _replayed(
    layout: Layout,
    terms_N: Tensor,
    config: LikelihoodConfig,
    draws: Draws,
    trajectories: Mapping[int, Trajectory],
) -> Composite:
    """Each copy of a block takes one of its states, without repetition and spread over the block's steps. A block with
    fewer steps than copies leaves the others without a term; one with more weighs each for those that were left out."""
    terms, target = terms_N.numpy(), layout.target_N.numpy()
    tokens, action = layout.target_MN.numpy().copy(), layout.target_MN.numpy().copy()
    weight, masked = np.zeros(tokens.shape), np.zeros(tokens.shape, bool)
    unit_N, position_N = layout.unit_N.numpy(), layout.noisy_position_N.numpy()
    unit = 0
    for document in layout.documents:
        rng = document_generator(draws.seed, draws.step, document.index, STATES)
        for block in document.block_U:
            here = np.flatnonzero(unit_N == unit)
            inside = position_N[here] % draws.block_length
            mine, true = terms[here], target[here]
            states = []
            for state in trajectories[document.index].blocks[int(block)]:
                weighed = _weights(state, inside, mine, true, config)
                if weighed.any():
                    states.append((state, weighed))
            chosen = _spread(len(states), config.levels, rng)
            for copy, number in enumerate(chosen):
                state, weighed = states[number]
                tokens[copy, here] = np.where(layout.supervised_N.numpy()[here], state.tokens[inside], true)
                masked[copy, here] = layout.supervised_N.numpy()[here] & state.masked[inside]
                action[copy, here] = np.where(mine & (config.noise == "steps"), state.after[inside], true)
                scale = len(states) if config.noise == "steps" else 1
                weight[copy, here] = weighed * scale / len(chosen)
            unit += 1
    ratio = np.where(masked, 1.0, 0.0)  # the states weren't drawn by one
    run_MN = layout.unit_N.expand(layout.copies, -1)
    noisy = Noisy(torch.from_numpy(tokens), torch.from_numpy(masked), torch.from_numpy(ratio), run_MN)
    return Composite(layout, noisy, torch.from_numpy(action), torch.from_numpy(weight), _lengths(layout, terms_N))


def _weights(
    state: State, inside: np.ndarray, terms: np.ndarray, true: np.ndarray, config: LikelihoodConfig
) -> np.ndarray:
    """Weights of a block's terms in one of its states: of what the step wrote; or n/k for each of the k positions that
    were masked, and those of visible ones that differ from the final token."""
    if config.noise == "steps":
        return (terms & state.written[inside]).astype(np.float64)
    masked = terms & state.masked[inside]
    out = masked * (terms.sum() / max(1, masked.sum()))
    if config.edits:
        visible = terms & ~masked
        wrong = visible & (state.tokens[inside] != true)
        share = wrong.sum() / max(1, visible.sum())
        out = out + wrong * (config.edit_weight / share if share else 0.0)
        out = out + (visible & ~wrong) * (config.keep_weight / (1 - share) if share < 1 else 0.0)
    return out


def _spread(states: int, levels: int, rng: np.random.Generator) -> np.ndarray:
    """Up to `levels` different numbers below `states`, one from each of equal parts, each number equally likely."""
    if states <= levels:
        return np.arange(states)
    return np.floor((np.arange(levels) + rng.random()) * states / levels).astype(np.int64)


def _lengths(layout: Layout, terms_N: Tensor) -> Tensor:
    return torch.bincount(layout.document_N[terms_N], minlength=len(layout.documents))


def _sums(x: Tensor, group: Tensor, groups: int) -> Tensor:
    return x.new_zeros(groups).index_add(0, group, x)
