"""The front of quality against speed: found by a race, printed and drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from redraft.errors import InvalidInput
from redraft.eval.race import Answers, Evaluate, Race, by_front, front, race, speed
from redraft.eval.report import UNKNOWN, grid
from redraft.eval.settings import OFF, Setting
from redraft.eval.statistics import Summary, summarise
from redraft.eval.targets import percent
from redraft.eval.task import Item

FIRST = 1 / 16
KEEP = 6
PICTURE = "frontier.png"
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_EDITED = tuple(Setting(threshold, edit) for threshold in THRESHOLDS for edit in (0.0, 0.5))
# Threshold × edit threshold, and with editing also fewer post steps and one open block.
CANDIDATES: Final = (
    *(Setting(threshold, OFF) for threshold in (*THRESHOLDS, 0.95)),
    *_EDITED,
    *(replace(setting, max_post_steps=4) for setting in _EDITED),
    *(replace(setting, mbe_blocks=1) for setting in _EDITED),
)


@dataclass(frozen=True, slots=True)
class Point:
    """A setting on the items that it saw. on_front: no other that saw as many beats it in score and speed."""

    setting: Setting
    summary: Summary
    on_front: bool


@dataclass(frozen=True)
class Frontier:
    """points: the front, the fastest first, then the others by the number of items that they saw. answers: how many the
    search took; grid: how many all candidates on all items would have taken."""

    points: tuple[Point, ...]
    items: int
    answers: int
    grid: int


def find(candidates: Sequence[Setting], items: Sequence[Item], evaluate: Evaluate) -> Frontier:
    """Races the candidates. Raises InvalidInput for fewer than two of them."""
    if len(set(candidates)) < 2:
        raise InvalidInput("a frontier needs at least two settings")
    found = race(candidates, items, evaluate, by_front, keep=KEEP, first=FIRST)
    finished: Answers = {setting: found.answers[setting] for setting in found.survivors}
    best = front(finished)
    others = sorted(found.answers.keys() - set(best), key=lambda each: _order(found, each))
    points = [Point(each, summarise(found.answers[each]), each in best) for each in (*best, *others)]
    return Frontier(tuple(points), len(items), found.cost, len(found.answers) * len(items))


def content(frontier: Frontier) -> dict[str, Any]:
    """As JSON values."""
    points = [
        {"setting": point.setting.key, "fields": point.setting.fields, "on_front": point.on_front}
        | asdict(point.summary)
        for point in frontier.points
    ]
    return {
        "items": frontier.items,
        "answers": frontier.answers,
        "answers_of_the_full_grid": frontier.grid,
        "points": points,
    }


def markdown(frontier: Frontier, about: str) -> str:
    """For a reader. about: what was measured."""
    rows = [
        (
            "yes" if point.on_front else "" if point.summary.items == frontier.items else "left out",
            point.setting.key,
            str(point.summary.items),
            percent(point.summary.accuracy),
            f"{point.summary.tokens_per_forward:.2f}" if point.summary.tokens_per_forward else UNKNOWN,
            f"{point.summary.tokens_per_second:.0f}",
            f"{point.summary.edits_per_100_tokens:.1f}",
            f"{point.summary.stutter:.1%}",
        )
        for point in frontier.points
    ]
    head = ("on the front", "setting", "items", "score %, 95%", "TPF", "TPS", "edits / 100 tokens", "stutter")
    share = frontier.answers / frontier.grid
    return (
        f"# Quality against speed\n\n{about} {frontier.answers} answers, {share:.0%} of the full grid's "
        f"{frontier.grid}: settings that others clearly beat were left out early, and their figures are of fewer items."
        f"\n\n![score against tokens per forward]({PICTURE})\n\n{grid(head, rows)}\n"
    )


def write(frontier: Frontier, about: str, folder: Path) -> None:
    """frontier.json, frontier.md and frontier.png."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "frontier.json").write_text(json.dumps(content(frontier), indent=1) + "\n", encoding="utf-8")
        (folder / "frontier.md").write_text(markdown(frontier, about), encoding="utf-8")
        draw(frontier, folder / PICTURE)
    except OSError as error:
        raise InvalidInput(f"cannot write the frontier to {folder}: {error.strerror or error}") from error


def draw(frontier: Frontier, path: Path) -> None:
    """A PNG: the front as a line with 95% intervals, what was left out in grey."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    def drawn(point: Point) -> tuple[float, float]:
        rate = point.summary.tokens_per_forward or point.summary.tokens_per_second
        return rate, 100 * point.summary.accuracy.value

    figure, axes = pyplot.subplots(figsize=(8, 5))
    others = [drawn(point) for point in frontier.points if not point.on_front]
    axes.scatter([x for x, _ in others], [y for _, y in others], color="0.7", s=14, label="other settings")
    best = [point for point in frontier.points if point.on_front]
    below = [100 * (point.summary.accuracy.value - point.summary.accuracy.low) for point in best]
    above = [100 * (point.summary.accuracy.high - point.summary.accuracy.value) for point in best]
    places = [drawn(point) for point in best]
    xs, ys = [x for x, _ in places], [y for _, y in places]
    axes.errorbar(xs, ys, yerr=(below, above), fmt="o-", capsize=2, markersize=4, label="front")
    for point, place in zip(best, places, strict=True):
        axes.annotate(point.setting.label, place, (4, 4), textcoords="offset points", fontsize=7)
    known = any(point.summary.tokens_per_forward for point in frontier.points)
    axes.set(xlabel="tokens per forward (TPF)" if known else "tokens per second (TPS)", ylabel="score (%)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _order(found: Race, setting: Setting) -> tuple[int, float]:
    records = found.answers[setting]
    return -len(records), -speed(records)
