"""The loop of the engine's process, spoken to over a bare socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from tests.engine.fake_engine import CRASH, LARGE, REFUSED, SICK, FakeEngine

from redraft.engine import messages
from redraft.engine.messages import (
    Abort,
    Answer,
    Ask,
    EngineSpec,
    Fatal,
    Outputs,
    Problem,
    Ready,
    Start,
    Stop,
    Submit,
    pack,
)
from redraft.engine.worker import Channel, Disconnected, run
from redraft.errors import EngineError
from redraft.types import SamplingParams


class Caller:
    """The other end: `heard` are the messages so far."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def say(self, *said: messages.ToWorker) -> None:
        self.connection.sendall(b"".join(map(pack, said)))

    def hear(self) -> messages.FromWorker:
        length = messages.body_length(self.exactly(messages.HEADER))
        return messages.decode_from_worker(self.exactly(length))

    def exactly(self, count: int) -> bytes:
        data = self.connection.recv(count, socket.MSG_WAITALL)
        assert len(data) == count
        return data


def submit(number: int, *prompt: int, events: bool = True) -> Submit:
    return Submit(number, prompt, SamplingParams(), None, events)


@contextmanager
def worker(engine: FakeEngine | None = None) -> Iterator[tuple[Caller, FakeEngine, list[BaseException]]]:
    """A started loop in a thread, whose errors are collected."""
    engine = engine or FakeEngine(EngineSpec())
    ended: list[BaseException] = []
    ours, theirs = socket.socketpair()

    def loop() -> None:
        try:
            run(Channel(theirs), lambda spec: engine)
        except (Disconnected, ArithmeticError, RuntimeError) as error:
            ended.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    with ours, theirs:
        caller = Caller(ours)
        caller.say(Start(EngineSpec()))
        try:
            yield caller, engine, ended
        finally:
            ours.shutdown(socket.SHUT_RDWR)
            thread.join(10)
    assert not thread.is_alive()


def test_all_events_of_a_step_come_in_one_message() -> None:
    with worker() as (caller, engine, _):
        assert caller.hear() == Ready(engine.block_length, engine.context_length)
        caller.say(submit(0, 2, 3), submit(1, 2, 3), submit(2, 1, 2))
        steps = [caller.hear() for _ in range(6)]
        assert [[event.request for event in step.events] for step in steps if isinstance(step, Outputs)] == [
            [0, 1, 2], [0, 1, 2], [0, 1], [0, 1], [0, 1], [0, 1]
        ]  # fmt: skip


def test_messages_in_pieces_and_in_heaps() -> None:
    with worker() as (caller, engine, _):
        caller.hear()
        for byte in pack(Ask(7, "statistics")):
            caller.connection.sendall(bytes([byte]))
        answer = caller.hear()
        assert isinstance(answer, Answer)
        assert (answer.number, answer.statistics) == (7, engine.statistics())
        caller.say(*(Ask(number, "check") for number in range(3000)))
        assert [caller.hear() for _ in range(3000)] == [Answer(number) for number in range(3000)]


def test_without_work_it_sleeps() -> None:
    with worker() as (caller, engine, _):
        caller.hear()
        caller.say(Ask(0, "check"))
        caller.hear()
        time.sleep(0.05)
        looked = engine.looked
        time.sleep(0.3)
        assert (engine.looked, engine.steps) == (looked, 0)


def test_while_it_works_it_hears() -> None:
    with worker() as (caller, engine, _):
        caller.hear()
        caller.say(submit(0, 10**6, 1, events=False), Ask(1, "statistics"), Abort(0), Abort(5))
        heard = iter(caller.hear, None)
        assert any(isinstance(message, Answer) for message in heard)
        last = next(m for m in heard if isinstance(m, Outputs) and m.events and m.events[-1].completion)
        completion = last.events[-1].completion
        assert completion and completion.finish_reason == "abort"
        assert engine.aborted == [0, 5]


def test_a_refusal_and_a_failure_are_of_one_request() -> None:
    with worker() as (caller, _, ended):
        caller.hear()
        caller.say(submit(0, REFUSED), submit(1, SICK), submit(2, 1, 1))
        found: dict[int, Any] = {}
        while len(found) < 3:
            message = caller.hear()
            assert isinstance(message, Outputs)
            found |= {failed.number: failed.problem.kind for failed in message.failures}
            found |= {event.request: event.text_delta for event in message.events}
        assert (found[0], found[1]) == ("QueueFull", "NumericalError")
        assert "SamplingParams" in found[2]
        assert not ended


def test_an_answer_too_large_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_FRAME", 4000)
    with worker() as (caller, _, ended):
        caller.hear()
        caller.say(submit(0, 1, 1), submit(1, LARGE), submit(2, 1, 1))
        outputs = [caller.hear() for _ in range(3)]
        events = [event.request for output in outputs if isinstance(output, Outputs) for event in output.events]
        failures = [failed for output in outputs if isinstance(output, Outputs) for failed in output.failures]
        assert events == [0, 2]
        assert [failed.number for failed in failures] == [1]
        assert "fewer logprobs" in failures[0].problem.message
        assert not ended


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        (submit(0, CRASH), ZeroDivisionError, "ZeroDivisionError: the step failed"),
        (Start(EngineSpec()), EngineError, "Start must be the first message, and there is an engine already"),
    ],
)
def test_what_ends_the_loop_is_told_first(said: messages.ToWorker, kind: type[Exception], message: str) -> None:
    with worker() as (caller, _, ended):
        caller.hear()
        caller.say(said)
        assert caller.hear() == Fatal(Problem("EngineError", message))
        caller.say(Ask(101, "check"))  # the connection outlives the loop: what was told can still be read
    assert [type(error) for error in ended] == [kind]


def closed(caller: Caller) -> None:
    caller.say(submit(0, 10**6, 1))
    caller.connection.close()


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (lambda caller: caller.say(submit(0, 10**6, 1), Stop()), None),
        (lambda caller: caller.connection.shutdown(socket.SHUT_RDWR), Disconnected),
        (closed, Disconnected),
    ],
)
def test_it_leaves_when_told_and_when_the_caller_is_gone(
    end: Callable[[Caller], None], expected: type[Exception] | None
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        caller = Caller(ours)
        caller.say(Start(EngineSpec()))
        end(caller)
        with pytest.raises(expected) if expected else nullcontext():
            run(Channel(theirs), FakeEngine)
