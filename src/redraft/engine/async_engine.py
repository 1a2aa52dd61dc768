"""`AsyncEngine`: the engine in a process of its own, seen from asyncio.

The model computes in the other process, so that neither the forwards nor the streams of many requests wait for each
other's Python. Here there are one socket, one task that reads it, and a mailbox for each request.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Literal, Protocol

import msgspec

import redraft
from redraft.engine import messages
from redraft.engine.checks import token_ids
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
    TooLarge,
)
from redraft.engine.request import EngineSettings
from redraft.engine.statistics import EngineStatistics
from redraft.errors import EngineError, InvalidInput, RedraftError
from redraft.types import CanvasEvent, Completion, SamplingParams

__all__ = ["AsyncEngine", "EngineSettings", "EngineSpec"]

WORKER = (sys.executable, "-P", "-m", "redraft.engine.worker")
STEPS_KEPT = 64  # events of a request that wait for a slow reader and may be dropped for newer ones
CODE_SECONDS = 0.3  # from a closed socket until callers are told, with the exit code or without
LEAVE_SECONDS = 5.0  # for a process that has told its end to leave by itself; its traceback is under way
POLL_SECONDS = 0.01


class Process(Protocol):
    """What is asked of `subprocess.Popen`."""

    def poll(self) -> int | None: ...
    def kill(self) -> None: ...


class Mailbox:
    """The events of one request between the task that reads the socket and the one that reads the stream.

    Its memory is bounded however slow the reader is: what freezes a block, brings text or ends the request is kept (no
    more than the answer is long), and of the steps between them only the last `STEPS_KEPT`.
    """

    def __init__(self) -> None:
        self.over = False  # nothing more will come
        self._numbers = itertools.count()
        self._kept: deque[tuple[int, CanvasEvent]] = deque()
        self._steps: deque[tuple[int, CanvasEvent]] = deque(maxlen=STEPS_KEPT)
        self._error: RedraftError | None = None
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._kept) + len(self._steps)

    def put(self, event: CanvasEvent) -> None:
        self.over = event.completion is not None
        droppable = not (event.frozen or event.text_delta or self.over)
        (self._steps if droppable else self._kept).append((next(self._numbers), event))
        self._changed.set()

    def fail(self, error: RedraftError) -> None:
        """Comes after what is there already."""
        self.over, self._error = True, error
        self._changed.set()

    async def get(self) -> CanvasEvent:
        while True:
            waiting = [queue for queue in (self._kept, self._steps) if queue]
            if waiting:
                return min(waiting, key=lambda queue: queue[0][0]).popleft()[1]
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()


class AsyncEngine:
    """An engine in its own process; made by `start`, ended by `stop` or `async with`. For one event loop.

    error: why it takes no more requests, None while it does. block_length, context_length: of the model.
    A process that dies or fails is told to everyone who waits, as EngineError, and every later call fails at once.
    """

    def __init__(self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.block_length = self.context_length = 0
        self._process = process
        self._reader, self._writer = reader, writer
        self._problem: Problem | None = None
        self._numbers = itertools.count()
        self._mailboxes: dict[int, Mailbox] = {}
        self._named: dict[str, int] = {}
        self._questions: dict[int, asyncio.Future[Answer]] = {}
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._listening = asyncio.create_task(self._listen(), name="redraft engine")

    @classmethod
    async def start(cls, spec: EngineSpec | None = None) -> AsyncEngine:
        """Starts the process and waits until the model is loaded. Raises what the loading raised, by its message.

        To be called in the thread that goes on to run the event loop: on Linux the process ends with it.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = spawn(WORKER, theirs)
        except BaseException:
            ours.close()
            raise
        return await cls.over(process, ours, spec or EngineSpec())

    @classmethod
    async def over(cls, process: Process, connection: socket.socket, spec: EngineSpec) -> AsyncEngine:
        """An engine in a process that is there already and waits for its first message at the other end."""
        try:
            reader, writer = await asyncio.open_unix_connection(sock=connection)
        except BaseException:
            connection.close()
            process.kill()
            await exit_code(process)
            raise
        engine = cls(process, reader, writer)
        try:
            await engine._send(Start(spec))
            facts = await engine._ready
        except BaseException:
            await engine.stop(seconds=0 if engine.alive else LEAVE_SECONDS)
            raise
        engine.block_length, engine.context_length = facts.block_length, facts.context_length
        return engine

    @property
    def alive(self) -> bool:
        return self._problem is None

    @property
    def error(self) -> RedraftError | None:
        return self._problem.error() if self._problem else None

    async def stream(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams | None = None,
        request_id: str | None = None,
        deadline: float | None = None,
        events: bool = True,
    ) -> AsyncGenerator[CanvasEvent, None]:
        """Answers one prompt, step by step; the last event has the completion. Closing the stream ends the request.

        request_id: a name to abort it by. deadline: of `time.monotonic()`, when it ends with "abort". events: False for
        only those that freeze a block or end the request. To one who reads slowly some steps between those aren't
        shown, never text or a frozen block. The events' `request` is a number of the engine's own.

        Raises what the engine refuses the request for: InvalidInput, ContextLengthError, QueueFull; and EngineError
        when the engine is gone.
        """
        number, mailbox = self._enter(request_id)
        try:
            await self._submit(number, prompt_ids, params or SamplingParams(), deadline, events)
            while True:
                event = await mailbox.get()
                yield event
                if event.completion is not None:
                    return
        finally:
            del self._mailboxes[number]
            if request_id is not None:
                del self._named[request_id]
            if not mailbox.over:
                self._post(Abort(number))

    async def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams | None = None,
        request_id: str | None = None,
        deadline: float | None = None,
    ) -> Completion:
        """The completion of `stream` alone."""
        async with aclosing(self.stream(prompt_ids, params, request_id, deadline, events=False)) as stream:
            async for event in stream:
                if event.completion is not None:
                    return event.completion
        raise EngineError("the stream has ended without a completion")

    async def abort(self, request_id: str) -> None:
        """Ends a request as it stands: its stream ends with a completion whose reason is "abort". A name that isn't
        there (any more) is let pass."""
        self._require_alive()
        if request_id in self._named:
            await self._send(Abort(self._named[request_id]))

    async def statistics(self) -> EngineStatistics:
        """As of now, between two steps."""
        answer = await self._ask("statistics")
        if answer.statistics is None:
            raise EngineError("the engine's process has answered without statistics")
        return answer.statistics

    async def check(self) -> None:
        """Raises EngineError unless every page is accounted for; when no request is there, also that none is held."""
        await self._ask("check")

    async def stop(self, *, seconds: float = 10.0) -> None:
        """Ends the process after the step it is in, by force after so long; afterwards there is nothing left of it.
        Whoever still waits gets EngineError. Safe to call again, and after the process has died."""
        self._problem = self._problem or Problem.of(EngineError("the engine was stopped"))
        if not self._listening.done():
            self._post(Stop())
            try:
                await asyncio.wait({self._listening}, timeout=seconds)
            finally:
                self._process.kill()
        await asyncio.wait({self._listening})

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _require_alive(self) -> None:
        if self._problem is not None:
            raise self._problem.error()

    def _enter(self, request_id: str | None) -> tuple[int, Mailbox]:
        self._require_alive()
        if request_id in self._named:
            raise InvalidInput(f"request_id {request_id!r} is in use; it must be new until its stream has ended")
        number, mailbox = next(self._numbers), Mailbox()
        self._mailboxes[number] = mailbox
        if request_id is not None:
            self._named[request_id] = number
        return number, mailbox

    async def _submit(
        self, number: int, prompt: Sequence[int], params: SamplingParams, deadline: float | None, events: bool
    ) -> None:
        """What the process couldn't read would end it, and with it everyone's requests: so all is checked here."""
        if not isinstance(params, SamplingParams):
            raise InvalidInput(f"params must be SamplingParams, got {params!r}")
        if deadline is not None and not (isinstance(deadline, (int, float)) and math.isfinite(deadline)):
            raise InvalidInput(f"deadline must be a time of time.monotonic(), got {deadline!r}")
        ids = token_ids("the prompt", prompt)
        try:
            await self._send(Submit(number, ids, params, deadline, bool(events)))
        except (TypeError, ValueError, OverflowError, TooLarge) as error:
            raise InvalidInput(f"the request can't be sent to the engine's process: {error}") from None

    async def _ask(self, about: Literal["statistics", "check"]) -> Answer:
        self._require_alive()
        number = next(self._numbers)
        question = self._questions[number] = asyncio.get_running_loop().create_future()
        try:
            await self._send(Ask(number, about))
            answer = await question
        finally:
            del self._questions[number]
        if answer.problem is not None:
            raise answer.problem.error()
        return answer

    async def _send(self, message: messages.ToWorker) -> None:
        self._post(message)
        with suppress(OSError):  # a broken connection is noticed, and told to everyone, where it is read
            await self._writer.drain()

    def _post(self, message: messages.ToWorker) -> None:
        frame = messages.pack(message)
        if not self._writer.is_closing():
            self._writer.write(frame)

    async def _listen(self) -> None:
        """Reads until the end, whatever it is, and then leaves no process and nobody waiting."""
        end = EngineError("the engine's process isn't listened to any more")
        try:
            end = await self._read()
        except (EOFError, OSError):
            end = EngineError(f"the engine's process {_ending(await exit_code(self._process, CODE_SECONDS))}")
        except (msgspec.DecodeError, EngineError) as error:
            end = EngineError(f"the engine's process sent what can't be read: {error}")
        finally:
            self._fail(end)
            self._writer.close()
            try:
                await exit_code(self._process, LEAVE_SECONDS)
            finally:
                self._process.kill()
            await exit_code(self._process)

    async def _read(self) -> RedraftError:
        """Hands out what comes, until the process says why it ends."""
        while True:
            header = await self._reader.readexactly(messages.HEADER)
            body = await self._reader.readexactly(messages.body_length(header))
            match messages.decode_from_worker(body):
                case Outputs(events, failures):
                    for event in events:
                        if event.request in self._mailboxes:
                            self._mailboxes[event.request].put(event)
                    for failure in failures:
                        if failure.number in self._mailboxes:
                            self._mailboxes[failure.number].fail(failure.problem.error())
                case Answer() as answer:
                    question = self._questions.get(answer.number)
                    if question is not None and not question.done():
                        question.set_result(answer)
                case Ready() as facts:
                    if not self._ready.done():
                        self._ready.set_result(facts)
                case Fatal(problem):
                    return problem.error()

    def _fail(self, end: RedraftError) -> None:
        self._problem = self._problem or Problem.of(end)
        for mailbox in self._mailboxes.values():
            if not mailbox.over:
                mailbox.fail(self._problem.error())
        for future in (self._ready, *self._questions.values()):
            if not future.done():
                future.set_exception(self._problem.error())
                future.exception()  # taken note of, also when nobody waits for it any more


async def exit_code(process: Process, seconds: float = math.inf) -> int | None:
    """Of a process that is about to end; None when it goes on for longer than this."""
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    while (code := process.poll()) is None and clock() < end:
        await asyncio.sleep(POLL_SECONDS)
    return code


def spawn(command: Sequence[str], connection: socket.socket) -> subprocess.Popen[bytes]:
    """Starts a worker: the command, and the file descriptor of its end as last argument.

    It is a fresh interpreter that shares nothing with this one but that socket and standard error, and it stands apart
    from the terminal's foreground, whose Ctrl-C is not for it.
    """
    environment = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", **os.environ}
    source = Path(redraft.__file__).parents[1]
    if source.name not in ("site-packages", "dist-packages"):  # a source tree, which only this process may know of
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(source), *([known] if known else [])])
    try:
        return subprocess.Popen(
            [*command, str(connection.fileno())],
            pass_fds=[connection.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,  # our standard output may be somebody's data
            env=environment,
            process_group=0,
        )
    except OSError as error:
        raise EngineError(f"the engine's process can't be started: {error}") from error


def _ending(code: int | None) -> str:
    if code is None:
        return "closed its connection"
    return f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with exit code {code}"
