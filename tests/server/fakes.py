"""A server on loopback over an engine that says what it is told to, so that what is tested is the server."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from redraft.decoding.stopping import Ending
from redraft.engine.async_engine import AsyncEngine, EngineSpec
from redraft.engine.pages import PagePool
from redraft.engine.prefix_cache import PrefixCache
from redraft.engine.request import Failure, Request
from redraft.engine.statistics import EngineStatistics, Meter
from redraft.engine.worker import Channel, Disconnected, run
from redraft.errors import InvalidInput, NumericalError, RedraftError
from redraft.model.folder import checkpoint_folder
from redraft.server.run import Server
from redraft.server.service import Service
from redraft.server.settings import ServerSettings
from redraft.text.detokenizer import Detokenizer
from redraft.text.tokenizer import Tokenizer
from redraft.types import CanvasEvent, Choice, Completion, Stats, TokenLogprob

L = 32
TOKENIZER = Tokenizer.load(checkpoint_folder(None))
HUMAN, END = TOKENIZER.control_id("<role>HUMAN</role>"), TOKENIZER.control_id("<|role_end|>")
MASK = TOKENIZER.control_id("<|mask|>")


class Parrot:
    """Answers with what the user said last (or with the whole prompt, if nobody is named), a block every two steps.

    Some messages are orders: "!sick" fails, "!crash" ends the engine, "!forever" never ends.
    gate: steps wait while it is cleared. aborted: numbers of requests. submitted: their prompts.
    """

    block_length, context_length = L, 1024

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.gate = threading.Event()
        self.gate.set()
        self.aborted: list[int] = []
        self.submitted: list[Request] = []
        self._running: dict[int, Answering] = {}
        self._outputs: list[CanvasEvent | Failure] = []
        self._meter = Meter()

    @property
    def busy(self) -> bool:
        return bool(self._running or self._outputs)

    def submit(self, request: Request) -> None:
        if any(token >= TOKENIZER.vocab_size for token in request.params.logit_bias or ()):
            raise InvalidInput("logit_bias must name ids that there are")
        self.submitted.append(request)
        self._running[request.id] = Answering(request)

    def abort(self, request: int) -> None:
        self.aborted.append(request)
        if request in self._running:
            self._outputs.append(self._running.pop(request).abort())

    def step(self) -> list[CanvasEvent | Failure]:
        while not self.gate.wait(0.01) and not self._outputs:
            if any(late(one.request) for one in self._running.values()):
                break
            return []
        for number, answering in list(self._running.items()):
            if late(answering.request):
                self.abort(number)
                continue
            output = answering.step()
            if isinstance(output, Failure) or output.frozen or answering.request.events:
                self._outputs.append(output)
            if isinstance(output, Failure) or output.completion is not None:
                del self._running[number]
        outputs, self._outputs = self._outputs, []
        return outputs

    def statistics(self) -> EngineStatistics:
        return self._meter.statistics(0, len(self._running), PrefixCache(PagePool(4), L).statistics())

    def check(self, *, idle: bool = False) -> None:
        """There are no pages."""


def late(request: Request) -> bool:
    return request.deadline is not None and time.monotonic() >= request.deadline


class Answering:
    """One request; its choices take turns, block by block."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.ids, self.order = said(list(request.prompt))
        n = request.params.n
        ends = set(request.params.stop_token_ids) | {END}
        self.endings = [
            Ending(
                max_tokens=request.params.max_tokens,
                end_ids=ends,
                stop=tuple(request.params.stop),
                stream=Detokenizer(TOKENIZER),
            )
            for _ in range(n)
        ]
        self.steps = [0] * n
        self.choice = 0

    def step(self) -> CanvasEvent | Failure:
        if self.order == "!sick":
            return Failure(self.request.id, NumericalError("logits are not finite"))
        if self.order == "!crash":
            raise ZeroDivisionError("the step failed")
        while self.endings[self.choice].reason is not None:
            self.choice = (self.choice + 1) % len(self.endings)
        choice, ending = self.choice, self.endings[self.choice]
        block, half = divmod(self.steps[choice], 2)
        self.steps[choice] += 1
        tokens = self._block(block)
        if self.order == "!forever":
            time.sleep(0.002)
            return self._event(choice, block, half + 1, tokens, frozen=bool(half), text="a" * half)
        if not half:
            shown = tokens[: L // 2] + [MASK] * (L - L // 2)
            return self._event(choice, block, 1, shown, masked=tuple(range(L // 2, L)), drafted=tuple(range(L // 2)))
        text = ending.push(tokens)
        self.choice = (choice + 1) % len(self.endings)
        return self._event(choice, block, 2, tokens, frozen=True, text=text, edited={0: MASK})

    def abort(self) -> CanvasEvent:
        texts = [(i, ending.abort()) for i, ending in enumerate(self.endings) if ending.reason is None]
        return self._event(texts[0][0], 0, 0, self._block(0), text=texts[0][1])

    def _block(self, block: int) -> list[int]:
        if self.order == "!forever":
            return TOKENIZER.encode("a") * L
        tokens = self.ids[block * L : block * L + L]
        return tokens + [END] * (L - len(tokens))

    def _event(self, choice: int, block: int, step: int, tokens: list[int], **more: Any) -> CanvasEvent:
        text = more.pop("text", "")
        done = all(ending.reason is not None for ending in self.endings)
        return CanvasEvent(
            self.request.id, choice, step, block, tuple(tokens), (0.5,) * L,
            text_delta=text, completion=self._completion() if done else None, **more,
        )  # fmt: skip

    def _completion(self) -> Completion:
        top = self.request.params.logprobs
        choices = []
        for index, ending in enumerate(self.endings):
            stats = Stats(
                forwards=self.steps[index],
                edits=self.steps[index] // 2,
                generated_tokens=len(ending.token_ids),
                prompt_tokens=len(self.request.prompt),
                cached_tokens=len(self.request.prompt) // L * L,
            )
            entries = [TokenLogprob(t, -0.5, ((t, -0.5), (5, -2.0))[: top or 0]) for t in ending.token_ids]
            found = None if top is None else entries
            choices.append(Choice(ending.text, ending.token_ids, ending.reason or "abort", stats, found))
        return Completion(list(self.request.prompt), choices)


def said(prompt: list[int]) -> tuple[list[int], str]:
    """What the user said last, as ids and as text."""
    if HUMAN in prompt:
        start = len(prompt) - prompt[::-1].index(HUMAN)
        prompt = prompt[start : prompt.index(END, start)]
    return prompt, TOKENIZER.decode(prompt, skip_special=False)


class InThread:
    """The engine's process, as a thread of this one."""

    def __init__(self, connection: socket.socket, engines: list[Parrot]) -> None:
        self._connection, self._engines = connection, engines
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        def load(spec: EngineSpec) -> Parrot:
            self._engines.append(Parrot(spec))
            return self._engines[-1]

        with self._connection, suppress(Disconnected, RedraftError, ZeroDivisionError):
            run(Channel(self._connection), load)

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def kill(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class Live:
    """A running server: where it is, and what is behind it."""

    def __init__(self, server: Server, service: Service, engines: list[Parrot]) -> None:
        self.server, self.service, self._engines = server, service, engines
        self.port: int = server.servers[0].sockets[0].getsockname()[1]

    @property
    def engine(self) -> Parrot:
        return self._engines[-1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def live(loads: bool = True, **settings: Any) -> Iterator[Live]:
    """A server over a parrot, in a thread. loads: False for a model that is never there."""
    engines: list[Parrot] = []

    async def start(spec: EngineSpec) -> AsyncEngine:
        if not loads:
            await asyncio.Event().wait()
        ours, theirs = socket.socketpair()
        return await AsyncEngine.over(InThread(theirs, engines), ours, spec)

    chosen: dict[str, Any] = {"port": 0, "drain_seconds": 0.5} | settings
    service = Service.of(ServerSettings(**chosen), start)
    server = Server(service)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: server.started and (not loads or service.trouble is None))
        yield Live(server, service, engines)
    finally:
        for engine in engines:
            engine.gate.set()
        server.should_exit = True
        thread.join(60)
    if thread.is_alive():
        raise AssertionError("the server didn't stop")


def until(condition: Any, seconds: float = 60.0) -> None:
    """Waits until it holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it took too long")
        time.sleep(0.01)
