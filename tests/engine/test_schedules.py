"""Random schedules on small random networks in float64: requests of any settings come, wait, share pages, lose them,
are aborted, run out of time and fail, and forwards break down in the middle. Each request has exactly the tokens that
it has alone, and the pages balance."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from tests.engine.catalogue import LONGEST_ANSWER, LONGEST_PROMPT, PARAMS, PROMPTS
from tests.engine.oracle import WORLDS, World, require_as_alone, require_told

from redraft.engine import pages
from redraft.engine.engine import EngineSettings, Failure, Request
from redraft.model.network import LLaDA2
from redraft.types import CanvasEvent, Completion, SamplingParams

SCHEDULES = 7 * settings().max_examples
PAGES = [4, 8]  # positions at least. Short pages make short answers share and lose them


class Breakdown(Exception):
    """A forward has failed."""


@contextmanager
def broken(network: LLaDA2, part: str) -> Iterator[None]:
    """Forwards fail after this part of the network, or in the head."""

    def fail(*_: Any) -> None:
        raise Breakdown

    if part == "head":
        with patch.object(network, "head", fail):
            yield
    else:
        hook = network.get_submodule(part).register_forward_hook(fail)
        try:
            yield
        finally:
            hook.remove()


class Schedules(RuleBasedStateMachine):
    """reached: what all schedules together have met."""

    reached: ClassVar[Counter[str]] = Counter()

    @initialize(
        world=st.sampled_from(WORLDS),
        page=st.sampled_from(PAGES),
        running=st.sampled_from([1, 2, 4, 4]),
        budget=st.sampled_from([1, 8, 20, 1024]),
        spare=st.sampled_from([0, 0, 0, 1, 20]),
        share=st.sampled_from([True, True, True, False]),
    )
    def start(self, world: World, page: int, running: int, budget: int, spare: int, share: bool) -> None:
        pages.MIN_PAGE_LENGTH = page
        count = -(-(LONGEST_PROMPT + LONGEST_ANSWER) // pages.page_length(world.block_length)) + spare
        chosen = EngineSettings(max_running=running, forward_tokens=budget, pages=count, prefix_cache=share)
        self.world, self.time = world, 0.0
        self.engine = world.engine(chosen, now=lambda: self.time)
        self.requests: dict[int, Request] = {}
        self.ended: dict[int, Completion | Failure] = {}
        self.events: defaultdict[int, list[CanvasEvent]] = defaultdict(list)
        self.aborted: set[int] = set()

    @rule(
        several=st.lists(st.tuples(st.sampled_from(PROMPTS), st.sampled_from(PARAMS)), min_size=1, max_size=3),
        patience=st.sampled_from([None, None, None, 3.0]),
        events=st.booleans(),
    )
    def submit(self, several: list[tuple[Sequence[int], SamplingParams]], patience: float | None, events: bool) -> None:
        for prompt, params in several:
            id = len(self.requests)
            deadline = None if patience is None else self.time + patience
            self.requests[id] = Request(tuple(prompt), params, id, deadline, events)
            self.engine.submit(self.requests[id])
            if deadline is not None:
                self.aborted.add(id)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), params=st.sampled_from(PARAMS))
    def submit_the_same_prompt(self, data: st.DataObject, params: SamplingParams) -> None:
        prompt = data.draw(st.sampled_from([request.prompt for request in self.requests.values()]))
        self.submit([(prompt, params)], None, True)

    @precondition(lambda self: any(isinstance(found, Completion) for found in self.ended.values()))
    @rule(data=st.data(), params=st.sampled_from(PARAMS))
    def next_turn(self, data: st.DataObject, params: SamplingParams) -> None:
        """A prompt that goes on from an answer."""
        answers = [found for found in self.ended.values() if isinstance(found, Completion)]
        first = data.draw(st.sampled_from(range(len(answers))))
        history = [*answers[first].prompt_token_ids, *answers[first].token_ids, 5]
        if len(history) <= LONGEST_PROMPT:
            self.submit([(history, params)], None, False)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.requests)))
        self.aborted.add(id)
        self.engine.abort(id)
        self.engine.check()

    @rule(steps=st.integers(1, 9))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.time += 0.1
            self._step()

    @precondition(lambda self: self.requests)
    @rule(part=st.sampled_from(["layers.0", "layers.1", "norm", "head"]))
    def break_down(self, part: str) -> None:
        with suppress(Breakdown), broken(self.world.network, part):
            try:
                self._step()
            except Breakdown:
                self.reached["breakdowns"] += 1
                raise
        self.engine.check()

    @rule()
    def new_weights(self) -> None:
        self.engine.weights_changed()  # to the same, so that the answers stay

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        while self.engine.busy:
            self._step()
        self.engine.check(idle=True)
        assert self.ended.keys() == self.requests.keys()
        for id, request in self.requests.items():
            found = self.ended[id]
            require_as_alone(self.world, request, found, aborted=id in self.aborted)
            if request.events and isinstance(found, Completion):
                require_told(self.events[id], found)
        self._count()

    def _step(self) -> None:
        for output in self.engine.step():
            found = output if isinstance(output, Failure) else output.completion
            if isinstance(output, CanvasEvent):
                self.events[output.request].append(output)
            if found is not None:
                assert output.request not in self.ended, "a request ends once"
                self.ended[output.request] = found
        self.engine.check()

    def _count(self) -> None:
        statistics = self.engine.statistics()
        for name in ("finished", "aborted", "failed", "preempted", "edits"):
            self.reached[name] += getattr(statistics, name)
        self.reached["schedules"] += bool(self.requests)
        self.reached["evicted"] += statistics.pages.evicted
        self.reached["hits"] += statistics.cached_tokens > 0
        completions = [found for found in self.ended.values() if isinstance(found, Completion)]
        self.reached["stopped"] += sum(found.finish_reason == "stop" for found in completions)


def test_in_any_company_as_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MIN_PAGE_LENGTH", PAGES[0])  # put back at the end
    Schedules.reached.clear()
    run_state_machine_as_test(Schedules, settings=settings(max_examples=SCHEDULES, stateful_step_count=20))
    few = {name: count for name, count in Schedules.reached.items() if count < SCHEDULES // 40}
    assert not few, "what the schedules never come upon they don't test"
