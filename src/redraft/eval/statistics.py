"""Figures with intervals: Wilson's for one accuracy, the paired bootstrap for two settings on the same items.

Shapes: N items, D resamples.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from redraft.errors import InvalidInput
from redraft.eval.records import Record

NORMAL_95 = 1.959963984540054
DRAWS = 4000
SEED = 0


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the borders of its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Score and cost of a set of answers. Rates are ratios of sums: TPF is all tokens over all forwards.

    over_two_blocks: share of the answers that are longer than two blocks.
    first_block_seconds: median of the time to the first block, prefill included.
    """

    items: int
    accuracy: Interval
    tokens_per_forward: float
    tokens_per_second: float
    edits_per_100_tokens: float
    median_tokens: float
    over_two_blocks: float
    first_block_seconds: float


@dataclass(frozen=True, slots=True)
class Difference:
    """First setting against second, on the same items: accuracy first - second, and TPF first / second."""

    first: str
    second: str
    items: int
    accuracy: Interval
    tokens_per_forward_ratio: Interval


def wilson(successes: float, count: int) -> Interval:
    """Wilson's score interval of a proportion (Wilson 1927), 95%."""
    if count < 1 or not 0 <= successes <= count:
        raise InvalidInput(f"successes must be from 0 to a count of at least 1, got {successes} of {count}")
    z2 = NORMAL_95**2
    share = successes / count
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = NORMAL_95 / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    # At 0 and 1 the borders are the share itself, which rounding must not miss.
    return Interval(share, max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half)))


def summarise(records: Sequence[Record]) -> Summary:
    """Raises InvalidInput when there are no records."""
    if not records:
        raise InvalidInput("there are no records to summarise")
    tokens = sum(record.tokens for record in records)
    seconds = sum(record.seconds for record in records)
    return Summary(
        items=len(records),
        accuracy=wilson(sum(record.score for record in records), len(records)),
        tokens_per_forward=tokens / max(1, sum(record.forwards for record in records)),
        tokens_per_second=tokens / seconds if seconds else 0.0,
        edits_per_100_tokens=100 * sum(record.edits for record in records) / max(1, tokens),
        median_tokens=statistics.median(record.tokens for record in records),
        over_two_blocks=sum(record.blocks > 2 for record in records) / len(records),
        first_block_seconds=statistics.median(record.first_block_seconds for record in records),
    )


def compare(first: Sequence[Record], second: Sequence[Record]) -> Difference:
    """The difference of two settings by the paired bootstrap (Efron and Tibshirani 1993), percentile intervals.

    Raises InvalidInput unless both have one record of each of the same items.
    """
    left = {record.item: record for record in first}
    right = {record.item: record for record in second}
    if not left or left.keys() != right.keys() or len(left) != len(first) or len(right) != len(second):
        raise InvalidInput("two settings can only be compared on the same items, each answered once by both")
    a_N3 = _columns([left[item] for item in left])
    b_N3 = _columns([right[item] for item in left])
    weights_DN = _resamples(len(left))
    return Difference(
        first=first[0].setting,
        second=second[0].setting,
        items=len(left),
        accuracy=_interval(_gain, a_N3, b_N3, weights_DN),
        tokens_per_forward_ratio=_interval(_ratio, a_N3, b_N3, weights_DN),
    )


def _columns(records: Sequence[Record]) -> np.ndarray:
    """[N, 3]: score, tokens, forwards of each record."""
    columns = [(record.score, max(1, record.tokens), max(1, record.forwards)) for record in records]
    return np.array(columns, dtype=np.float64)


def _gain(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Difference of the mean scores, from means of columns: [..., 3]."""
    return a[..., 0] - b[..., 0]


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Ratio of tokens per forward, from means of columns: [..., 3]."""
    return (a[..., 1] * b[..., 2]) / (a[..., 2] * b[..., 1])


def _interval(
    figure: Callable[[np.ndarray, np.ndarray], np.ndarray], a_N3: np.ndarray, b_N3: np.ndarray, weights_DN: np.ndarray
) -> Interval:
    """The figure of all items, and the middle 95% of the same figure over the resamples."""
    low, high = np.percentile(figure(weights_DN @ a_N3, weights_DN @ b_N3), (2.5, 97.5))
    return Interval(float(figure(a_N3.mean(axis=0), b_N3.mean(axis=0))), float(low), float(high))


@lru_cache(maxsize=4)
def _resamples(count: int) -> np.ndarray:
    """[D, N]: the share that each item has in each of `DRAWS` samples of N items with replacement."""
    rng = np.random.default_rng(SEED)
    draws = [np.bincount(rng.integers(count, size=count), minlength=count) for _ in range(DRAWS)]
    return np.array(draws, dtype=np.float64) / count
