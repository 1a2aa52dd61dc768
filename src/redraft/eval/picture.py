"""The frontier as a picture: accuracy against tokens per forward, with editing and without."""

from __future__ import annotations

from pathlib import Path

from redraft.eval.settings import LABELS
from redraft.eval.table import ALL, Row, Table


def draw_frontier(table: Table, path: Path) -> None:
    """Writes a PNG with one line for each edit threshold, thresholds along it, and 95% intervals of the accuracy."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines: dict[str, list[Row]] = {}
    for row in table.rows:
        if row.scope == ALL:
            lines.setdefault(row.setting.edit, []).append(row)
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for _, rows in sorted(lines.items()):
        rows.sort(key=lambda row: row.setting.threshold or 0.0)
        speeds = [row.summary.tokens_per_forward for row in rows]
        shares = [row.summary.accuracy for row in rows]
        below = [100 * (share.value - share.low) for share in shares]
        above = [100 * (share.high - share.value) for share in shares]
        name = _name(rows[0])
        style = "--" if not rows[0].setting.edits else "-"
        heights = [100 * share.value for share in shares]
        drawn = {"label": name, "fmt": f"o{style}", "capsize": 2, "linewidth": 1.2, "markersize": 4}
        axes.errorbar(speeds, heights, yerr=(below, above), **drawn)
        for speed, height, row in zip(speeds, heights, rows, strict=True):
            text = row.setting.label if row.setting in LABELS else row.setting.key.partition("/")[0]
            axes.annotate(text, (speed, height), (4, 4), textcoords="offset points", fontsize=7)
    axes.set(xlabel="tokens per forward (TPF)", ylabel="accuracy (%)", title="Score against speed")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _name(row: Row) -> str:
    """Of the line that a point lies on."""
    if row.setting.threshold is None:
        return "as served"
    return f"edit threshold {row.setting.edit}" if row.setting.edits else "no editing"
