"""The picture of a run: reward, held-out accuracy, how far the policy moved, what answers are like."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from redraft.training.metrics import read_lines


@dataclass(frozen=True)
class Panel:
    """One axis: the metrics of these names, those that there are."""

    label: str
    names: tuple[str, ...]


PANELS = (
    Panel("reward of the answers of a step", ("reward", "correct", "format")),
    Panel("held-out accuracy", ("eval_Q_accuracy", "eval_S_accuracy")),
    Panel("distance from the policy of the batch", ("kl", "log_ratio_spread", "reference_kl")),
    Panel("shares", ("clipped", "skipped", "complete")),
    Panel("tokens of an answer", ("response_tokens",)),
    Panel("tokens per forward", ("tokens_per_forward",)),
)


def draw_rewards(metrics: Path, picture: Path) -> None:
    """Draws a metrics file as a PNG, steps from left to right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = read_lines(metrics)
    there = {name for line in lines for name in line}
    panels = [panel for panel in PANELS if there & set(panel.names)]
    if not panels:
        return
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(5 * columns, 3.4 * rows), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        for name in panel.names:
            having = [line for line in lines if name in line]
            if having:
                style = {"marker": "o", "markersize": 3} if name.startswith("eval_") else {}
                steps, values = [line["step"] for line in having], [line[name] for line in having]
                axis.plot(steps, values, label=name.removeprefix("eval_").replace("_", " "), linewidth=1, **style)
        axis.set(xlabel="step", ylabel=panel.label)
        axis.legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=110)
    pyplot.close(figure)
