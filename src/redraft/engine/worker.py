"""The engine's own process: it reads messages, steps while there is work, and sends what each step gave.

`python -m redraft.engine.worker FD` runs it on the socket that it inherits as file descriptor FD. Its life hangs on
that socket: when the other end closes, it leaves after the step it is in, and on Linux the kernel ends it at once when
its caller dies. Interrupts and SIGTERM it ignores: they are the caller's to hear, who then stops it in order.
"""

from __future__ import annotations

import ctypes
import faulthandler
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Protocol

from redraft.engine import messages
from redraft.engine.heap import keep_freed_memory
from redraft.engine.messages import (
    Abort,
    Answer,
    Ask,
    EngineSpec,
    Failed,
    Fatal,
    Outputs,
    Problem,
    Ready,
    Start,
    Stop,
    Submit,
    TooLarge,
)
from redraft.engine.request import Failure, Request
from redraft.engine.statistics import EngineStatistics
from redraft.errors import EngineError, RedraftError
from redraft.types import CanvasEvent

CHUNK = 1 << 16
PR_SET_PDEATHSIG = 1


class Runner(Protocol):
    """What the loop needs of an engine (`redraft.engine.engine.Engine`)."""

    @property
    def block_length(self) -> int: ...
    @property
    def context_length(self) -> int: ...
    @property
    def busy(self) -> bool: ...
    def submit(self, request: Request) -> None: ...
    def abort(self, request: int) -> None: ...
    def step(self) -> list[CanvasEvent | Failure]: ...
    def statistics(self) -> EngineStatistics: ...
    def check(self, *, idle: bool = False) -> None: ...


class Disconnected(Exception):
    """The caller is gone."""


class Channel:
    """The worker's end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._unread = bytearray()

    def receive(self, *, wait: bool) -> list[messages.ToWorker]:
        """All messages that have come; wait: sleeps until there is one. Raises Disconnected when no more can come."""
        received = list(self._whole())
        while True:
            flags = 0 if wait and not received else socket.MSG_DONTWAIT
            try:
                data = self._connection.recv(CHUNK, flags)
            except BlockingIOError:
                return received
            except ConnectionError:
                raise Disconnected from None
            if not data:
                raise Disconnected
            self._unread += data
            received += self._whole()

    def send(self, message: messages.FromWorker) -> None:
        """Waits while the caller doesn't read. Raises Disconnected, and TooLarge before anything is sent."""
        frame = messages.pack(message)
        try:
            self._connection.sendall(frame)
        except ConnectionError:
            raise Disconnected from None

    def linger(self) -> None:
        """Waits until the caller closes its end. If this end closed first, what the caller writes meanwhile would break
        the connection, and with it what it hasn't read yet."""
        with suppress(ConnectionError):
            while self._connection.recv(CHUNK):
                pass

    def _whole(self) -> Iterator[messages.ToWorker]:
        while len(self._unread) >= messages.HEADER:
            end = messages.HEADER + messages.body_length(self._unread)
            if len(self._unread) < end:
                return
            body = bytes(self._unread[messages.HEADER : end])
            del self._unread[:end]
            yield messages.decode_to_worker(body)


def run(channel: Channel, load: Callable[[EngineSpec], Runner]) -> None:
    """From the first message to Stop or Disconnected. What else is raised the caller hears first."""
    try:
        start, *early = channel.receive(wait=True)
        if not isinstance(start, Start):
            raise EngineError(f"the first message must be Start, got {type(start).__name__}")
        engine = load(start.spec)
        channel.send(Ready(engine.block_length, engine.context_length))
        serve(channel, engine, early)
    except Disconnected:
        raise
    except Exception as error:
        channel.send(Fatal(Problem.of(error)))
        channel.linger()
        raise


def serve(channel: Channel, engine: Runner, arrived: Iterable[messages.ToWorker] = ()) -> None:
    """Messages and steps in turn, until Stop. Without work it sleeps until a message comes."""
    while True:
        refused = []
        for message in arrived:
            match message:
                case Submit():
                    refused += _submit(engine, message)
                case Abort():
                    engine.abort(message.number)
                case Ask():
                    channel.send(_answer(engine, message))
                case Stop():
                    return
                case Start():
                    raise EngineError("Start must be the first message, and there is an engine already")
        if refused:
            channel.send(Outputs(failures=refused))
        if engine.busy:
            _tell(channel, engine.step())
        arrived = channel.receive(wait=not engine.busy)


def load(spec: EngineSpec) -> Runner:
    """The engine that a spec describes. Raises RedraftError for a model or a setting that can't be had."""
    from redraft.engine.defaults import generation_config
    from redraft.engine.engine import Engine
    from redraft.engine.settings import control_ids, resolve_device, resolve_dtype
    from redraft.model.checkpoint import load_model
    from redraft.model.folder import checkpoint_folder
    from redraft.text.tokenizer import Tokenizer

    device = resolve_device(spec.device)
    folder = checkpoint_folder(spec.model)
    generation = generation_config(folder)
    tokenizer = Tokenizer.load(folder) if (folder / "tokenizer.json").exists() else None
    model = load_model(folder, device=device, dtype=resolve_dtype(spec.dtype, device)).eval()
    control = control_ids(model.config, generation, tokenizer)
    return Engine(model, control, spec.settings, block_length=spec.block_length, tokenizer=tokenizer)


def _submit(engine: Runner, message: Submit) -> list[Failed]:
    """Nothing, or why the request wasn't taken."""
    request = Request(message.prompt, message.params, message.number, message.deadline, message.events)
    try:
        engine.submit(request)
    except RedraftError as error:
        return [Failed(message.number, Problem.of(error))]
    return []


def _answer(engine: Runner, message: Ask) -> Answer:
    try:
        if message.about == "statistics":
            return Answer(message.number, engine.statistics())
        engine.check(idle=not engine.busy)
    except RedraftError as error:
        return Answer(message.number, problem=Problem.of(error))
    return Answer(message.number)


def _tell(channel: Channel, outputs: list[CanvasEvent | Failure]) -> None:
    """A step's outputs in one message, or in halves when they are too large for one."""
    if not outputs:
        return
    events = [output for output in outputs if isinstance(output, CanvasEvent)]
    failures = [Failed(f.request, Problem.of(f.error)) for f in outputs if isinstance(f, Failure)]
    try:
        channel.send(Outputs(events, failures))
    except TooLarge as error:
        if len(outputs) > 1:
            half = len(outputs) // 2
            _tell(channel, outputs[:half])
            _tell(channel, outputs[half:])
        else:
            problem = Problem.of(EngineError(f"the answer can't be sent: {error}; ask for fewer logprobs or a lower n"))
            channel.send(Outputs(failures=[Failed(events[0].request, problem)]))


def _die_with_caller() -> None:
    """Linux: SIGKILL as soon as the thread that started this process ends, which is the one that runs the caller's
    event loop. Elsewhere the closed socket is noticed after the current step."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(arguments: list[str], load: Callable[[EngineSpec], Runner] = load) -> int:
    """The process: exit code 0 after Stop or when the caller is gone, 1 after an error that the caller was told."""
    _die_with_caller()
    keep_freed_memory()  # of this process alone: in a caller's own it would be theirs to decide
    faulthandler.enable()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=int(arguments[0]))
    connection.set_inheritable(False)  # a process that this one starts must not keep the caller waiting for its end
    try:
        run(Channel(connection), load)
    except Disconnected:
        return 0
    except RedraftError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
