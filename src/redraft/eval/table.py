"""The one table of an evaluation: a row for each part of the items and each setting, and the paired differences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from redraft.eval.records import Record
from redraft.eval.settings import (
    DRAFT_ONLY,
    QUALITY,
    SPEED,
    SPEED_UNEDITED,
    STANDARD,
    Setting,
)
from redraft.eval.statistics import Difference, Summary, compare, paired, summarise


@dataclass(frozen=True, slots=True)
class Scope:
    """A part of the items; None means all. level goes with a task."""

    task: str | None = None
    split: str | None = None
    level: int | None = None

    def __str__(self) -> str:
        level = None if self.level is None else f"level {self.level}"
        return ", ".join(part for part in (self.task, self.split, level) if part is not None) or "all"


ALL = Scope()


@dataclass(frozen=True, slots=True)
class Row:
    scope: Scope
    setting: Setting
    summary: Summary


@dataclass(frozen=True, slots=True)
class Run:
    """What was evaluated. fingerprint: the model's identity. items, how: for readers, which items and how they were
    answered. options: the same for programs."""

    model: str
    fingerprint: str
    items: str
    how: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    run: Run
    settings: tuple[Setting, ...]
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    errors: tuple[Record, ...] = ()

    def summary(self, setting: Setting, scope: Scope = ALL) -> Summary | None:
        """The figures of a row, None when the setting or the part was not run."""
        rows = (row.summary for row in self.rows if row.scope == scope and row.setting == setting)
        return next(rows, None)

    def difference(self, first: Setting, second: Setting) -> Difference | None:
        pairs = (pair for pair in self.differences if (pair.first, pair.second) == (first.key, second.key))
        return next(pairs, None)

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(row.scope.task for row in self.rows if row.scope.task is not None))

    @property
    def splits(self) -> list[str]:
        return list(dict.fromkeys(row.scope.split for row in self.rows if row.scope.split is not None))

    def to_json(self) -> dict[str, Any]:
        rows = [
            {**asdict(row.scope), "setting": row.setting.key, "label": row.setting.label, **asdict(row.summary)}
            for row in self.rows
        ]
        differences = [asdict(difference) for difference in self.differences]
        errors = [
            {"task": record.task, "item": record.item, "setting": record.setting, "error": record.error}
            for record in self.errors
        ]
        return {"run": asdict(self.run), "rows": rows, "differences": differences, "errors": errors}


def build_table(records: Sequence[Record], settings: Sequence[Setting], run: Run) -> Table:
    """The table of records that hold each item once at each setting.

    All items have a row at every setting; each split, task, task and split, and task and level has one at those
    that are shown in detail.
    """
    parts: dict[tuple[Scope, str], list[Record]] = defaultdict(list)
    for record in records:
        for scope in _scopes_of(record):
            parts[scope, record.setting].append(record)
    rows = [
        Row(scope, setting, summarise(parts[scope, setting.key]))
        for scope in dict.fromkeys(scope for scope, _ in parts)
        for setting in settings
        if (scope, setting.key) in parts and (scope == ALL or setting in detailed(settings))
    ]
    pairs = [(parts[ALL, a.key], parts[ALL, b.key]) for a, b in _pairs(settings)]
    differences = [compare(a, b) for a, b in pairs if any(x.score is not None is not y.score for x, y in paired(a, b))]
    errors = tuple(record for record in records if record.error)
    return Table(run, tuple(settings), tuple(rows), tuple(differences), errors)


def detailed(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """The settings that have names; all of them when none has."""
    return tuple(setting for setting in settings if setting in STANDARD) or tuple(settings)


def _scopes_of(record: Record) -> tuple[Scope, ...]:
    """Parts that a suite doesn't tell apart, split "" and level 0, have no rows of their own."""
    task, split, level = record.task, record.split, record.level
    splits = (Scope(split=split), Scope(task, split)) if split else ()
    levels = (Scope(task, level=level),) if level else ()
    return ALL, Scope(task), *splits, *levels


def _pairs(settings: Sequence[Setting]) -> list[tuple[Setting, Setting]]:
    """Editing against none at the same threshold, and each setting that edits against Q and draft-only."""
    pairs = [(SPEED, SPEED_UNEDITED)]
    for setting in settings:
        if setting.edits:
            pairs += [(setting, Setting(setting.threshold)), (setting, QUALITY), (setting, DRAFT_ONLY)]
    return [(a, b) for a, b in dict.fromkeys(pairs) if a != b and {a, b} <= set(settings)]
