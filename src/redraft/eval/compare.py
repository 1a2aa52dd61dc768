"""Two runs on the same items: what differs, and whether that may be chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from redraft.errors import InvalidInput
from redraft.eval.records import Record, read_records
from redraft.eval.report import grid
from redraft.eval.statistics import Difference, difference, paired
from redraft.eval.targets import percent

SWAPS = 20_000
SEED = 0
Pair = tuple[Record, Record]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of one setting (both settings' keys where they differ) on one task. changed: items with another score. p: the
    chance of a difference at least as large if both were equally good (see `p_value`)."""

    task: str
    setting: str
    difference: Difference
    changed: int
    p: float


def load(folder: Path) -> list[Record]:
    """The records of a run. Raises InvalidInput when there are none, or of several models."""
    path = folder / "records.jsonl" if folder.is_dir() else folder
    records = read_records(path)
    models = sorted({record.model for record in records})
    if len(models) != 1:
        raise InvalidInput(f"{path} must hold the answers of one model, and has those of {len(models)}")
    return records


def compare_runs(
    first: Sequence[Record], second: Sequence[Record], settings: tuple[str, str] | None = None
) -> list[Comparison]:
    """Setting by setting, over all items that both have, and task by task where there are several.

    settings: compare this setting of the first with that of the second; None: each with itself, or the one with the
    other where both have just one. Raises InvalidInput when no item was graded in both.
    """
    out = []
    for a, b in [settings] if settings else _shared_settings(first, second):
        pairs = paired([r for r in first if r.setting == a], [r for r in second if r.setting == b])
        pairs = [(x, y) for x, y in pairs if x.score is not None and y.score is not None]
        if not pairs:
            raise InvalidInput(f"the runs have no item that both answered and graded at {a}" + (f" and {b}" * (a != b)))
        tasks = list(dict.fromkeys(x.task for x, _ in pairs))
        name = a if a == b else f"{a} → {b}"
        out.append(_comparison("all", name, pairs))
        for task in tasks if len(tasks) > 1 else ():
            out.append(_comparison(task, name, [pair for pair in pairs if pair[0].task == task]))
    return out


def p_value(gains: Sequence[float]) -> float:
    """Two-sided p of paired differences under swaps of the two: exact where they are -1, 0 and 1 (McNemar's test), else
    by random swaps."""
    moved = np.array([gain for gain in gains if gain])
    if not len(moved):
        return 1.0
    if np.all(np.abs(moved) == 1):
        n, less = len(moved), int(min((moved > 0).sum(), (moved < 0).sum()))
        return min(1.0, 2 * sum(math.comb(n, k) for k in range(less + 1)) / 2**n)
    signs = np.random.default_rng(SEED).choice((-1.0, 1.0), size=(SWAPS, len(moved)))
    as_large = int((np.abs(signs @ moved) >= abs(moved.sum()) - 1e-12).sum())
    return (as_large + 1) / (SWAPS + 1)


def content(rows: Sequence[Comparison]) -> list[dict[str, Any]]:
    """The rows as JSON values."""
    return [asdict(row) for row in rows]


def markdown(rows: Sequence[Comparison], names: tuple[str, str]) -> str:
    """For a reader. names: of the first and the second run."""
    lines = [
        (
            row.task,
            row.setting,
            str(row.difference.items),
            percent(row.difference.accuracy, sign=True),
            str(row.changed),
            f"{row.p:.3g}",
            _ratio(row.difference),
        )
        for row in rows
    ]
    head = ("task", "setting", "items", "accuracy: second − first, points", "changed", "p", "TPF: second / first")
    return (
        f"First: {names[0]}. Second: {names[1]}. Paired on the same items; 95% intervals by bootstrap; p: McNemar's "
        "exact test, by random swaps where answers can be partly right.\n\n" + grid(head, lines) + "\n"
    )


def _comparison(task: str, setting: str, pairs: Sequence[Pair]) -> Comparison:
    gains = [(b.score or 0.0) - (a.score or 0.0) for a, b in pairs]
    turned = difference([(b, a) for a, b in pairs])
    return Comparison(task, setting, turned, sum(gain != 0 for gain in gains), p_value(gains))


def _shared_settings(first: Sequence[Record], second: Sequence[Record]) -> list[tuple[str, str]]:
    left, right = (list(dict.fromkeys(record.setting for record in records)) for records in (first, second))
    both = [(key, key) for key in left if key in right]
    if not both and len(left) == len(right) == 1:
        return [(left[0], right[0])]
    if not both:
        raise InvalidInput(f"the runs have no setting in common: {', '.join(left)} and {', '.join(right)}; see --pair")
    return both


def _ratio(found: Difference) -> str:
    ratio = found.tokens_per_forward_ratio
    return f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
