"""Extrapolation: exact where the assumption holds, honest where it doesn't."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.sampling import Part, Task, agreement, measure, spaced_blocks, spread, total_seconds
from bench.systems import Step

TASK = Task(prompt=(1,) * 32, blocks=4, length=32, steps=8)


class Fake:
    """A decoder whose time is a formula: recomputation costs the length of the sequence, the cached one what is new."""

    def __init__(self, *, recomputes: bool) -> None:
        self.name = "fake"
        self.recomputes = recomputes
        self.prefixes: list[tuple[int, ...]] = []

    def run(self, prompt, new_tokens: int, limit: int | None = None) -> list[Step]:
        self.prefixes.append(tuple(prompt))
        out = []
        for index in range(new_tokens // 32 * 8):
            block, step = divmod(index, 8)
            end = len(prompt) + 32 * (block + 1)
            fresh = 32 if step else end if not block else 64
            out.append(Step(float(end if self.recomputes else fresh), (len(prompt) // 32 + block, step)))
        return out[:limit]


@pytest.mark.parametrize("recomputes", [True, False])
def test_a_whole_run_is_its_sum(recomputes: bool) -> None:
    system = Fake(recomputes=recomputes)
    measured = measure(system, TASK, Part(), {}, [])
    assert measured.total == sum(step.seconds for step in system.run(TASK.prompt, 128))
    assert measured.forwards == TASK.forwards == 32 and not measured.sampled


@pytest.mark.parametrize("blocks", [(0, 3), (1, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("limit", [1, 3])
def test_sampled_recomputation_gives_the_whole_time(blocks: tuple[int, ...], limit: int) -> None:
    system = Fake(recomputes=True)
    whole = measure(system, TASK, Part(), {}, []).total
    measured = measure(system, TASK, Part(blocks, limit), {}, [7] * 128)
    assert measured.total == pytest.approx(whole)
    assert measured.sampled and measured.forwards == len(blocks) * limit


def test_a_single_sample_does_not_flatter() -> None:
    system = Fake(recomputes=True)
    whole = measure(system, TASK, Part(), {}, []).total
    assert measure(system, TASK, Part(spaced_blocks(1, 4), 1), {}, [7] * 128).total < whole


def test_a_cached_run_that_stops_early_gives_the_whole_time() -> None:
    system = Fake(recomputes=False)
    measured = measure(system, TASK, Part(limit=10), {}, [])
    assert measured.total == pytest.approx(measure(system, TASK, Part(), {}, []).total)
    assert measured.sampled and measured.forwards == 10


def test_a_cached_run_that_stops_too_early_says_nothing() -> None:
    for seconds in ({0: [1.0] * 8}, {0: [1.0] * 8, 1: [1.0]}):
        with pytest.raises(ValueError, match="with a cache"):
            total_seconds(seconds, TASK, recomputes=False)


def test_a_sampled_block_follows_what_the_cached_decoder_wrote() -> None:
    system = Fake(recomputes=True)
    reference = {(0, 7): (5,) * 32, (1, 0): (6,) * 32}
    measure(system, TASK, Part((0, 1, 3), 1), reference, list(range(100, 228)))
    first, second, fourth = system.prefixes
    assert first == TASK.prompt and second == TASK.prompt + (5,) * 32
    assert fourth == TASK.prompt + (5,) * 32 + tuple(range(132, 196))  # not known: filler


def test_agreement_compares_what_both_have() -> None:
    assert agreement({(0, 0): (1,), (0, 1): (2,), (3, 0): (9,)}, {(0, 0): (1,), (0, 1): (3,)}) == (1, 2)


@given(count=st.integers(1, 9), blocks=st.integers(1, 8))
def test_spaced_blocks(count: int, blocks: int) -> None:
    chosen = spaced_blocks(count, blocks)
    assert list(chosen) == sorted(set(chosen)) and set(chosen) <= set(range(blocks))
    assert len(chosen) == min(count, blocks)
    if count > 1 and blocks > 1:
        assert chosen[0] == 0 and chosen[-1] == blocks - 1


def test_spread() -> None:
    values = [3.0, 1.0, 2.0]
    random.shuffle(values)
    assert spread(values) == {"median": 2.0, "min": 1.0, "max": 3.0, "repeats": 3}
    assert spread([]) is None
