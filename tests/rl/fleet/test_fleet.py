"""Rollouts and training overlap; workers that die are replaced, and what they had is answered by others."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.rl.fleet.fakes import Sleepers

from redraft.errors import EngineError
from redraft.rl.fleet.fleet import DEATHS, Fleet
from redraft.rl.fleet.ledger import Ledger

PATIENCE = 60.0  # seconds that a test waits for what must come


def opened(backend: Sleepers, *, prompts: int = 4, staleness: int = 1, workers: int = 2, version: int = 0) -> Fleet:
    ledger: Ledger[Any] = Ledger(prompts, staleness, version)
    return Fleet(backend, ledger, workers=workers, job=2, weights=f"w{version}")


def test_batches_come_in_order_and_are_answered_by_recent_weights() -> None:
    backend = Sleepers(0.01)
    with opened(backend) as fleet:
        for version in range(5):
            batch = fleet.take()
            assert [prompt for prompt, *_ in batch] == list(range(4 * version, 4 * version + 4))
            assert all(version - 1 <= begun <= version for _, begun, *_ in batch)
            fleet.trained(f"w{version + 1}")
    assert backend.closed
    updates = [entry for kind, entry in backend.log if kind == "update"]
    assert all(weights == f"w{version}" for _, version, weights in updates)
    assert {(worker, version) for worker, version, _ in updates} >= {(w, v) for w in range(2) for v in range(5)}


@pytest.mark.slow
def test_rollouts_and_training_overlap() -> None:
    """In turn, the steps would take the sum of both times; side by side, little more than the longer one."""
    seconds, steps = 1.0, 12
    backend, training = Sleepers(seconds), 0.0
    with opened(backend, prompts=4, workers=2) as fleet:
        started = time.monotonic()
        for _ in range(steps):
            fleet.take()
            begun = time.monotonic()
            time.sleep(seconds)
            training += time.monotonic() - begun
            fleet.trained("w")
        total = time.monotonic() - started
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for job, begun, ended in backend.times:
        batch = job.prompts[0] // 4
        first[batch] = min(begun, first.get(batch, begun))
        last[batch] = max(ended, last.get(batch, ended))
    answering = sum(last[batch] - first[batch] for batch in range(steps))
    assert training >= seconds * steps and answering >= seconds * steps
    assert total <= 0.6 * (training + answering)


def test_without_staleness_they_take_turns() -> None:
    backend = Sleepers(0.05)
    with opened(backend, staleness=0) as fleet:
        for version in range(4):
            assert all(begun == version for _, begun, *_ in fleet.take())
            fleet.trained("w")


def test_the_work_of_a_worker_that_dies_is_done_by_its_successor() -> None:
    backend = Sleepers(0.2)
    with opened(backend) as fleet:
        deadline = time.monotonic() + PATIENCE
        while len(backend.open) < 2 and time.monotonic() < deadline:
            time.sleep(0.005)
        backend.kill(1)
        batch = fleet.take()
        assert [prompt for prompt, *_ in batch] == [0, 1, 2, 3]
        fleet.trained("w1")
        assert [prompt for prompt, *_ in fleet.take()] == [4, 5, 6, 7]
    assert fleet.restarts == 1 and backend.lives == {0: 1, 1: 2}
    jobs = [entry[1].prompts for kind, entry in backend.log if kind == "job"]
    lost = backend.open[1].job.prompts
    assert jobs.count(lost) == 2 and all(jobs.count(other) == 1 for other in set(jobs) - {lost})
    first = next(i for i, (kind, entry) in enumerate(backend.log) if kind == "job" and entry[1].prompts == lost)
    again = [entry for kind, entry in backend.log[first + 1 :] if kind == "update" and entry[0] == 1]
    assert again, "the successor got weights"


def test_a_worker_that_always_dies_ends_the_run() -> None:
    backend = Sleepers(0.0)
    backend.mortal = {0, 1}
    with opened(backend) as fleet, pytest.raises(EngineError, match=f"died {DEATHS} times"):
        fleet.take()


def test_an_error_of_a_job_is_the_trainers() -> None:
    backend = Sleepers(0.0)
    backend.fails = ValueError("not finite")
    with opened(backend) as fleet, pytest.raises(ValueError, match="not finite"):
        fleet.take()
    assert backend.closed


def test_a_resumed_run_asks_for_what_it_has_not_trained_on() -> None:
    backend = Sleepers(0.0)
    with opened(backend, version=3) as fleet:
        assert [(prompt, begun) for prompt, begun, *_ in fleet.take()] == [(i, 3) for i in range(12, 16)]
