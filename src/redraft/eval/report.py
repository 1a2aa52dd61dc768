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
from redraft.eval.statistics import Summary
from redraft.eval.table import ALL, Row, Scope, Table, detailed
from redraft.eval.targets import percent, targets
from redraft.skills import SKILLS

PICTURE = "frontier.png"
FIGURES = ("items", "accuracy %, 95%", "TPF", "TPS", "edits / 100 tokens", "median tokens", "> 2 blocks")
SPLIT_NAMES = {"seen": "seen compositions", "test": "unseen compositions"}
VERDICTS = {True: "yes", False: "no", None: "not measured"}


def report_json(table: Table) -> dict[str, Any]:
    """The whole table, the targets, and what each level asks, as JSON values."""
    levels = {skill: SKILLS[skill].level_descriptions for skill in table.tasks if skill in SKILLS}
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
    parts = [
        "# Held-out skills: score and speed",
        _method(table),
        "## Targets",
        grid(("target", "holds", "figures"), [(t.name, VERDICTS[t.holds], t.figures) for t in targets(table)]),
        "## Settings",
        _settings(table, [row for row in table.rows if row.scope == ALL and row.setting in detailed(table.settings)]),
        "## Skills",
        _skills(table),
        "## Levels",
        _levels(table),
        "## Sweep",
        f"![accuracy against tokens per forward]({PICTURE})",
        _settings(table, [row for row in table.rows if row.scope == ALL]),
        "## Differences",
        "Paired on the same items, 95% intervals by bootstrap. Points of the sweep are compared on the items that they "
        "were chosen by, so the best of them is flattered a little.",
        _differences(table),
    ]
    return "\n\n".join(parts) + "\n"


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _method(table: Table) -> str:
    run = table.run
    parts = " and ".join(f"{_count(table, split)} of {SPLIT_NAMES.get(split, split)}" for split in table.splits)
    side = "one process" if run.processes == 1 else f"{run.processes} processes side by side"
    return (
        f"Model `{run.model}` (fingerprint {run.fingerprint}), item seed {run.seed}: unseen prompts, {parts}; the "
        f"levels of each skill in equal shares. Greedy, one request at a time, float32 on the CPU, {side}, one thread "
        "each. TPF: tokens generated (EOS counted) over denoising forwards. TPS: tokens over wall time of one process, "
        "prefill included. Accuracy with Wilson's 95% interval. > 2 blocks: share of the answers longer than that."
    )


def _count(table: Table, split: str) -> int:
    return next(row.summary.items for row in table.rows if row.scope == Scope(split=split))


def _settings(table: Table, rows: Sequence[Row]) -> str:
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


def _skills(table: Table) -> str:
    rows = [
        (name, row.setting.label, *_figures(row.summary))
        for scope, name in _named_scopes(table)
        for row in table.rows
        if row.scope == scope
    ]
    return grid(("skill", "setting", *FIGURES), rows)


def _named_scopes(table: Table) -> list[tuple[Scope, str]]:
    scopes: list[tuple[Scope, str]] = [(Scope(split=split), f"all, {SPLIT_NAMES[split]}") for split in table.splits]
    for skill in table.tasks:
        scopes.append((Scope(skill), skill))
        if skill == "code":
            scopes += [(Scope(skill, split), f"code, {SPLIT_NAMES[split]}") for split in table.splits]
    return scopes


def _figures(summary: Summary) -> tuple[str, ...]:
    return (
        str(summary.items),
        percent(summary.accuracy),
        f"{summary.tokens_per_forward:.2f}",
        f"{summary.tokens_per_second:.0f}",
        f"{summary.edits_per_100_tokens:.1f}",
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
