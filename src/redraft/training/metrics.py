"""Metrics of a run: a JSONL file that survives resumption, and the picture of its curves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redraft.errors import CheckpointError

RENAMED = {"tokens": "positions", "tokens_per_second": "positions_per_second", "rate": "learning_rate_factor"}


class MetricsFile:
    """One JSON object a line. Opening after `step` steps drops the lines of later ones: they will be run again.

    Raises CheckpointError where the file can't be read or written (a full disk).
    """

    def __init__(self, path: Path, step: int):
        self.path = path
        try:
            kept = [line for line in read_lines(path) if line["step"] <= step]
            aside = path.with_name(f"{path.name}.writing")
            aside.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
            aside.replace(path)
            self.handle = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise self._failed(error) from error

    def write(self, **values: Any) -> None:
        try:
            self.handle.write(json.dumps(values) + "\n")
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        try:
            self.handle.close()
        except OSError as error:  # it tries again to write what it could not
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"the metrics can't be written to {self.path}: {error.strerror or error}")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics file, earlier names of metrics replaced by those of today; a last line that was cut
    off by a crash is dropped."""
    if not path.exists():
        return []
    out = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            out.append({RENAMED.get(name, name): value for name, value in json.loads(line).items()})
        except json.JSONDecodeError:
            break
    return out


def streams(names: list[str]) -> list[str]:
    """The losses among the names of metrics: of each stream (`draft_loss`, `edit_loss`), or the one that there is."""
    return [name for name in names if name.endswith("_loss") and not name.startswith("eval_")] or [
        name for name in names if name == "loss"
    ]


@dataclass(frozen=True)
class Panel:
    """One axis of the picture: the metrics whose names end so. shares: between 0 and 1."""

    ending: str
    label: str
    log: bool = False
    shares: bool = False

    def of(self, names: list[str]) -> list[str]:
        if self.ending == "loss":
            return streams(names)
        return [name for name in names if name.endswith(self.ending) and not name.startswith("eval_average_")]


PANELS = (
    Panel("loss", "loss (nats)", log=True),
    Panel("accuracy", "share right", shares=True),
    Panel("margin", "margin (nats)"),
    Panel("bits", "held-out rows (bits)"),
)


def draw_curves(metrics: Path, picture: Path) -> None:
    """Whatever losses, accuracies, margins and evaluations the metrics hold against positions trained on, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = read_lines(metrics)
    names = list(dict.fromkeys(name for line in lines for name in line))
    panels = [(panel, panel.of(names)) for panel in PANELS if panel.of(names)]
    if not panels:
        return
    short = max((line["positions"] for line in lines if "positions" in line), default=0) < 1e6
    unit, named = (1e3, "thousands") if short else (1e6, "millions")
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5.5 * len(panels), 4), squeeze=False)
    for axis, (panel, shown) in zip(axes[0], panels, strict=True):
        for name in shown:
            having = [line for line in lines if name in line]
            style = {"marker": "o", "markersize": 3} if name.startswith("eval_") else {}
            axis.plot(
                [line["positions"] / unit for line in having],
                [line[name] for line in having],
                label=name.replace("_", " "),
                linewidth=1,
                **style,
            )
        axis.set(xlabel=f"positions trained on ({named})", ylabel=panel.label)
        if panel.log and all(line[name] > 0 for line in lines for name in shown if name in line):
            axis.set_yscale("log")
        if panel.shares:
            axis.set_ylim(0, 1.02)
        axis.legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=110)
    pyplot.close(figure)
