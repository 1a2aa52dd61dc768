"""No prompt is lost, none counts twice, none is begun too early or by weights that are too old."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from redraft.rl.fleet.ledger import Job, Ledger


def test_prompts_are_handed_out_in_order_and_no_further_ahead_than_the_staleness_allows() -> None:
    ledger: Ledger[str] = Ledger(4, max_staleness=1)
    jobs = [ledger.hand_out(3) for _ in range(5)]
    assert jobs == [Job((0, 1, 2), 0), Job((3,), 0), Job((4, 5, 6), 0), Job((7,), 0), None]
    for index in (3, 1, 0, 2):
        assert ledger.take() is None
        assert ledger.put(index, str(index))
    assert ledger.take() == ["0", "1", "2", "3"]
    assert ledger.hand_out(3) is None, "it has been taken, but not trained on"
    ledger.trained()
    assert ledger.hand_out(9) == Job((8, 9, 10, 11), 1)


def test_without_staleness_a_batch_waits_for_the_one_before() -> None:
    ledger: Ledger[int] = Ledger(2, max_staleness=0)
    assert ledger.hand_out(5) == Job((0, 1), 0) and ledger.hand_out(5) is None
    for index in (0, 1):
        ledger.put(index, index)
    ledger.trained()
    assert ledger.hand_out(5) == Job((2, 3), 1)


def test_what_is_lost_is_handed_out_again_before_anything_new() -> None:
    ledger: Ledger[int] = Ledger(4, max_staleness=1)
    lost, kept = ledger.hand_out(2), ledger.hand_out(2)
    assert lost and kept
    ledger.lose(lost)
    assert ledger.hand_out(2) == lost
    assert ledger.hand_out(4) == Job((4, 5, 6, 7), 0)


def test_what_comes_twice_counts_once() -> None:
    ledger: Ledger[str] = Ledger(1, max_staleness=0)
    job = ledger.hand_out(1)
    assert job is not None
    ledger.lose(job)  # it was taken for dead
    assert ledger.hand_out(1) == job
    assert ledger.put(0, "second") and not ledger.put(0, "first")
    assert ledger.take() == ["second"] and ledger.duplicates == 1
    ledger.lose(job)
    ledger.trained()
    assert not ledger.put(0, "late") and ledger.duplicates == 2
    assert ledger.hand_out(1) == Job((1,), 1)


def test_an_answer_that_comes_after_all_is_not_asked_for_again() -> None:
    ledger: Ledger[str] = Ledger(2, max_staleness=0)
    job = ledger.hand_out(2)
    assert job is not None
    ledger.lose(job)
    assert ledger.put(0, "after all")
    assert ledger.hand_out(2) == Job((1,), 0)


def test_a_resumed_run_begins_with_the_batch_that_it_has_not_trained_on() -> None:
    ledger: Ledger[int] = Ledger(3, max_staleness=2, version=5)
    assert ledger.hand_out(3) == Job((15, 16, 17), 3)


def test_nothing_is_begun_behind_the_end_of_the_run() -> None:
    ledger: Ledger[int] = Ledger(2, max_staleness=3, batches=2)
    assert [ledger.hand_out(2) for _ in range(3)] == [Job((0, 1), 0), Job((2, 3), 0), None]


@given(st.integers(0, 10**6), st.integers(0, 3), st.integers(1, 5), st.integers(1, 4))
def test_any_schedule_trains_on_every_prompt_once(seed: int, staleness: int, prompts: int, most: int) -> None:
    """Workers with versions of their own answer, die and answer late, in any order."""
    draw = random.Random(seed)
    ledger: Ledger[tuple[int, int]] = Ledger(prompts, staleness)
    out: list[tuple[Job, int]] = []
    late: list[tuple[Job, int]] = []
    trained: list[int] = []
    while len(trained) < 6 * prompts:
        if (job := ledger.hand_out(most)) is not None:
            begun = draw.randint(job.least, ledger.version) if job.least <= ledger.version else -1
            assert begun >= 0, "the weights that it needs are there"
            out.append((job, begun))
        draw.shuffle(out)
        action = draw.random()
        if out and action < 0.2:
            late.append(out.pop())
            ledger.lose(late[-1][0])
        elif out:
            job, begun = out.pop()
            for index in job.prompts:
                ledger.put(index, (index, begun))
        if late and action > 0.9:
            job, begun = late.pop()
            for index in job.prompts:
                ledger.put(index, (index, begun))
        if (batch := ledger.take()) is not None:
            for index, begun in batch:
                assert 0 <= ledger.version - begun <= staleness
                trained.append(index)
            ledger.trained()
    assert trained == list(range(6 * prompts))
