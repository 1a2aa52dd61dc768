"""The likelihood of documents under a block-diffusion model: its evidence lower bound (ELBO), drawn or exact.

For a unit (a noisy block) with n supervised positions the bound of masked diffusion, `∫ 1/t E[Σ_masked log p] dt` over
t from 0 to 1, is

    B = Σ_k 1/k · E_{|S|=k} Σ_{i in S} log p(x_i | the unit with S masked, earlier clean blocks),    k = 1..n,

S uniform over the subsets of size k: where each position is masked with probability t, ∫ t^(k-1) (1-t)^(n-k) dt is
1 / (k C(n,k)). So drawing k uniformly, masking exactly k positions and weighing them by n/k estimates the same B as
drawing t and weighing by 1/t, without the variance of k given t and without the weights above n of small t (LLaDA, Nie
et al. 2025, arXiv 2502.09992, equation 6; MDLM, Sahoo et al. 2024, arXiv 2406.07524). B of a document is the sum over
its units.

Shapes: M copies, N noisy positions of one copy, U units of a document, D documents, R rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
import torch
from torch import Tensor

from redraft.errors import InvalidInput
from redraft.kernels.cross_entropy import head_cross_entropy
from redraft.model.network import LLaDA2
from redraft.training.forward import noisy_hidden
from redraft.training.layout import Layout, lay_out
from redraft.training.noise import Noisy, document_generator
from redraft.types import Sample

COPIES = 4  # masks of a unit in one forward of `estimate`
EXACT_POSITIONS = 4  # of a unit whose 2^n - 1 masks are all taken, at most
POSITIONS = 8192  # of a forward of `estimate`, where its documents are shorter than that


def document_elbo(model: LLaDA2, layout: Layout, noisy: Noisy) -> Tensor:
    """B of each document [D] in nats, at most 0, differentiable: the mean over the copies of the log-probabilities at
    masked positions over `noisy.ratio_MN`.

    Unbiased for noise whose positions are masked with the probability that `ratio_MN` states at every level of a range
    from 0 to 1 (a `ratio_min` above 0 or a share of `full` blocks biases it), and for `elbo_masks`; exact for
    `all_masks`.
    """
    masked_MN = noisy.masked_MN
    scored = head_cross_entropy(
        model.head,
        noisy_hidden(model, layout, noisy)[masked_MN],
        layout.target_MN[masked_MN],
        vocabulary=model.config.vocab_size,
    )
    terms = -scored.loss_N / (noisy.ratio_MN[masked_MN].to(scored.loss_N.dtype) * layout.copies)
    document = layout.document_N.expand_as(masked_MN)[masked_MN]
    return terms.new_zeros(len(layout.documents)).index_add(0, document, terms)


def elbo_masks(
    layout: Layout,
    *,
    seed: int,
    step: int,
    mask_id: int,
    use: int = 0,
    maskable_N: Tensor | None = None,
    one_level: bool = False,
) -> Noisy:
    """Masks exactly k of the n supervised positions of each unit, `ratio_MN` k/n, nothing replaced.

    maskable_N: bool, the positions taken instead of the supervised ones, at least one in each unit. one_level: all
    units of a copy take the same level.

    k is stratified twice over and still uniform over 1..n in each unit: the copies of a unit take one level in each of
    M equal parts of the range, and within a part the units of a document take one in each of U. Keyed by (seed, step,
    document, use), as all noise is.
    """
    masked, ratio = (np.zeros((layout.copies, layout.target_N.numel()), kind) for kind in (bool, np.float64))
    supervised_N = (layout.supervised_N if maskable_N is None else maskable_N).cpu().numpy()
    unit_N = layout.unit_N.cpu().numpy()
    for document in layout.documents:
        here = document.noisy
        rng = document_generator(seed, step, document.index, use)
        unit, supervised = unit_N[here] - unit_N[here.start], supervised_N[here]
        size_U = np.bincount(unit[supervised], minlength=len(document.block_U))
        levels_MU = _levels(layout.copies, 1 if one_level else len(size_U), rng)
        masks_MU = 1 + np.floor(levels_MU * size_U).astype(np.int64)
        masks_MU = np.minimum(masks_MU, size_U)  # a level may round up to 1
        order = np.where(supervised, 0.5 * rng.random((layout.copies, len(unit))), 0.75)
        place = np.argsort(np.argsort(unit + order, axis=1), axis=1) - np.searchsorted(unit, unit)
        masked[:, here] = supervised & (place < masks_MU[:, unit])
        ratio[:, here] = np.where(supervised, (masks_MU / size_U)[:, unit], 0.0)
    return _noisy(layout, masked, ratio, mask_id)


def _levels(copies: int, units: int, rng: np.random.Generator) -> np.ndarray:
    """[M, U] of [0, 1): every column has one number in each Mth of it; there, every row of strata one in each Uth."""
    part = rng.permuted(np.tile(np.arange(copies)[:, None], units), axis=0)
    inside = rng.permuted(np.tile(np.arange(units), (copies, 1)), axis=1) + rng.random((copies, units))
    return (part + np.take_along_axis(inside, part, axis=0) / units) / copies


def all_masks(layout: Layout, mask_id: int) -> Noisy:
    """Every non-empty set of masks of every unit, one a copy, `ratio_MN` such that `document_elbo` is B itself.

    Needs `masks_of(n)` copies, n the supervised positions of the largest unit, at most EXACT_POSITIONS. A unit with
    fewer holds no mask in the copies that are left over.
    """
    unit_N, supervised_N = layout.unit_N.cpu().numpy(), layout.supervised_N.cpu().numpy()
    size_U = np.bincount(unit_N[supervised_N])
    needed = masks_of(int(size_U.max()))
    if layout.copies != needed:
        raise InvalidInput(f"all masks of units of {size_U.max()} positions are {needed} copies, got {layout.copies}")
    before_U = np.cumsum(size_U) - size_U
    bit_N = np.where(supervised_N, np.cumsum(supervised_N) - 1 - before_U[unit_N], EXACT_POSITIONS)
    subset_M = np.arange(1, needed + 1)
    masked = (subset_M[:, None] >> bit_N & 1 == 1) & (subset_M[:, None] < 1 << size_U[unit_N])
    ratio = np.zeros(masked.shape)
    for copy, subset in enumerate(subset_M.tolist()):
        k = subset.bit_count()
        ratio_U = np.array([k * comb(int(n), k) for n in size_U]) / needed
        ratio[copy] = np.where(masked[copy], ratio_U[unit_N], 0.0)
    return _noisy(layout, masked, ratio, mask_id)


def masks_of(positions: int) -> int:
    """The number of non-empty sets of masks of a unit."""
    if not 1 <= positions <= EXACT_POSITIONS:
        raise InvalidInput(
            f"the exact bound needs blocks of 1 to {EXACT_POSITIONS} supervised positions, got {positions}"
        )
    return (1 << positions) - 1


def _noisy(layout: Layout, masked: np.ndarray, ratio: np.ndarray, mask_id: int) -> Noisy:
    device = layout.target_N.device
    masked_MN = torch.from_numpy(masked).to(device)
    tokens_MN = layout.target_MN.masked_fill(masked_MN, mask_id)
    return Noisy(tokens_MN, masked_MN, torch.from_numpy(ratio).to(device), layout.unit_N.expand(layout.copies, -1))


@dataclass(frozen=True, slots=True)
class Estimate:
    """B of one document, in nats. error: its standard error over the draws of masks; 0 where it is exact."""

    elbo: float
    error: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimator:
    """How `estimate` estimates. block_length, eos_ids: as in `lay_out`. samples: masks of each block, a multiple of
    COPIES and at least twice it, drawn in rounds of COPIES whose spread gives the standard error; 0 takes every mask of
    every block, for block lengths up to EXACT_POSITIONS. seed: keys the masks."""

    block_length: int
    mask_id: int
    eos_ids: tuple[int, ...]
    samples: int = 2 * COPIES
    seed: int = 0

    def __post_init__(self) -> None:
        if self.block_length < 1:
            raise InvalidInput(f"block_length must be at least 1, got {self.block_length}")
        if self.samples and (self.samples < 2 * COPIES or self.samples % COPIES):
            raise InvalidInput(f"samples must be a multiple of {COPIES}, at least {2 * COPIES}, got {self.samples}")
        if not self.samples:
            masks_of(self.block_length)
        if not 0 <= self.seed < 1 << 63:
            raise InvalidInput(f"seed must be from 0 to 2^63 - 1, got {self.seed}")

    @property
    def exact(self) -> bool:
        return self.samples == 0


@torch.no_grad()
def estimate(
    model: LLaDA2,
    documents: Sequence[Sample],
    estimator: Estimator,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[Estimate]:
    """B of each document, in order. Masks are keyed by `Sample.index`, so it doesn't depend on what else is estimated.

    report: called with (documents done, documents) after each forward.
    """
    out: list[Estimate] = []
    for batch in _batches(documents, masks_of(estimator.block_length) if estimator.exact else COPIES):
        elbo_RD = _rounds(model, batch, estimator)
        rounds = len(elbo_RD)
        error_D = elbo_RD.std(axis=0, ddof=1) / rounds**0.5 if rounds > 1 else np.zeros(len(batch))
        out += [Estimate(float(b), float(e)) for b, e in zip(elbo_RD.mean(axis=0), error_D, strict=True)]
        report(len(out), len(documents))
    return out


def _rounds(model: LLaDA2, batch: Sequence[Sample], estimator: Estimator) -> np.ndarray:
    """[R, D]: independent estimates of each document, float64; one round where they are exact."""
    length, eos = estimator.block_length, estimator.eos_ids
    if not estimator.exact:
        layout = lay_out(batch, length, eos, copies=COPIES).to(model.device)
        draws = [
            elbo_masks(layout, seed=estimator.seed, step=0, use=round_, mask_id=estimator.mask_id)
            for round_ in range(estimator.samples // COPIES)
        ]
    else:
        layout = lay_out(batch, length, eos)
        largest = int(torch.bincount(layout.unit_N[layout.supervised_N]).max())
        layout = lay_out(batch, length, eos, copies=masks_of(largest)).to(model.device)
        draws = [all_masks(layout, estimator.mask_id)]
    return np.stack([document_elbo(model, layout, noisy).double().cpu().numpy() for noisy in draws])


def _batches(documents: Sequence[Sample], copies: int) -> Iterator[list[Sample]]:
    """Neighbours of up to POSITIONS positions together; one alone where it has more."""
    batch: list[Sample] = []
    size = 0
    for sample in documents:
        here = (1 + copies) * len(sample.tokens)
        if batch and size + here > POSITIONS:
            yield batch
            batch, size = [], 0
        batch.append(sample)
        size += here
    if batch:
        yield batch
