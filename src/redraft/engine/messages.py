"""What the engine's process and its caller say to each other: typed messages in msgpack, one a frame.

A frame is the length of its message (4 bytes, big-endian), then the message. Both sides refuse a frame of more than
`MAX_FRAME` bytes and a message that doesn't fit its type; no object is ever revived from foreign bytes.

Requests go by numbers that the caller's side gives out, never twice, so that what is still under way for a request
that was aborted can't be taken for another's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from redraft import errors
from redraft.engine.checks import require_positive
from redraft.engine.request import EngineSettings
from redraft.engine.statistics import EngineStatistics
from redraft.errors import EngineError, InvalidInput, RedraftError
from redraft.types import CanvasEvent, SamplingParams

MAX_FRAME = 1 << 26  # bytes; an answer of 32,768 tokens with 20 alternatives each takes about 10 million
MAX_TEXT = 1 << 14  # characters of an error's message
_LENGTH = struct.Struct(">I")
HEADER = _LENGTH.size


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """What an engine in a process of its own is made of; all of it crosses by value.

    model: a checkpoint folder; None for the model inside the package. device, dtype, block_length: as in `redraft.LLM`.
    """

    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    block_length: int | None = None
    settings: EngineSettings = field(default_factory=EngineSettings)

    def __post_init__(self) -> None:
        for name in ("model", "device", "dtype"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InvalidInput(f"{name} must be text or None, got {value!r}")
        if self.block_length is not None:
            require_positive("block_length", self.block_length)
        if not isinstance(self.settings, EngineSettings):
            raise InvalidInput(f"settings must be EngineSettings, got {self.settings!r}")


class Problem(msgspec.Struct, frozen=True):
    """An error as it crosses: the name of its class in `redraft.errors`, and its message."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: Exception) -> Problem:
        """Of a RedraftError its nearest public class; any other error is a bug of the engine, so an EngineError."""
        kind, text = EngineError, f"{type(error).__name__}: {error}"
        if isinstance(error, RedraftError):
            kind = next(base for base in type(error).__mro__ if getattr(errors, base.__name__, None) is base)
            text = str(error)
        return cls(kind.__name__, text[:MAX_TEXT].encode("utf-8", "replace").decode())

    def error(self) -> RedraftError:
        """A new instance each time, since an exception that several tasks raise collects all their tracebacks."""
        kind = getattr(errors, self.kind, None)
        if isinstance(kind, type) and issubclass(kind, RedraftError):
            return kind(self.message)
        return EngineError(f"{self.kind}: {self.message}")


class Start(msgspec.Struct, frozen=True, tag=True):
    """Load this; comes first and once."""

    spec: EngineSpec


class Submit(msgspec.Struct, frozen=True, tag=True):
    """A new request. deadline: of `time.monotonic()`, which all processes of a machine share."""

    number: int
    prompt: tuple[int, ...]
    params: SamplingParams
    deadline: float | None
    events: bool


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End a request; one that isn't there any more is none of anybody's concern."""

    number: int


class Ask(msgspec.Struct, frozen=True, tag=True):
    """A question to be answered under its own number."""

    number: int
    about: Literal["statistics", "check"]


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Leave, whatever is running."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded."""

    block_length: int
    context_length: int


class Failed(msgspec.Struct, frozen=True):
    """One request ended with an error."""

    number: int
    problem: Problem


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """What one step gave."""

    events: list[CanvasEvent] = []
    failures: list[Failed] = []


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The answer to an `Ask`: statistics (None for a check), or what went wrong."""

    number: int
    statistics: EngineStatistics | None = None
    problem: Problem | None = None


class Fatal(msgspec.Struct, frozen=True, tag=True):
    """The last words of the engine's process."""

    problem: Problem


ToWorker = Start | Submit | Abort | Ask | Stop
FromWorker = Ready | Outputs | Answer | Fatal


class TooLarge(Exception):
    """A message over MAX_FRAME. Its sender answers for it; it never leaves the process."""


def pack(message: ToWorker | FromWorker) -> bytes:
    """The frame of a message. Raises TooLarge, and TypeError or OverflowError for what msgpack doesn't know."""
    body = msgspec.msgpack.encode(message)
    if len(body) > MAX_FRAME:
        raise TooLarge(f"{len(body):,} bytes are more than the {MAX_FRAME:,} of one message")
    return _LENGTH.pack(len(body)) + body


def body_length(header: bytes | bytearray) -> int:
    """How many bytes follow a header. Raises EngineError: after a foreign length nothing can be told apart."""
    (length,) = _LENGTH.unpack_from(header)
    if length > MAX_FRAME:
        raise EngineError(f"a message of the engine's process must have at most {MAX_FRAME:,} bytes, got {length:,}")
    return length


decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
