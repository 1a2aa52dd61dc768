"""One engine for a long time, on a fake network: whatever came and went, nothing is left of it."""

from __future__ import annotations

import gc
import random
import sys

import pytest
from tests.engine.catalogue import WINDOWS
from tests.engine.fakes import BROKEN, FakeEngine, prompt_of, require_as_alone

from redraft.engine.request import EngineSettings, Request
from redraft.types import SamplingParams

LONGEST_PROMPT, LONGEST_ANSWER = 100, 160


def some_request(draw: random.Random, id: int, now: float) -> Request:
    length = draw.randint(1, LONGEST_PROMPT)
    params = SamplingParams(
        threshold=draw.choice([0.0, 0.4, 0.9]),
        edit_threshold=draw.choice(["off", 0.0, 0.5]),
        max_post_steps=2,
        min_unmask=draw.choice([1, 4]),
        max_tokens=draw.choice([draw.randint(1, 40), draw.randint(1, 40), LONGEST_ANSWER]),
        ignore_eos=draw.random() < 0.5,
        n=draw.choice([1, 1, 1, 3]),
        seed=0,
        **draw.choice(WINDOWS),
    )
    broken = draw.random() < 0.05
    prompt = (BROKEN,) * length if broken else prompt_of(draw.randint(0, 9), draw.choice([0, 40, 70]), length)
    deadline = now + draw.uniform(0, 50) if draw.random() < 0.1 else None
    return Request(prompt, params, id, deadline, events=False)


@pytest.mark.slow
def test_100_000_operations_leave_nothing_behind() -> None:
    """Random operations on one engine with few pages; the requests are compared as they end."""
    draw = random.Random(0)
    block, pages = 8, 16
    engine = FakeEngine(EngineSettings(max_running=6, forward_tokens=96), block, pages)
    open_: dict[int, Request] = {}
    submitted = 0
    memory: list[int] = []  # allocated objects, the engine idle

    def compare() -> None:
        for id in [*engine.completions, *engine.failures]:
            require_as_alone(engine, open_.pop(id), block, aborted=True)
        for told in (engine.completions, engine.failures, engine.events, engine.forwards):
            told.clear()

    for operation in range(100_000):
        kind = draw.random()
        if kind < 0.08 and len(open_) < 40:
            submitted += 1
            open_[submitted] = some_request(draw, submitted, engine.time)
            engine.scheduler.submit(open_[submitted])
        elif kind < 0.1 and open_:
            engine.scheduler.abort(draw.choice(list(open_)))
        else:
            engine.time += 1
            engine.step()
        compare()
        if operation % 1000 == 999:
            engine.scheduler.check()
        if operation % 20_000 == 19_999:
            engine.drain()
            compare()
            assert not open_
            gc.collect()
            memory.append(sys.getallocatedblocks())
    statistics = engine.scheduler.statistics()
    assert statistics.preempted > 100 and statistics.failed > 50 and statistics.cached_tokens > 10_000
    assert statistics.finished + statistics.aborted + statistics.failed == submitted > 5000
    assert statistics.pages.held == 0 and statistics.pages.pages == pages
    assert max(memory) - memory[0] < 1000, "one object a request would be thousands"
