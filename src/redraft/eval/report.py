"""The report of an evaluation as Markdown, JSON and a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from redraft.errors import InvalidInput
from redraft.eval.picture import draw_frontier
from redraft.eval.settings import LABELS, QUALITY, SPEED, Setting
from redraft.eval.skills import SPLIT_NAMES
from redraft.eval.statistics import Summary
from redraft.eval.table import ALL, Row, Scope, Table, detailed
from redraft.eval.targets import percent, targets
from redraft.skills import SKILLS

PICTURE = "frontier.png"
FIGURES = ("items", "accuracy %, 95%", "TPF", "TPS", "edits / 100 tokens", "stutter", "median tokens", "> 2 blocks")
UNKNOWN = "–"
VERDICTS = {True: "yes", False: "no", None: "not measured"}


def report_json(table: Table) -> dict[str, Any]:
    """The whole table; for the skills also the targets, and what each level asks, as JSON values."""
    if not of_skills(table):
        return table.to_json()
    levels = {skill: SKILLS[skill].level_descriptions for skill in table.tasks}
    return table.to_json() | {"targets": [asdict(target) for target in targets(table)], "levels": levels}


def write_report(table: Table, folder: Path) -> dict[str, Any]:
    """Writes report.md, report.json and frontier.png into a folder, and returns the content of the JSON file."""
    content = report_json(table)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        (folder / "report.md").write_text(markdown(table), encoding="utf-8")
        draw_frontier(table, folder / PICTURE)
    except OSError as error:
        raise InvalidInput(f"cannot write the report to {folder}: {error.strerror or error}") from error
    return content


def markdown(table: Table) -> str:
    """The report for a reader."""
    shown = [row for row in table.rows if row.scope == ALL and row.setting in detailed(table.settings)]
    skills = of_skills(table)
    parts = ["# Held-out skills: score and speed" if skills else "# Evaluation: score and speed", _method(table)]
    if skills:
        verdicts = [(t.name, VERDICTS[t.holds], t.figures) for t in targets(table)]
        parts += ["## Targets", grid(("target", "holds", "figures"), verdicts)]
    parts += ["## Settings", _settings(shown), "## Skills" if skills else "## Tasks", _tasks(table)]
    if any(row.scope.level is not None for row in table.rows):
        parts += ["## Levels", _levels(table)]
    parts += ["## Sweep", f"![accuracy against tokens per forward]({PICTURE})"]
    swept = [row for row in table.rows if row.scope == ALL]
    if skills or swept != shown:
        parts.append(_settings(swept))
    if table.differences:
        parts += [
            "## Differences",
            "Paired on the same items, 95% intervals by bootstrap. Points of the sweep are compared on the items that "
            "they were chosen by, so the best of them is flattered a little.",
            _differences(table),
        ]
    if table.errors:
        parts += ["## Errors", _errors(table)]
    return "\n\n".join(parts) + "\n"


def of_skills(table: Table) -> bool:
    """Whether these are the skills of the embedded model, which have targets."""
    return set(table.tasks) <= SKILLS.keys()


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _method(table: Table) -> str:
    run = table.run
    return (
        f"Model `{run.model}` (fingerprint {run.fingerprint}), {run.items}. {run.how} TPF: tokens generated (EOS "
        "counted) over denoising forwards. TPS: tokens over wall time, prefill included. Accuracy with Wilson's 95% "
        "interval, that of the mean where answers can be partly right. Stutter: share of words that end a repetition "
        "of the 1 to 4 words before. > 2 blocks: share of the answers longer than that."
    )


def _settings(rows: Sequence[Row]) -> str:
    head = ("setting", "threshold", "edit threshold", *FIGURES, "first block, ms")
    return grid(
        head,
        [
            (
                LABELS.get(row.setting, ""),
                row.setting.key.partition("/")[0],
                row.setting.key.partition("/")[2],
                *_figures(row.summary),
                f"{1000 * row.summary.first_block_seconds:.0f}",
            )
            for row in rows
        ],
    )


def _tasks(table: Table) -> str:
    rows = [
        (name, row.setting.label, *_figures(row.summary))
        for scope, name in _named_scopes(table)
        for row in table.rows
        if row.scope == scope
    ]
    return grid(("skill" if of_skills(table) else "task", "setting", *FIGURES), rows)


def _named_scopes(table: Table) -> list[tuple[Scope, str]]:
    scopes: list[tuple[Scope, str]] = [
        (Scope(split=split), f"all, {SPLIT_NAMES.get(split, split)}") for split in table.splits
    ]
    for skill in table.tasks:
        scopes.append((Scope(skill), skill))
        if skill == "code":
            scopes += [(Scope(skill, split), f"code, {SPLIT_NAMES[split]}") for split in table.splits]
    return scopes


def _figures(summary: Summary) -> tuple[str, ...]:
    return (
        f"{summary.items}, {summary.errors} not graded" if summary.errors else str(summary.items),
        percent(summary.accuracy) if summary.errors < summary.items else UNKNOWN,
        f"{summary.tokens_per_forward:.2f}" if summary.tokens_per_forward else UNKNOWN,
        f"{summary.tokens_per_second:.0f}",
        f"{summary.edits_per_100_tokens:.1f}",
        f"{summary.stutter:.1%}",
        f"{summary.median_tokens:g}",
        f"{summary.over_two_blocks:.0%}",
    )


def _levels(table: Table) -> str:
    shown = [setting for setting in (QUALITY, SPEED) if setting in table.settings] or detailed(table.settings)
    rows = []
    scopes = dict.fromkeys(row.scope for row in table.rows if row.scope.level is not None)
    for scope in sorted(scopes, key=lambda scope: (table.tasks.index(scope.task or ""), scope.level)):
        skill = SKILLS.get(scope.task or "")
        asks = skill.level_descriptions.get(scope.level or 0, "") if skill else ""
        cells = [_cell(table, setting, scope) for setting in shown]
        rows.append((scope.task or "", str(scope.level), asks, *cells))
    return grid(("skill", "level", "asks for", *(f"{setting.label}, accuracy %" for setting in shown)), rows)


def _cell(table: Table, setting: Setting, scope: Scope) -> str:
    summary = table.summary(setting, scope)
    return f"{percent(summary.accuracy)} ({summary.items})" if summary else ""


def _differences(table: Table) -> str:
    def label(key: str) -> str:
        return Setting.parse(key).label

    rows = [
        (
            label(pair.first),
            label(pair.second),
            percent(pair.accuracy, sign=True),
            f"{pair.tokens_per_forward_ratio.value:.2f} "
            f"[{pair.tokens_per_forward_ratio.low:.2f}, {pair.tokens_per_forward_ratio.high:.2f}]",
        )
        for pair in table.differences
    ]
    return grid(("first", "second", "accuracy: first − second, points", "TPF: first / second"), rows)


def _errors(table: Table) -> str:
    """All of them, for each setting that has them; answers that could not be graded count in no score."""
    return grid(
        ("task", "item", "setting", "error"),
        [(record.task, record.item, record.setting, record.error) for record in table.errors],
    )
