"""An engine without a model for the tests of its process, and that process: `python fake_engine.py FD`.

A prompt says what becomes of it: (blocks, steps a block) is answered; the codes below end it in another way.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence

from redraft.engine.async_engine import AsyncEngine, spawn
from redraft.engine.messages import EngineSpec
from redraft.engine.pages import PagePool
from redraft.engine.prefix_cache import PrefixCache
from redraft.engine.request import Failure, Request
from redraft.engine.statistics import EngineStatistics, Meter
from redraft.engine.worker import main
from redraft.errors import CheckpointError, EngineError, NumericalError, QueueFull
from redraft.types import CanvasEvent, Choice, Completion, FinishReason, Stats, TokenLogprob

REFUSED, SICK, BUG, CRASH, SLEEP, LARGE, LAWLESS = range(1000, 1007)
L = 4


class FakeEngine:
    """Every request makes a step at each `step`. looked: how often the loop asked whether there is work."""

    block_length, context_length = L, 128

    def __init__(self, spec: EngineSpec) -> None:
        if spec.model == "missing":
            raise CheckpointError("missing is not a folder")
        if spec.model == "broken":
            raise ZeroDivisionError("a bug")
        self.spec = spec
        self.running: dict[int, tuple[Request, int]] = {}
        self.aborted: list[int] = []
        self.looked = self.steps = 0
        self._outputs: list[CanvasEvent | Failure] = []

    @property
    def busy(self) -> bool:
        self.looked += 1
        return bool(self.running or self._outputs)

    def submit(self, request: Request) -> None:
        if request.prompt[0] == REFUSED:
            raise QueueFull("3 answers wait")
        self.running[request.id] = request, 0

    def abort(self, request: int) -> None:
        self.aborted.append(request)
        if request in self.running:
            found, done = self.running.pop(request)
            self._outputs.append(event(found, done, reason="abort"))

    def step(self) -> list[CanvasEvent | Failure]:
        self.steps += 1
        for request, done in list(self.running.values()):
            outcome = SPECIAL.get(request.prompt[0], answer)(request, done)
            if isinstance(outcome, CanvasEvent) and (request.events or outcome.frozen):
                self._outputs.append(outcome)
            if isinstance(outcome, Failure):
                self._outputs.append(outcome)
            self.running[request.id] = request, done + 1
            if isinstance(outcome, Failure) or outcome.completion:
                del self.running[request.id]
        outputs, self._outputs = self._outputs, []
        return outputs

    def statistics(self) -> EngineStatistics:
        return Meter().statistics(os.getpid(), len(self.running), PrefixCache(PagePool(4), 32).statistics())

    def check(self, *, idle: bool = False) -> None:
        if any(request.prompt[0] == LAWLESS for request, _ in self.running.values()):
            raise EngineError(f"a page is lost, idle={idle}")


def event(request: Request, done: int, reason: FinishReason | None = None, size: int = 0) -> CanvasEvent:
    """Step number `done` of a request; the text says which block froze, and at the end how it was asked for."""
    blocks, steps = request.prompt if len(request.prompt) == 2 else (1, 1)
    block, step = divmod(done, steps)
    frozen = reason == "abort" or step == steps - 1
    text = repr((request.params, request.deadline)) if done + 1 == blocks * steps else f"{block} " if frozen else ""
    completion = None
    if reason or done + 1 == blocks * steps:
        logprobs = [TokenLogprob(1, -0.5, ((1, -0.5), (2, -1.25)))] * (1 + size)
        choice = Choice(text, [block], reason or "length", Stats(forwards=done + 1), logprobs)
        completion = Completion(list(request.prompt), [choice])
    tokens, confidence, edited = (block,) * L, (0.1, 0.2, 0.3, 1.0), {3: block}
    return CanvasEvent(
        request.id, 0, step, block, tokens, confidence, (1,), (0,), edited,
        frozen=frozen, text_delta=text, completion=completion,
    )  # fmt: skip


def answer(request: Request, done: int) -> CanvasEvent:
    return event(request, done)


def sick(request: Request, done: int) -> Failure:
    return Failure(request.id, NumericalError("logits are not finite"))


def bug(request: Request, done: int) -> Failure:
    return Failure(request.id, KeyError("edits"))


def crash(request: Request, done: int) -> CanvasEvent:
    raise ZeroDivisionError("the step failed")


def sleep(request: Request, done: int) -> CanvasEvent:
    time.sleep(60)
    return event(request, done)


def large(request: Request, done: int) -> CanvasEvent:
    return event(request, done, size=100)


SPECIAL: dict[int, Callable[[Request, int], CanvasEvent | Failure]] = {
    SICK: sick, BUG: bug, CRASH: crash, SLEEP: sleep, LARGE: large,
    LAWLESS: lambda request, done: event(Request((10**6, 2), request.params, request.id), done),
}  # fmt: skip


async def over_process(spec: EngineSpec = EngineSpec(), command: Sequence[str] = ()) -> AsyncEngine:
    """An AsyncEngine over this file as a process, or over another command."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = spawn(command or (sys.executable, __file__), theirs)
    return await AsyncEngine.over(process, ours, spec)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], FakeEngine))
