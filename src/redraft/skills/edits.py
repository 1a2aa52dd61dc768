"""Edits of a JSON object told in words: the second half of the *structured* skill.

An `Editor` holds an object and draws one edit after another; each changes the object and returns the instruction.
Arithmetic stays within 20, so that every sum is an entry of a small table.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final

from redraft.errors import InvalidInput
from redraft.skills.records import Domain, Field

LIMIT: Final = 20

PHRASES: Final = {
    "set": ("set {key}{where} to {value}", "change {key}{where} to {value}"),
    "rename": ("rename {key}{where} to {new}", "call {key}{where} {new}"),
    "remove": ("remove {key}{where}", "delete {key}{where}"),
    "insert": ("add {key} with {value}{where}", "insert {key} with {value}{where}"),
    "append": ("append {value} to {key}{where}", "put {value} last in {key}{where}"),
    "prepend": ("put {value} first in {key}{where}",),
    "drop": ("take {value} out of {key}{where}",),
    "increase": ("increase {key}{where} by {value}", "raise {key}{where} by {value}"),
    "decrease": ("decrease {key}{where} by {value}", "lower {key}{where} by {value}"),
}


def in_words(value: Any) -> str:
    """A value as an instruction has it: words bare, the rest as in JSON."""
    return value if isinstance(value, str) else json.dumps(value)


class Editor:
    """An object under edit. `domains` gives the domain of the object and, under its key, of each nested object."""

    def __init__(self, rng: random.Random, value: dict[str, Any], domains: dict[str, Domain]) -> None:
        self.value = deepcopy(value)
        self._rng = rng
        self._domains = domains
        self._touched: set[tuple[str, str]] = set()

    def edit(self, operations: tuple[str, ...] = tuple(PHRASES)) -> tuple[str, str]:
        """Applies a random edit that fits; returns its operation and its instruction."""
        places = [place for place in self._domains if not place or place in self.value]
        pairs = [(operation, place) for operation in operations for place in places]
        self._rng.shuffle(pairs)
        for operation, place in pairs:
            words = self._OPERATIONS[operation](self, place)
            if words is not None:
                self._touched.update((place, words[role]) for role in ("key", "new") if role in words)
                phrase = self._rng.choice(PHRASES[operation])
                return operation, phrase.format(where=f" in {place}" if place else "", **words)
        raise InvalidInput(f"no edit of {', '.join(operations)} fits {self.value}")

    def _at(self, place: str) -> dict[str, Any]:
        return self.value[place] if place else self.value

    def _pick(self, place: str, fits: Callable[[Any], bool]) -> str | None:
        """A key at a place that no edit has touched yet and whose value fits; nested objects never do."""
        keys = [
            key
            for key, value in self._at(place).items()
            if (place, key) not in self._touched and not isinstance(value, dict) and fits(value)
        ]
        return self._rng.choice(keys) if keys else None

    def _field(self, place: str, key: str) -> Field:
        return self._domains[place].field_of[key]

    def _fresh(self, field: Field, avoid: list[Any]) -> Any:
        while (value := field.draw(self._rng)) in avoid:
            pass
        return value

    def _set(self, place: str) -> dict[str, Any] | None:
        key = self._pick(place, lambda value: not isinstance(value, list))
        if key is None:
            return None
        value = self._at(place)[key] = self._fresh(self._field(place, key), [self._at(place)[key]])
        return {"key": key, "value": in_words(value)}

    def _rename(self, place: str) -> dict[str, Any] | None:
        key = self._pick(place, lambda value: True)
        others = [name for name in self._field(place, key).keys if name != key] if key else []
        if not others:
            return None
        new = self._rng.choice(others)
        entries = list(self._at(place).items())
        self._at(place).clear()
        self._at(place).update((new if name == key else name, value) for name, value in entries)
        return {"key": key, "new": new}

    def _remove(self, place: str) -> dict[str, Any] | None:
        key = self._pick(place, lambda value: True) if len(self._at(place)) > 2 else None
        if key is None:
            return None
        del self._at(place)[key]
        return {"key": key}

    def _insert(self, place: str) -> dict[str, Any] | None:
        used = self._at(place).keys() | {key for _, key in self._touched}
        fields = [f for f in self._domains[place].fields if not f.many and not used.intersection(f.keys)]
        if not fields:
            return None
        field = self._rng.choice(fields)
        key = self._rng.choice(field.keys)
        value = self._at(place)[key] = field.draw(self._rng)
        return {"key": key, "value": in_words(value)}

    def _append(self, place: str) -> dict[str, Any] | None:
        return self._extend(place, at_end=True)

    def _prepend(self, place: str) -> dict[str, Any] | None:
        return self._extend(place, at_end=False)

    def _extend(self, place: str, *, at_end: bool) -> dict[str, Any] | None:
        key = self._pick(place, lambda value: isinstance(value, list))
        if key is None:
            return None
        items = self._at(place)[key]
        extra = self._rng.choice(self._field(place, key).draw(self._rng))
        if extra in items:
            return None
        items.insert(len(items) if at_end else 0, extra)
        return {"key": key, "value": extra}

    def _drop(self, place: str) -> dict[str, Any] | None:
        key = self._pick(place, lambda value: isinstance(value, list) and len(value) > 1)
        if key is None:
            return None
        items = self._at(place)[key]
        return {"key": key, "value": items.pop(self._rng.randrange(len(items)))}

    def _increase(self, place: str) -> dict[str, Any] | None:
        return self._shift(place, 1)

    def _decrease(self, place: str) -> dict[str, Any] | None:
        return self._shift(place, -1)

    def _shift(self, place: str, sign: int) -> dict[str, Any] | None:
        step = self._rng.randint(1, 5)
        key = self._pick(place, lambda value: type(value) is int and 0 <= value + sign * step <= LIMIT >= value)
        if key is None:
            return None
        self._at(place)[key] += sign * step
        return {"key": key, "value": step}

    _OPERATIONS: Final[dict[str, Callable[[Editor, str], dict[str, Any] | None]]] = {
        "set": _set,
        "rename": _rename,
        "remove": _remove,
        "insert": _insert,
        "append": _append,
        "prepend": _prepend,
        "drop": _drop,
        "increase": _increase,
        "decrease": _decrease,
    }
