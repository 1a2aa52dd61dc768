"""What the embedded model has to reach, each target judged from the table: true or false, with its figures."""

from __future__ import annotations

from dataclasses import dataclass

from redraft.eval.settings import DRAFT_ONLY, QUALITY, SPEED, SPEED_UNEDITED
from redraft.eval.statistics import Difference, Interval, Summary
from redraft.eval.table import ALL, Scope, Table

LOSS_ALLOWED = 0.03
SPEEDUP_WANTED = 1.4


@dataclass(frozen=True, slots=True)
class Target:
    """holds is None when the run lacks the settings or items that the target is judged by."""

    name: str
    holds: bool | None
    figures: str


def targets(table: Table) -> list[Target]:
    """Every target: the size of the item set, accuracy in Q, the swept points, and what editing gains."""
    return [
        _items(table),
        _length(table),
        _accuracy(table, "Q over all skills", ALL, 0.85),
        _accuracy(table, "Q on code, unseen prompts of seen compositions", Scope("code", "seen"), 0.97),
        _accuracy(table, "Q on structured", Scope("structured"), 0.90),
        _swept(table),
        _editing(table),
    ]


def percent(interval: Interval, sign: bool = False) -> str:
    """An accuracy (or a difference, with its sign) and its interval, in percent (or points)."""
    form = "+.1f" if sign else ".1f"
    return f"{100 * interval.value:{form}} [{100 * interval.low:{form}}, {100 * interval.high:{form}}]"


def _items(table: Table) -> Target:
    name = "at least 200 items a skill and 1,000 in all"
    counts = {skill: _count(table, Scope(skill)) for skill in table.tasks}
    total = sum(counts.values())
    holds = bool(counts) and min(counts.values()) >= 200 and total >= 1000
    return Target(name, holds, f"{total} items: " + ", ".join(f"{skill} {count}" for skill, count in counts.items()))


def _count(table: Table, scope: Scope) -> int:
    return next((row.summary.items for row in table.rows if row.scope == scope), 0)


def _length(table: Table) -> Target:
    name = "answers in Q: median of at least 40 tokens, a quarter longer than two blocks"
    row = table.summary(QUALITY)
    if row is None:
        return _missing(name, "Q")
    figures = f"median {row.median_tokens:g} tokens, {row.over_two_blocks:.0%} longer than two blocks"
    return Target(name, row.median_tokens >= 40 and row.over_two_blocks >= 0.25, figures)


def _accuracy(table: Table, name: str, scope: Scope, least: float) -> Target:
    name = f"{name}: at least {least:.0%}"
    row = table.summary(QUALITY, scope)
    if row is None:
        return _missing(name, f"Q on {scope}")
    return Target(name, row.accuracy.value >= least, f"{percent(row.accuracy)}% of {row.items} items")


def _swept(table: Table) -> Target:
    name = (
        f"a point with editing within {100 * LOSS_ALLOWED:g} points of Q at {SPEEDUP_WANTED:g} times its TPF, "
        f"and above {DRAFT_ONLY.label} in accuracy and TPF"
    )
    quality, draft = table.summary(QUALITY), table.summary(DRAFT_ONLY)
    points = [row for row in table.rows if row.scope == ALL and row.setting.edits and row.setting != QUALITY]
    if quality is None or draft is None or not points:
        return _missing(name, "Q, draft-only and other points with editing")

    def ok(point: Summary) -> bool:
        near = point.accuracy.value >= quality.accuracy.value - LOSS_ALLOWED
        fast = point.tokens_per_forward >= SPEEDUP_WANTED * quality.tokens_per_forward
        better = point.accuracy.value > draft.accuracy.value and point.tokens_per_forward > draft.tokens_per_forward
        return near and fast and better

    good = [row for row in points if ok(row.summary)]
    fast = [p for p in points if p.summary.tokens_per_forward >= SPEEDUP_WANTED * quality.tokens_per_forward]
    # The best of the points that hold; if none does, of those that are fast enough; else simply the fastest.
    best = max(
        good or fast or [max(points, key=lambda row: row.summary.tokens_per_forward)],
        key=lambda row: row.summary.accuracy.value,
    )
    figures = f"{best.setting.label} ({best.setting.key}): " + "; ".join(
        f"against {other.label} {_against(difference)}"
        for other in (QUALITY, DRAFT_ONLY)
        if (difference := table.difference(best.setting, other)) is not None
    )
    return Target(name, bool(good), figures)


def _against(difference: Difference) -> str:
    ratio = difference.tokens_per_forward_ratio
    return (
        f"{percent(difference.accuracy, sign=True)} points at {ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] "
        "times the TPF"
    )


def _editing(table: Table) -> Target:
    name = "in S, editing beats no editing, interval excluding 0"
    difference = table.difference(SPEED, SPEED_UNEDITED)
    if difference is None:
        return _missing(name, f"{SPEED.label} and {SPEED_UNEDITED.label}")
    return Target(name, difference.accuracy.low > 0, _against(difference))


def _missing(name: str, what: str) -> Target:
    return Target(name, None, f"not measured: needs {what}")
