from __future__ import annotations

import math

import numpy as np
import pytest
from eval_fakes import record

from redraft.errors import InvalidInput
from redraft.eval.statistics import compare, summarise, wilson


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    # Newcombe 1998, Statistics in Medicine 17, table I, method 3
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_published_intervals(successes: int, count: int, low: float, high: float) -> None:
    interval = wilson(successes, count)
    assert interval.value == successes / count
    assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)


@pytest.mark.parametrize("count", [1, 3, 7, 49, 1200])
def test_wilson_holds_the_share_at_both_ends(count: int) -> None:
    assert wilson(0, count).low == 0.0 and wilson(count, count).high == 1.0
    assert 0 < wilson(count, count).low < 1


@pytest.mark.parametrize(("successes", "count"), [(0, 0), (2, 1), (-1, 3)])
def test_wilson_refuses(successes: int, count: int) -> None:
    with pytest.raises(InvalidInput):
        wilson(successes, count)


def test_summary_is_of_sums() -> None:
    summary = summarise(
        [
            record(tokens=90, forwards=10, edits=9, blocks=3, seconds=0.5, first_block_seconds=0.3),
            record(tokens=10, forwards=10, edits=0, blocks=1, seconds=0.3, first_block_seconds=0.1, score=0.0),
            record(tokens=20, forwards=10, edits=3, blocks=2, seconds=0.2, first_block_seconds=0.2, score=0.0),
        ]
    )
    assert summary.items == 3
    assert summary.accuracy.value == pytest.approx(1 / 3)
    assert summary.tokens_per_forward == 4.0
    assert summary.tokens_per_second == pytest.approx(120.0)
    assert summary.edits_per_100_tokens == 10.0
    assert (summary.median_tokens, summary.first_block_seconds) == (20, 0.2)
    assert summary.over_two_blocks == pytest.approx(1 / 3)


def test_a_summary_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput):
        summarise([])


def paired(gain: int, loss: int, same: int) -> tuple[list, list]:
    """Records of two settings: the first alone is right `gain` times, the second alone `loss` times."""
    scores = [(1.0, 0.0)] * gain + [(0.0, 1.0)] * loss + [(1.0, 1.0)] * same
    first = [record(item=str(i), setting="a", score=a, forwards=5) for i, (a, _) in enumerate(scores)]
    second = [record(item=str(i), setting="b", score=b, forwards=10) for i, (_, b) in enumerate(scores)]
    return first, second[::-1]


def test_a_paired_difference_has_the_interval_of_the_normal_approximation() -> None:
    gain, loss, count = 60, 30, 600
    difference = compare(*paired(gain, loss, count - gain - loss))
    mean = (gain - loss) / count
    error = math.sqrt((gain + loss) / count - mean**2) / math.sqrt(count)
    assert (difference.first, difference.second, difference.items) == ("a", "b", count)
    assert difference.accuracy.value == pytest.approx(mean)
    assert difference.accuracy.low == pytest.approx(mean - 1.96 * error, abs=0.003)
    assert difference.accuracy.high == pytest.approx(mean + 1.96 * error, abs=0.003)


def test_pairs_make_the_interval_narrow() -> None:
    """Two settings at 50% that differ on one item in a hundred: unpaired, the interval would be 20 points wide."""
    outcome = np.arange(200) % 2
    first = [record(item=str(i), setting="a", score=float(x)) for i, x in enumerate(outcome)]
    second = [record(item=str(i), setting="b", score=0.0 if i < 4 else float(x)) for i, x in enumerate(outcome)]
    difference = compare(first, second).accuracy
    assert difference.value == pytest.approx(0.01)
    assert difference.high - difference.low < 0.04


def test_equal_settings_differ_by_nothing() -> None:
    difference = compare(*paired(0, 0, 50))
    assert (difference.accuracy.value, difference.accuracy.low, difference.accuracy.high) == (0.0, 0.0, 0.0)
    ratio = difference.tokens_per_forward_ratio
    assert [round(value, 9) for value in (ratio.value, ratio.low, ratio.high)] == [2.0, 2.0, 2.0]


def test_only_the_same_items_can_be_compared() -> None:
    first, second = paired(2, 1, 5)
    for a, b in ((first[1:], second), (first, second[1:]), ([*first, first[0]], second), ([], [])):
        with pytest.raises(InvalidInput):
            compare(a, b)
