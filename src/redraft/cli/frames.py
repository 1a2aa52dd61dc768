"""A frame: one step of the decoder with the text of its tokens, so that showing it needs no model.

The live view, `--trace` files and `redraft replay` all work on frames.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from redraft.errors import InvalidInput
from redraft.types import CanvasEvent, Choice, TokenLogprob


@dataclass(frozen=True, slots=True)
class Finish:
    """How the answer ended and what it cost: `reason` is "stop", "length" or "abort"; seconds of wall time. logprobs:
    when they were asked for; traces leave them out."""

    reason: str
    tokens: int
    forwards: int
    edits: int
    prompt_tokens: int
    seconds: float
    logprobs: tuple[TokenLogprob, ...] | None = None

    @classmethod
    def of(cls, choice: Choice) -> Finish:
        stats = choice.stats
        return cls(
            reason=choice.finish_reason,
            tokens=stats.generated_tokens,
            forwards=stats.forwards,
            edits=stats.edits,
            prompt_tokens=stats.prompt_tokens,
            seconds=stats.seconds,
            logprobs=None if choice.logprobs is None else tuple(choice.logprobs),
        )


@dataclass(frozen=True, slots=True)
class Frame:
    """A `CanvasEvent` with the text of each token, and when it happened.

    seconds: since the request began. tokens, texts, confidence: the whole block after the step.
    masked, drafted, prompt: positions in the block. edited: position -> the old token's text.
    """

    step: int
    block: int
    seconds: float
    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    confidence: tuple[float, ...]
    masked: frozenset[int] = frozenset()
    drafted: frozenset[int] = frozenset()
    prompt: frozenset[int] = frozenset()
    edited: Mapping[int, str] = field(default_factory=dict)
    deleted: int = 0
    inserted: int = 0
    frozen: bool = False
    text_delta: str = ""
    finish: Finish | None = None

    @classmethod
    def of(cls, event: CanvasEvent, text_of: Callable[[int], str], seconds: float) -> Frame:
        """The frame of an event; `text_of` gives the text of one token id."""
        return cls(
            step=event.step,
            block=event.block,
            seconds=seconds,
            tokens=event.tokens,
            texts=tuple(map(text_of, event.tokens)),
            confidence=event.confidence,
            masked=frozenset(event.masked),
            drafted=frozenset(event.drafted),
            prompt=frozenset(event.prompt),
            edited={position: text_of(old) for position, old in event.edited.items()},
            deleted=len(event.deleted),
            inserted=len(event.inserted),
            frozen=event.frozen,
            text_delta=event.text_delta,
            finish=None if event.completion is None else Finish.of(event.completion.choices[0]),
        )

    @property
    def edits(self) -> int:
        return len(self.edited) + self.deleted + self.inserted

    @property
    def filled(self) -> int:
        """Generated tokens in the block: those that are neither prompt nor mask."""
        return len(self.tokens) - len(self.prompt | self.masked)

    def to_json(self) -> dict[str, Any]:
        """The frame as JSON values; what is empty is left out."""
        record: dict[str, Any] = {
            "step": self.step,
            "block": self.block,
            "seconds": round(self.seconds, 6),
            "tokens": list(self.tokens),
            "texts": list(self.texts),
            "confidence": [round(value, 4) for value in self.confidence],
        }
        for name in ("masked", "drafted", "prompt"):
            if positions := getattr(self, name):
                record[name] = sorted(positions)
        if self.edited:
            record["edited"] = {str(position): old for position, old in sorted(self.edited.items())}
        for name in ("deleted", "inserted", "frozen", "text_delta"):
            if value := getattr(self, name):
                record[name] = value
        if self.finish is not None:
            record["finish"] = asdict(replace(self.finish, logprobs=None))
            del record["finish"]["logprobs"]
        return record

    @classmethod
    def from_json(cls, record: Any) -> Frame:
        """The frame of a JSON value. Raises InvalidInput naming the first field that is not right."""
        fields = _Fields(record)
        tokens = fields.sequence("tokens", int)
        size = len(tokens)
        texts = fields.sequence("texts", str, size)
        return cls(
            step=fields.value("step", int),
            block=fields.value("block", int),
            seconds=fields.number("seconds"),
            tokens=tokens,
            texts=texts,
            confidence=tuple(map(float, fields.sequence("confidence", (int, float), size))),
            masked=fields.positions("masked", size),
            drafted=fields.positions("drafted", size),
            prompt=fields.positions("prompt", size),
            edited=fields.edited(size),
            deleted=fields.value("deleted", int, 0),
            inserted=fields.value("inserted", int, 0),
            frozen=fields.value("frozen", bool, False),
            text_delta=fields.value("text_delta", str, ""),
            finish=fields.finish(),
        )


class _Fields:
    """Reads the fields of a JSON object with their types checked."""

    def __init__(self, record: Any) -> None:
        if not isinstance(record, dict):
            raise InvalidInput(f"a step must be a JSON object, got {_short(record)}")
        self.record = record

    def value(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        value = self.record.get(name, default)
        if not _is(value, kind):
            raise InvalidInput(f"{name} must be {_kind_name(kind)}, got {_short(value)}")
        return value

    def number(self, name: str) -> float:
        value = float(self.value(name, (int, float)))
        if not math.isfinite(value) or value < 0:
            raise InvalidInput(f"{name} must be a number of at least 0, got {value}")
        return value

    def sequence(self, name: str, kind: type | tuple[type, ...], length: int | None = None) -> tuple[Any, ...]:
        values = self.value(name, list, [])
        if not all(_is(value, kind) for value in values):
            raise InvalidInput(f"{name} must be a list of {_kind_name(kind)} values, got {_short(values)}")
        if length is not None and len(values) != length:
            raise InvalidInput(f"{name} must have {length} values, one a token, got {len(values)}")
        return tuple(values)

    def positions(self, name: str, size: int) -> frozenset[int]:
        values = self.sequence(name, int)
        for value in values:
            if not 0 <= value < size:
                raise InvalidInput(f"{name} must hold positions from 0 to {size - 1}, got {value}")
        return frozenset(values)

    def edited(self, size: int) -> dict[int, str]:
        edited = {}
        for key, old in self.value("edited", dict, {}).items():
            if not key.isdecimal() or int(key) >= size or not isinstance(old, str):
                raise InvalidInput(f"edited must map positions from 0 to {size - 1} to old texts, got {_short(key)}")
            edited[int(key)] = old
        return edited

    def finish(self) -> Finish | None:
        if self.record.get("finish") is None:
            return None
        fields = _Fields(self.value("finish", dict))
        counts = {name: fields.value(name, int) for name in ("tokens", "forwards", "edits", "prompt_tokens")}
        return Finish(reason=fields.value("reason", str), seconds=fields.number("seconds"), **counts)


def _is(value: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _kind_name(kind: type | tuple[type, ...]) -> str:
    return " or ".join(item.__name__ for item in (kind if isinstance(kind, tuple) else (kind,)))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
