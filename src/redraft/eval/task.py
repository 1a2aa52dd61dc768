"""What is evaluated: items, and the suites that they come from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol

from redraft.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class Item:
    """One prompt of a suite.

    suite: the name and version of its suite. task: what it counts as in a report. messages, tools: what is asked, in
    the shape of chat completions. max_tokens: of the answer. reference: whatever the grader needs, JSON-able.
    level, split: parts of a task that a report may tell apart; 0 and "" where there are none.
    """

    suite: str
    task: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    max_tokens: int = 256
    reference: Any = None
    level: int = 0
    split: str = ""

    @cached_property
    def key(self) -> str:
        """A hash of all that decides the answer and its score."""
        content = json.dumps(asdict(self), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    @property
    def prompt(self) -> str:
        """The last message, for people who read the log."""
        return str(self.messages[-1].get("content", ""))


class Suite(Protocol):
    """Items and their grader. It is sent to other processes, so it holds plain values only."""

    @property
    def name(self) -> str: ...

    def items(self) -> list[Item]:
        """In an order whose beginnings are fair samples of the whole. Raises InvalidInput when there are none."""
        ...

    def grade(self, item: Item, response: str) -> float:
        """From 0 to 1. What it raises, or another number, is reported as an error of the grader."""
        ...


def graded(suite: Suite, item: Item, response: str) -> tuple[float | None, str]:
    """(score, ""), or (None, what went wrong) when the grader fails."""
    try:
        score = suite.grade(item, response)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - foreign code: its error, or its exit, is to be reported
        return None, f"grader: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not 0 <= score <= 1:  # nor NaN
        return None, f"grader: the score must be a number from 0 to 1, got {score!r:.100}"
    return float(score), ""


def check_limit(limit: int | None) -> None:
    """Raises InvalidInput for a number of items that is none."""
    if limit is not None and (isinstance(limit, bool) or limit < 1):
        raise InvalidInput(f"limit must be an integer of at least 1, got {limit!r}")


def first(items: Sequence[Item], limit: int | None, suite: str) -> list[Item]:
    """The first `limit` items of each task, all for None. Raises InvalidInput when there is none."""
    check_limit(limit)
    counts: dict[str, int] = {}
    kept = []
    for item in items:
        counts[item.task] = counts.get(item.task, 0) + 1
        if limit is None or counts[item.task] <= limit:
            kept.append(item)
    if not kept:
        raise InvalidInput(f"the suite {suite} has no items")
    return kept
