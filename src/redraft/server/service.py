"""The engine as the routes use it: ready or not, within limits, counted, and stopped in order."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from redraft.engine.async_engine import AsyncEngine, EngineSpec
from redraft.engine.defaults import generation_config, sampling_defaults
from redraft.engine.named import Modes, modes_of
from redraft.errors import EngineError, InvalidInput, RedraftError
from redraft.model.folder import checkpoint_folder
from redraft.server.errors import ApiError, invalid
from redraft.server.logs import log
from redraft.server.metrics import Metrics
from redraft.server.prompts import Prompts
from redraft.server.settings import ServerSettings
from redraft.text.tokenizer import Tokenizer
from redraft.types import CanvasEvent, Completion, SamplingParams

Starter = Callable[[EngineSpec], Awaitable[AsyncEngine]]


class Service:
    """One model. `load` starts its engine, `drain` and `close` end it.

    name: what requests call it. created: when it was started, in seconds of Unix time. prompts: its tokenizer.
    defaults: what its `generation_config.json` proposes. modes: those that have names of their own.
    draining: it takes no more requests.
    """

    def __init__(
        self,
        settings: ServerSettings,
        prompts: Prompts,
        name: str,
        defaults: dict[str, Any],
        start: Starter,
        modes: Modes | None = None,
    ) -> None:
        self.settings, self.prompts, self.name, self.defaults = settings, prompts, name, defaults
        self.modes: Modes = modes or {}
        self.created = int(time.time())
        self.metrics = Metrics()
        self.draining = False
        self._start = start
        self._engine: AsyncEngine | None = None
        self._answers = 0  # of the requests in progress
        self._live: set[str] = set()
        self._numbers = itertools.count()
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurried = asyncio.Event()

    @classmethod
    def of(cls, settings: ServerSettings, start: Starter = AsyncEngine.start) -> Service:
        """Reads what a checkpoint folder says besides its weights. Raises RedraftError for one that can't be served."""
        folder = checkpoint_folder(settings.model)
        defaults = sampling_defaults(generation_config(folder))
        prompts = Prompts(Tokenizer.load(folder))
        modes = modes_of(folder, settings.modes)
        return cls(settings, prompts, settings.served_name(Path(folder)), defaults, start, modes)

    async def load(self) -> None:
        """Starts the engine. Raises what the loading raised."""
        began = time.monotonic()
        self._engine = await self._start(self.settings.spec())
        log.info("the model is loaded", extra={"model": self.name, "seconds": round(time.monotonic() - began, 3)})

    @property
    def trouble(self) -> str | None:
        """Why there is no answer to be had for good or bad, None when there is."""
        if self._engine is None:
            return "the model is being loaded"
        return None if self._engine.alive else str(self._engine.error)

    @property
    def engine(self) -> AsyncEngine:
        """Raises ApiError 503 while there is none, and when it takes no more requests."""
        if self.draining:
            raise ApiError(503, "the server is being stopped", code="shutting_down")
        if self._engine is None:
            raise ApiError(503, "the model is being loaded; try again soon", code="loading")
        if self._engine.error is not None:
            raise ApiError(503, str(self._engine.error), code="engine_error")
        return self._engine

    def require_model(self, name: str | None) -> None:
        if name not in (None, self.name):
            raise ApiError(
                404, f"the model {name[:80]!r} is not served here; this is {self.name!r}", param="model",
                code="model_not_found",
            )  # fmt: skip

    def fit(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, *, open_end: bool, param: str
    ) -> SamplingParams:
        """The settings, with `max_tokens` that the context leaves when the request named none (open_end). Raises
        ApiError when a prompt doesn't fit, or the answers together are more than one request may ask for."""
        context, longest = self.engine.context_length, max(map(len, prompts))
        if min(map(len, prompts)) == 0:
            raise invalid("the prompt is empty; it must hold at least one token", param)
        wanted = params.max_tokens
        if open_end:
            wanted = max(1, min(context - longest, self.settings.max_request_tokens // (params.n * len(prompts))))
        if longest + wanted > context:
            raise invalid(
                f"a prompt of {longest} tokens and max_tokens {wanted} exceed the context of {context} tokens; "
                f"max_tokens can be at most {max(0, context - longest)}", param, "context_length_exceeded",
            )  # fmt: skip
        total, limit = wanted * params.n * len(prompts), self.settings.max_request_tokens
        if total > limit:
            raise invalid(
                f"{len(prompts) * params.n} answers of max_tokens {wanted} are {total} tokens; one request may ask for "
                f"{limit}", "max_tokens", "too_many_tokens",
            )  # fmt: skip
        return replace(params, max_tokens=wanted)

    def require_room(self, answers: int) -> None:
        """Raises ApiError 429 when so many more answers would be too many."""
        room = self.settings.max_running + self.settings.queue_limit
        if self._answers + answers > room:
            raise ApiError(
                429,
                f"{self._answers} answers are in progress and {answers} more would be too many; {room} may be",
                code="queue_full",
            )

    async def events(
        self, prompt: Sequence[int], params: SamplingParams, *, steps: bool
    ) -> AsyncGenerator[tuple[CanvasEvent, float], None]:
        """The events of one prompt, each with the seconds since it was asked; steps: those between frozen blocks too.
        The last one has the completion. Raises RedraftError when the engine refuses or fails, and ApiError: 429 when
        too many wait, 503 when the server stops, 504 when the time is over (in these two after the text there is)."""
        engine = self.engine
        self.require_room(params.n)
        began = last = time.monotonic()
        deadline = began + self.settings.request_seconds
        name = f"request {next(self._numbers)}"
        self._enter(name, params.n)
        frozen: dict[int, float] = {}
        try:
            async with aclosing(engine.stream(prompt, params, name, deadline, steps)) as stream:
                async for event in stream:
                    last = time.monotonic()
                    if event.frozen:
                        self._time(frozen, event.choice, began, last)
                    completion = event.completion
                    if completion is None:
                        yield event, last - began
                        continue
                    self.metrics.completed(completion)
                    if all(choice.finish_reason != "abort" for choice in completion.choices):
                        yield event, last - began
                        return
                    yield replace(event, completion=None), last - began
                    raise self._cut(last >= deadline)
        finally:
            self._leave(name, params.n)

    async def answer(self, prompt: Sequence[int], params: SamplingParams) -> Completion:
        """The completion of `events` alone."""
        async with aclosing(self.events(prompt, params, steps=False)) as events:
            async for event, _ in events:
                if event.completion is not None:
                    return event.completion
        raise EngineError("the stream has ended without a completion")

    async def statistics_page(self) -> bytes:
        """Metrics as text."""
        if self._engine is not None and self._engine.alive:
            with suppress(RedraftError):
                self.metrics.engine.latest = await self._engine.statistics()
        return self.metrics.page()

    async def drain(self) -> None:
        """Takes nothing new, and waits until the running answers have ended; after `drain_seconds`, or `hurry`, it
        ends them, and their clients are told."""
        self.draining = True
        ends = [asyncio.create_task(event.wait()) for event in (self._idle, self._hurried)]
        try:
            await asyncio.wait(ends, timeout=self.settings.drain_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
        for name in list(self._live):
            if self._engine is not None and self._engine.alive:
                with suppress(EngineError, InvalidInput):
                    await self._engine.abort(name)

    def hurry(self) -> None:
        """A drain waits no longer."""
        self._hurried.set()

    async def close(self) -> None:
        self.draining = True
        self.prompts.close()
        if self._engine is not None:
            await self._engine.stop()

    def _cut(self, late: bool) -> ApiError:
        if late:
            limit = self.settings.request_seconds
            return ApiError(504, f"the answer took more than {limit:g} seconds and was cut", code="timeout")
        return ApiError(503, "the server is being stopped and the answer was cut", code="shutting_down")

    def _time(self, frozen: dict[int, float], choice: int, began: float, now: float) -> None:
        if choice in frozen:
            self.metrics.between_blocks.observe(now - frozen[choice])
        elif not frozen:
            self.metrics.first_block.observe(now - began)
        frozen[choice] = now

    def _enter(self, name: str, answers: int) -> None:
        self._answers += answers
        self._live.add(name)
        self._idle.clear()

    def _leave(self, name: str, answers: int) -> None:
        self._answers -= answers
        self._live.discard(name)
        if not self._live:
            self._idle.set()
