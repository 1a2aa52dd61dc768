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
    """Score and cost of a set of answers. Rates are ratios of sums: TPF is all tokens over all forwards, 0 where a
    server doesn't tell its forwards.

    items: the answers, of which `errors` have no score because their grader failed; the accuracy is that of the others.
    stutter: mean over the answers, by their lengths. over_two_blocks: share of the answers longer than two blocks.
    first_block_seconds: median of the time to the first block, prefill included.
    """

    items: int
    errors: int
    accuracy: Interval
    tokens_per_forward: float
    tokens_per_second: float
    edits_per_100_tokens: float
    stutter: float
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


def mean_score(scores: Sequence[float]) -> Interval:
    """Wilson's interval where all scores are 0 or 1; else the normal one of the mean, within 0 and 1. Of no scores:
    nothing is known, 0 to 1."""
    if not scores:
        return Interval(0.0, 0.0, 1.0)
    if all(score in (0.0, 1.0) for score in scores):
        return wilson(sum(scores), len(scores))
    mean = statistics.fmean(scores)
    half = NORMAL_95 * statistics.pstdev(scores) / math.sqrt(max(1, len(scores) - 1))
    return Interval(mean, max(0.0, mean - half), min(1.0, mean + half))


def summarise(records: Sequence[Record]) -> Summary:
    """Raises InvalidInput when there are no records."""
    if not records:
        raise InvalidInput("there are no records to summarise")
    tokens = sum(record.tokens for record in records)
    forwards = sum(record.forwards for record in records)
    scores = [record.score for record in records if record.score is not None]
    seconds = sum(record.seconds for record in records)
    return Summary(
        items=len(records),
        errors=len(records) - len(scores),
        accuracy=mean_score(scores),
        tokens_per_forward=tokens / forwards if forwards else 0.0,
        tokens_per_second=tokens / seconds if seconds else 0.0,
        edits_per_100_tokens=100 * sum(record.edits for record in records) / max(1, tokens),
        stutter=sum(record.stutter * max(1, record.tokens) for record in records)
        / sum(max(1, record.tokens) for record in records),
        median_tokens=statistics.median(record.tokens for record in records),
        over_two_blocks=sum(record.blocks > 2 for record in records) / len(records),
        first_block_seconds=statistics.median(record.first_block_seconds for record in records),
    )


def compare(first: Sequence[Record], second: Sequence[Record]) -> Difference:
    """The difference of two settings by the paired bootstrap (Efron and Tibshirani 1993), percentile intervals.

    Raises InvalidInput unless both have one record of each of the same items. Items whose grader failed for one of them
    are left out.
    """
    pairs = paired(first, second)
    if len(pairs) != len(first) or len(pairs) != len(second):
        raise InvalidInput("two settings can only be compared on the same items, each answered once by both")
    return difference(pairs)


def paired(first: Sequence[Record], second: Sequence[Record]) -> list[tuple[Record, Record]]:
    """The records of the items that both have, in the order of the first."""
    right = {record.item: record for record in second}
    left = {record.item: record for record in first}
    return [(record, right[item]) for item, record in left.items() if item in right]


def difference(pairs: Sequence[tuple[Record, Record]]) -> Difference:
    """See `compare`. Raises InvalidInput when no pair has two scores."""
    scored = [pair for pair in pairs if pair[0].score is not None and pair[1].score is not None]
    if not scored:
        raise InvalidInput("two settings can only be compared on the same items, and they have none with two scores")
    a_N3 = _columns([a for a, _ in scored])
    b_N3 = _columns([b for _, b in scored])
    weights_DN = _resamples(len(scored))
    first, second = scored[0]
    return Difference(
        first=first.setting,
        second=second.setting,
        items=len(scored),
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
