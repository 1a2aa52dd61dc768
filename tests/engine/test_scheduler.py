"""The scheduler over a fake network: every answer is that of the plain loop, whatever happens around it; which forwards
run is pinned; and the pages always balance."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.engine.fakes import BROKEN, EOS, FakeEngine, alone

from redraft.engine.pages import page_length
from redraft.engine.request import EngineSettings, Request
from redraft.errors import EngineError, InvalidInput, NumericalError, QueueFull
from redraft.types import SamplingParams

LONGEST_PROMPT, LONGEST_ANSWER = 100, 160
WINDOWS = [{}, {}] + [
    {"mbe_blocks": blocks, "mbe_steps": steps, "mbe_edit_threshold": threshold}
    for blocks, steps, threshold in [(1, 3, 0.0), (2, 1, 0.3), (4, 5, 0.5)]
]


def params_of(window: dict[str, Any], **fields: Any) -> SamplingParams:
    return SamplingParams(**fields, **window)


PARAMS = st.builds(
    params_of,
    window=st.sampled_from(WINDOWS),
    threshold=st.sampled_from([0.0, 0.4, 0.9, 2.0]),
    edit_threshold=st.sampled_from(["off", 0.0, 0.5]),
    max_post_steps=st.sampled_from([0, 1, 3, 16]),
    min_unmask=st.sampled_from([1, 3, 8]),
    max_tokens=st.integers(1, 40) | st.just(LONGEST_ANSWER),  # long ones outgrow what was there when they began
    n=st.sampled_from([1, 1, 1, 2, 3]),
    ignore_eos=st.booleans(),
    seed=st.just(0),
)


def prompt_of(tail: int, shared: int, length: int) -> tuple[int, ...]:
    """Equal `shared` tokens, then tokens of its own."""
    return tuple([5 + at % 7 for at in range(min(shared, length))] + [tail % 30 + 1] * (length - min(shared, length)))


def settle(engine: FakeEngine, requests: dict[int, Request], aborted: set[int], block_length: int) -> None:
    """Runs the engine until it is idle, and compares every answer with the plain loop's."""
    engine.drain()
    assert requests.keys() == engine.completions.keys() | engine.failures.keys()
    for id, request in requests.items():
        if request.prompt[0] == BROKEN and id not in aborted:
            assert isinstance(engine.failures[id].error, NumericalError)
            continue
        if id in engine.failures:
            continue
        completion = engine.completions[id]
        assert len(completion.choices) == request.params.n
        for number, choice in enumerate(completion.choices):
            whole = alone(request.prompt, request.params, block_length, number) if request.prompt[0] != BROKEN else []
            if choice.finish_reason == "abort":
                assert id in aborted and choice.token_ids == whole[: len(choice.token_ids)]
            else:
                assert choice.token_ids == whole


class Schedules(RuleBasedStateMachine):
    """Requests come, go, wait, lose their pages and fail, in any order."""

    @initialize(
        block_length=st.sampled_from([1, 8, 16, 32]),
        running=st.integers(1, 5),
        budget=st.sampled_from([1, 40, 100]),
        spare=st.integers(0, 8),
        share=st.booleans(),
    )
    def start(self, block_length: int, running: int, budget: int, spare: int, share: bool) -> None:
        page = page_length(block_length)
        pages = -(-(LONGEST_PROMPT + LONGEST_ANSWER + block_length) // page) + spare
        chosen = EngineSettings(max_running=running, forward_tokens=budget, prefix_cache=share)
        self.block_length = block_length
        self.engine = FakeEngine(chosen, block_length, pages)
        self.requests: dict[int, Request] = {}
        self.aborted: set[int] = set()

    @rule(
        tail=st.integers(0, 3),
        shared=st.sampled_from([0, 32, 70, 100]),
        length=st.integers(1, LONGEST_PROMPT),
        params=PARAMS,
        patience=st.sampled_from([None, None, 3.0]),
        events=st.booleans(),
    )
    def submit(
        self, tail: int, shared: int, length: int, params: SamplingParams, patience: float | None, events: bool
    ) -> None:
        id = len(self.requests)
        deadline = None if patience is None else self.engine.time + patience
        request = Request(prompt_of(tail, shared, length), params, id, deadline, events)
        self.engine.scheduler.submit(request)
        self.requests[id] = request
        if patience is not None:
            self.aborted.add(id)

    @rule(length=st.integers(1, LONGEST_PROMPT), params=PARAMS)
    def submit_broken(self, length: int, params: SamplingParams) -> None:
        id = len(self.requests)
        self.requests[id] = Request((BROKEN,) * length, params, id)
        self.engine.scheduler.submit(self.requests[id])

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.requests:
            id = data.draw(st.sampled_from(sorted(self.requests)))
            self.aborted.add(id)
            self.engine.scheduler.abort(id)

    @rule(steps=st.integers(1, 8))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.time += 0.1
            self.engine.step()
            self.engine.scheduler.check()

    @rule()
    def new_weights(self) -> None:
        root = self.engine.scheduler.root
        self.engine.scheduler.root = type(root)(int(root.weights) + 1, root.block_length)

    @invariant()
    def balanced(self) -> None:
        if hasattr(self, "engine"):
            self.engine.scheduler.check()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            settle(self.engine, self.requests, self.aborted, self.block_length)


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(stateful_step_count=25)


@pytest.mark.slow
def test_100_000_operations_leave_nothing_behind() -> None:
    """Random operations on one engine with few pages; the requests are compared as they end."""
    draw = random.Random(0)
    block, page = 8, 32
    engine = FakeEngine(EngineSettings(max_running=6, forward_tokens=96), block, pages=16)
    requests: dict[int, Request] = {}
    answers: dict[tuple, list[int]] = {}
    compared = 0
    for operation in range(100_000):
        kind = draw.random()
        if kind < 0.08 and len(requests) - len(engine.completions) - len(engine.failures) < 40:
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
            deadline = engine.time + draw.uniform(0, 50) if draw.random() < 0.1 else None
            id = len(requests)
            requests[id] = Request(prompt, params, id, deadline, events=False)
            engine.scheduler.submit(requests[id])
        elif kind < 0.1 and requests:
            engine.scheduler.abort(draw.randrange(max(0, len(requests) - 40), len(requests)))
        else:
            engine.time += 1
            engine.step()
        engine.forwards.clear()
        engine.events.clear()
        if operation % 1000 == 999:
            engine.scheduler.check()
        while compared in engine.completions or compared in engine.failures:
            request = requests[compared]
            for number, choice in enumerate(
                engine.completions[compared].choices if compared in engine.completions else ()
            ):
                key = (request.prompt, tuple(vars_of(request.params)), number)
                if request.prompt[0] != BROKEN:
                    whole = answers.setdefault(key, alone(request.prompt, request.params, block, number))
                    assert choice.token_ids == whole[: len(choice.token_ids)]
                    assert choice.finish_reason == "abort" or choice.token_ids == whole
            compared += 1
    engine.drain()
    statistics = engine.scheduler.statistics()
    assert statistics.preempted > 100 and statistics.failed > 50 and statistics.cached_tokens > 10_000
    assert statistics.finished + statistics.aborted + statistics.failed == len(requests)
    scheduler = engine.scheduler
    assert not scheduler._answers and not scheduler._running and not len(scheduler._admission)
    assert len(scheduler._deadlines) < len(requests) / 10, "deadlines of requests that have ended must be forgotten"
    assert statistics.pages.held == 0 and page * statistics.pages.pages == 512


def vars_of(params: SamplingParams) -> list[object]:
    fields = ("threshold", "edit_threshold", "min_unmask", "max_tokens", "ignore_eos", "mbe_blocks")
    return [getattr(params, name) for name in fields]


# What is computed, and what isn't.


def engine_of(block_length: int = 32, pages: int = 400, **chosen: int | bool) -> FakeEngine:
    return FakeEngine(EngineSettings(**chosen), block_length, pages)  # type: ignore[arg-type]


def prefilled(engine: FakeEngine) -> int:
    return engine.scheduler.statistics().prefill_tokens


def mixed(length: int, start: int = 0) -> list[int]:
    return [(start + at * at) % 37 for at in range(length)]


def test_a_prompt_of_4096_tokens_takes_three_forwards_and_the_first_steps_own() -> None:
    engine = engine_of()
    completion = engine.answer(mixed(4096), max_tokens=1)
    assert engine.forwards[:4] == [[(1024, 1024)], [(1024, 1024)], [(1024, 1024)], [(1024, 1056)]]
    assert completion.stats.prefill_forwards == 3
    assert completion.stats.forwards == len(engine.forwards) - 3


@pytest.mark.parametrize(("block_length", "again"), [(32, 0), (16, 16), (8, 24), (1, 31)])
def test_the_same_prompt_again_reads_at_most_what_fills_no_page(block_length: int, again: int) -> None:
    engine = engine_of(block_length)
    prompt = mixed(4096 + 31)
    engine.answer(prompt, id=1, max_tokens=1)
    before = prefilled(engine)
    completion = engine.answer(prompt, id=2, max_tokens=1)
    assert completion.stats.cached_tokens == 4096
    assert prefilled(engine) - before == again < 32


@pytest.mark.parametrize("editing", ["off", 0.0])
def test_the_second_turn_of_a_chat_reads_at_most_two_blocks_of_the_first(editing: object) -> None:
    engine = engine_of()
    question = mixed(75)
    first = engine.answer(question, id=1, max_tokens=330, edit_threshold=editing)
    before, known = prefilled(engine), len(question) + len(first.token_ids)
    history = question + first.token_ids + mixed(64, start=3)
    engine.answer(history, id=2, max_tokens=1)
    assert engine.completions[2].stats.cached_tokens > known - 3 * 32
    new = len(history) // 32 * 32 - known // 32 * 32  # whole blocks that the first turn never had
    assert prefilled(engine) - before <= new + 2 * 32


def test_a_converged_block_costs_no_extra_forward_and_an_unread_one_is_read_with_the_next_step() -> None:
    engine = engine_of()
    completion = engine.answer(mixed(32), max_tokens=96, edit_threshold=0.5, max_post_steps=16, ignore_eos=True)
    assert completion.stats.forwards == len(engine.forwards), "every forward is a step of the answer"
    assert completion.stats.prefill_forwards == 0
    assert set(engine.forwards[0]) == {(32, 64)}
    engine = engine_of()
    engine.answer(mixed(32), max_tokens=96, edit_threshold="off", threshold=0.0, ignore_eos=True)
    assert engine.forwards == [[(32, 64)]] * 3


def test_four_answers_to_one_prompt_read_it_once() -> None:
    engine = engine_of()
    completion = engine.answer(mixed(2048), max_tokens=40, n=4, seed=1)
    assert len(completion.choices) == 4
    assert [choice.stats.cached_tokens for choice in completion.choices] == [0, 2048, 2048, 2048]
    # The first block of each answer may have to be read for the second; the prompt once.
    assert 2048 <= prefilled(engine) <= 2048 + 4 * 32
    assert engine.forwards[:2] == [[(1024, 1024)], [(1024, 1056)]]
    assert [span for _, span in engine.forwards[2]][1:] == [32, 32, 32]


def test_a_shared_system_prompt_is_read_once_by_32_requests() -> None:
    engine = engine_of(max_running=32)
    system = mixed(1024)
    for id in range(32):
        engine.scheduler.submit(Request((*system, *mixed(32, start=id + 1)), SamplingParams(max_tokens=1), id))
    engine.drain()
    assert prefilled(engine) == 1024 + 32 * 32
    without = engine_of(max_running=32, pages=1200, prefix_cache=False)
    for id in range(4):
        without.scheduler.submit(Request((*system, *mixed(32, start=id + 1)), SamplingParams(max_tokens=1), id))
    without.drain()
    assert prefilled(without) == 4 * (1024 + 32)


def test_who_waits_for_a_prompt_lets_others_pass() -> None:
    engine = engine_of(forward_tokens=64)
    shared, other = tuple(mixed(640)), tuple(mixed(32, start=9))
    for id, prompt in enumerate([shared, shared, other]):
        engine.scheduler.submit(Request(prompt, SamplingParams(max_tokens=1, edit_threshold="off", threshold=0), id))
    for _ in range(3):
        engine.step()
    assert list(engine.completions) == [2]
    engine.drain()
    assert engine.completions[1].stats.cached_tokens == 640


def test_if_the_one_who_reads_is_aborted_another_does() -> None:
    engine = engine_of(forward_tokens=64)
    prompt = tuple(mixed(640))
    for id in (0, 1):
        engine.scheduler.submit(Request(prompt, SamplingParams(max_tokens=1), id))
    for _ in range(3):
        engine.step()
    engine.scheduler.abort(0)
    engine.drain()
    assert engine.completions[1].stats.cached_tokens == 192, "what the first had read by then"
    assert engine.completions[1].token_ids == alone(prompt, SamplingParams(max_tokens=1), 32)


def test_blocks_come_first_then_prompts_and_a_long_one_stops_nobody() -> None:
    engine = engine_of(forward_tokens=128)
    slow = SamplingParams(max_tokens=320, threshold=2, edit_threshold="off", ignore_eos=True)
    for id in range(3):
        engine.scheduler.submit(Request(tuple(mixed(32, start=id)), slow, id))
    engine.step()
    engine.scheduler.submit(Request(tuple(mixed(960, start=20)), slow, 3))
    for _ in range(29):
        engine.step()
    assert all(forward[:3] == [(0, 32)] * 3 for forward in engine.forwards[1:30])
    assert all(forward[3] == (32, 32) for forward in engine.forwards[1:30]), "what the others leave of 128 positions"
    engine.step()
    assert engine.forwards[30][3] == (32, 64)


def test_with_less_than_a_block_left_the_oldest_prompt_still_gets_one() -> None:
    engine = engine_of(forward_tokens=1, max_running=3)
    for id in range(3):
        engine.scheduler.submit(Request(tuple(mixed(96, start=id)), SamplingParams(max_tokens=1), id))
    engine.step()
    engine.step()
    engine.step()
    assert engine.forwards == [[(32, 32)], [(32, 32)], [(32, 64), (32, 32)]]
    engine.drain()


# Memory.


def test_the_youngest_gives_way_and_goes_on_with_the_same_tokens() -> None:
    engine = engine_of(pages=6, max_running=4)
    params = SamplingParams(max_tokens=96, threshold=2, edit_threshold="off", ignore_eos=True)
    for id in range(3):
        engine.scheduler.submit(Request(tuple(mixed(32, start=id)), params, id))
    engine.drain()
    assert engine.scheduler.statistics().preempted
    for id in range(3):
        assert engine.completions[id].token_ids == alone(tuple(mixed(32, start=id)), params, 32)
        assert engine.completions[id].stats.forwards == 96
    assert list(engine.completions) == [0, 1, 2]


def test_a_request_that_all_pages_cant_hold_is_refused() -> None:
    engine = engine_of(pages=3)
    fits = Request(tuple(mixed(65)), SamplingParams(max_tokens=31), 1)
    engine.scheduler.submit(fits)
    with pytest.raises(InvalidInput, match=r"65 tokens and max_tokens 32 need 4 pages, and there are 3.* 96 tokens"):
        engine.scheduler.submit(Request(tuple(mixed(65)), SamplingParams(max_tokens=32), 2))
    engine.drain()
    assert len(engine.completions[1].token_ids) <= 31


def test_cached_pages_make_room() -> None:
    engine = engine_of(pages=4)
    for id in range(10):
        prompt = mixed(64, start=id)
        assert engine.answer(prompt, id=id, max_tokens=20).token_ids == alone(
            tuple(prompt), SamplingParams(max_tokens=20), 32
        )
    assert engine.scheduler.statistics().pages.evicted


# Ends.


def test_an_abort_returns_pages_at_once_and_tells_what_there_is() -> None:
    engine = engine_of()
    params = SamplingParams(max_tokens=96, threshold=2, edit_threshold="off", ignore_eos=True, n=2, seed=0)
    engine.scheduler.submit(Request(tuple(mixed(40)), params, 7))
    for _ in range(34):
        engine.step()
    engine.scheduler.abort(7)
    engine.scheduler.abort(7)
    engine.scheduler.abort(8)
    assert engine.scheduler.statistics().pages.held == 0 and engine.scheduler.busy
    engine.step()
    completion = engine.completions[7]
    assert completion.finish_reason == "abort"
    assert completion.token_ids == alone(tuple(mixed(40)), params, 32)[:24]
    assert not engine.scheduler.busy
    engine.scheduler.check(idle=True)


def test_a_choice_that_had_ended_keeps_its_reason() -> None:
    engine = engine_of(max_running=1)
    params = SamplingParams(max_tokens=5, edit_threshold="off", threshold=0, ignore_eos=True, n=2, seed=0)
    engine.scheduler.submit(Request(tuple(mixed(40)), params, 0))
    engine.step()
    engine.scheduler.abort(0)
    engine.step()
    assert [choice.finish_reason for choice in engine.completions[0].choices] == ["length", "abort"]
    assert [len(choice.token_ids) for choice in engine.completions[0].choices] == [5, 0]


def test_a_deadline_ends_who_runs_and_who_waits() -> None:
    engine = engine_of(max_running=1)
    params = SamplingParams(max_tokens=96, threshold=2, edit_threshold="off", ignore_eos=True)
    for id in range(2):
        engine.scheduler.submit(Request(tuple(mixed(40, start=id)), params, id, deadline=5.0))
    engine.step()
    engine.time = 5.0
    engine.step()
    assert [engine.completions[id].finish_reason for id in (0, 1)] == ["abort", "abort"]
    engine.scheduler.check(idle=True)


def test_what_goes_wrong_in_one_request_ends_that_request_alone() -> None:
    engine = engine_of()
    params = SamplingParams(max_tokens=40, n=2, seed=0)
    for id, first in enumerate([1, BROKEN, 2]):
        engine.scheduler.submit(Request((first, *mixed(40)), params, id))
    engine.step()

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a policy of its own")

    for sequence in engine.scheduler._answers[2].choices[1:]:
        sequence.run.advance = fail  # type: ignore[method-assign]
    engine.drain()
    assert isinstance(engine.failures[1].error, NumericalError)
    assert isinstance(engine.failures[2].error, ZeroDivisionError)
    assert list(engine.completions) == [0]
    assert [choice.token_ids for choice in engine.completions[0].choices] == [
        alone((1, *mixed(40)), params, 32, choice) for choice in (0, 1)
    ]
    assert engine.scheduler.statistics().failed == 2


def test_the_queue_has_a_limit_beyond_the_places() -> None:
    engine = engine_of(max_running=2, queue_limit=1)
    for id in range(3):
        engine.scheduler.submit(Request(tuple(mixed(40, start=id)), SamplingParams(), id))
    with pytest.raises(QueueFull, match="queue_limit is 1"):
        engine.scheduler.submit(Request((1,), SamplingParams(), 3))
    engine.step()
    with pytest.raises(QueueFull):
        engine.scheduler.submit(Request((1,), SamplingParams(), 3))
    engine.drain()
    engine.scheduler.submit(Request((1,), SamplingParams(), 3))
    engine.drain()


def test_an_id_in_use_is_refused_and_free_again_afterwards() -> None:
    engine = engine_of()
    engine.scheduler.submit(Request((1, 2), SamplingParams(max_tokens=3), 5))
    with pytest.raises(InvalidInput, match="request id 5 is in use"):
        engine.scheduler.submit(Request((1, 2), SamplingParams(), 5))
    engine.drain()
    engine.completions.clear()
    assert engine.answer([1, 2], id=5, max_tokens=3).choices


def test_an_idle_check_sees_a_request_and_a_lost_page() -> None:
    engine = engine_of()
    engine.scheduler.submit(Request((1, 2), SamplingParams(), 0))
    with pytest.raises(EngineError, match="1 requests are there"):
        engine.scheduler.check(idle=True)
    engine.drain()
    engine.scheduler._cache.allocate(1)
    with pytest.raises(EngineError, match="the requests account for 0"):
        engine.scheduler.check(idle=True)


def test_new_weights_share_nothing_with_the_old() -> None:
    engine = engine_of()
    prompt = mixed(64)
    engine.answer(prompt, id=1, max_tokens=1)
    root = engine.scheduler.root
    engine.scheduler.root = type(root)(int(root.weights) + 1, root.block_length)
    assert engine.answer(prompt, id=2, max_tokens=1).stats.cached_tokens == 0
    assert engine.answer(prompt, id=3, max_tokens=1).stats.cached_tokens == 64


def test_without_events_only_frozen_blocks_and_the_end_are_told() -> None:
    params = SamplingParams(max_tokens=64, threshold=2, edit_threshold="off", ignore_eos=True)
    told = []
    for events in (True, False):
        engine = engine_of()
        engine.scheduler.submit(Request((1,) * 32, params, 0, events=events))
        engine.drain()
        told.append(engine.events)
    assert [event.frozen for event in told[1]] == [True, True]
    assert told[1][:1] == [event for event in told[0] if event.frozen][:1]
    assert len(told[0]) == engine.completions[0].stats.forwards == 64
    assert EOS not in {token for event in told[0] for token in event.masked}
