"""`redraft rl`: a recipe in, a model that solves more of its tasks out; the same command resumes an interrupted run."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated, TextIO

import typer

from redraft.cli import options
from redraft.cli.train import recipe_path, scores
from redraft.errors import ConfigError


def rl(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of one in this package (nano_math.yaml).")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the recipe: schedule.steps=20.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Refuse to continue a run that is already there.")] = False,
    threads: options.Threads = None,
) -> None:
    """Train a model by reinforcement learning (EBPO), or continue the run that was interrupted.

    Example: redraft rl recipes/nano_math.yaml schedule.steps=20 run.output=runs/short
    """
    path = recipe_path(recipe)
    if find_spec("matplotlib") is None:
        raise ConfigError("redraft rl draws its curves with matplotlib: pip install 'redraft[rl]'")
    options.set_threads(threads)
    from redraft.cli.validate import by_skills
    from redraft.rl.loop import reinforce
    from redraft.rl.recipe import RLRecipe
    from redraft.training.recipe import load_as
    from redraft.training.trackers import tracker_package

    settings = load_as(RLRecipe, path, overrides or ())
    if settings.run.track != "none":
        tracker_package(settings.run.track)  # a missing package shows before anything is built
    if settings.workers.count and find_spec("ray") is None:
        raise ConfigError("workers.count needs the package ray: pip install 'redraft[rl]'")
    evaluate = by_skills(settings.run.evaluate_items) if settings.run.evaluate_every else None
    table = Table(settings.schedule.steps)
    try:
        folder = reinforce(settings, resume=not fresh, report=table.show, evaluate=evaluate)
    except KeyboardInterrupt as stopped:
        print(f"redraft: {stopped}", file=sys.stderr)
        raise typer.Exit(options.INTERRUPTED) from stopped
    typer.echo(folder)


COLUMNS = {
    "reward": ("reward", "7.3f"),
    "correct": ("right", "6.3f"),
    "skipped": ("skipped", "7.2f"),
    "clipped": ("clipped", "7.2f"),
    "log_ratio_spread": ("spread", "8.1e"),
    "kl": ("kl", "8.1e"),
    "entropy": ("entropy", "7.3f"),
    "response_tokens": ("tokens", "6.1f"),
    "tokens_per_forward": ("TPF", "5.2f"),
    "rollout_seconds": ("rollout s", "9.1f"),
    "update_seconds": ("update s", "8.1f"),
}
"""Metric: heading, and the format of its numbers, which gives the column's width."""


class Table:
    """The metrics of a run as a table that grows by a row a step. What a step doesn't have is a dash."""

    HEADING_EVERY = 25

    def __init__(self, steps: int, out: TextIO | None = None) -> None:
        self._steps, self._out, self._rows = steps, out or sys.stderr, 0
        self._step = 2 * len(str(steps)) + 1

    def show(self, line: dict[str, float]) -> None:
        """Shows a step's metrics, an evaluation, or where the run starts from (a line of `step` alone)."""
        step = int(line["step"])
        if len(line) == 1:
            if step:
                self._print(f"continues after step {step} of {self._steps}")
        elif evaluation := {name: value for name, value in line.items() if name.startswith("eval_")}:
            self._print(scores(evaluation))
        else:
            if self._rows % self.HEADING_EVERY == 0:
                self._print("  ".join(["step".rjust(self._step), *map(_heading, COLUMNS.values())]))
            self._rows += 1
            cells = [_cell(line.get(name), form) for name, (_, form) in COLUMNS.items()]
            self._print("  ".join([f"{step}/{self._steps}".rjust(self._step), *cells]))

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)


def _width(form: str) -> int:
    return int(form.partition(".")[0])


def _heading(column: tuple[str, str]) -> str:
    return column[0].rjust(_width(column[1]))


def _cell(value: float | None, form: str) -> str:
    return "-".rjust(_width(form)) if value is None else format(value, form)
