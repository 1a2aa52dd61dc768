"""Metrics of a run: a JSONL file that survives resumption, and the picture of its curves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class MetricsFile:
    """One JSON object a line. Opening after `step` steps drops the lines of later ones: they will be run again."""

    def __init__(self, path: Path, step: int):
        kept = [line for line in read_lines(path) if line["step"] <= step]
        path.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        self.handle = path.open("a", encoding="utf-8", buffering=1)

    def write(self, **values: Any) -> None:
        self.handle.write(json.dumps(values) + "\n")

    def close(self) -> None:
        self.handle.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics file; a last line that was cut off by a crash is dropped."""
    if not path.exists():
        return []
    out = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            out.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return out


def draw_curves(metrics: Path, picture: Path) -> None:
    """Losses, accuracies and learning rate against supervised tokens, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = read_lines(metrics)
    tokens = [line["tokens"] / 1e6 for line in lines]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    for key, name in (("draft_loss", "drafting (M2T)"), ("edit_loss", "editing (T2T)")):
        left.plot(tokens, [line[key] for line in lines], label=name, linewidth=1)
    left.set(xlabel="positions trained on (millions)", ylabel="cross-entropy (nats)", yscale="log", title="loss")
    left.legend()
    for key, name in (
        ("draft_accuracy", "masked positions right"),
        ("repair_accuracy", "wrong visible tokens repaired"),
        ("edit_accuracy", "visible positions right"),
    ):
        right.plot(tokens, [line[key] for line in lines], label=name, linewidth=1)
    right.set(xlabel="positions trained on (millions)", ylabel="share", ylim=(0, 1.02), title="accuracy in training")
    right.legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=110)
    pyplot.close(figure)
