"""`redraft train`: a recipe in, a model out; the same command resumes an interrupted run."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from redraft.cli import launch, options
from redraft.cli.validate import evaluator
from redraft.errors import ConfigError


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of one in this package (nano.yaml).")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the recipe: schedule.steps=100.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Refuse to continue a run that is already there.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only print the memory that it needs on each GPU, and whether that fits.")
    ] = False,
    gpus: Annotated[int, typer.Option(help="GPUs of the plan.")] = 8,
    gpu_memory: Annotated[float, typer.Option(help="Memory of each of them, in GB.")] = 80.0,
    as_json: Annotated[bool, typer.Option("--json", help="The plan as JSON, in bytes.")] = False,
    threads: options.Threads = None,
) -> None:
    """Train a model by a recipe, or continue the run that was interrupted.

    Example: redraft train recipes/nano.yaml schedule.steps=2000 run.output=runs/short

    Before a large run: redraft train mini-cpt.yaml --plan --gpus 8 --gpu-memory 80
    """
    path = recipe_path(recipe)
    if plan:
        from redraft.cli.plan import show_plan
        from redraft.training.recipe import load_recipe

        show_plan(load_recipe(path, overrides or ()), gpus, gpu_memory, as_json=as_json)
        return
    if find_spec("matplotlib") is None:
        raise ConfigError("redraft train draws its curves with matplotlib: pip install 'redraft[train]'")
    options.set_threads(threads)
    from redraft.training.loop import train as run
    from redraft.training.recipe import load_recipe
    from redraft.training.trackers import tracker_package

    settings = load_recipe(path, overrides or ())
    evaluate = evaluator(settings)
    if settings.run.track != "none":
        tracker_package(settings.run.track)  # a missing package shows before anything is built
    if settings.run.processes > 1 and not launch.in_group():
        raise typer.Exit(launch.launch(settings.run.processes, sys.argv[1:]))
    with Progress(settings.schedule.steps) as progress:
        try:
            folder = run(settings, resume=not fresh, report=progress.show, evaluate=evaluate)
        except KeyboardInterrupt as stopped:
            progress.close()
            print(f"redraft: {stopped}", file=sys.stderr)
            raise typer.Exit(options.INTERRUPTED) from stopped
    if os.environ.get("RANK", "0") == "0":  # torchrun shows what every process writes
        typer.echo(folder)


def recipe_path(name: str) -> Path:
    """The recipe file of a path, or of a name among the recipes that come with the package."""
    path = Path(name)
    if path.exists():
        return path
    import redraft

    package = Path(redraft.__file__).parent
    # Inside an installed package the recipes lie in it; in a checkout they lie at its root.
    for folder in (package / "recipes", package.parents[1] / "recipes"):
        if (folder / path.name).is_file():
            return folder / path.name
    raise ConfigError(f"there is no recipe {name!r}: give a path, or a name such as nano.yaml")


class Progress:
    """The numbers of a training run: a bar in a terminal, now and then a plain line elsewhere.

    clock: seconds, for the time left: what is left to do at the pace since the command started, evaluations and
    checkpoints included.
    """

    PLAIN_EVERY = 10.0  # seconds between plain lines

    def __init__(self, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True, highlight=False)
        columns = (
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
        )
        self._live = console.is_terminal
        self._steps, self._clock = steps, clock
        self._start, self._began, self._printed = 0, clock(), -math.inf
        self._bar = Bar(*columns, console=console, disable=not self._live)
        self._task = self._bar.add_task("", total=steps)

    def show(self, line: dict[str, float]) -> None:
        """Shows a step's metrics, an evaluation, or where the run starts from (a line of `step` alone)."""
        step = int(line["step"])
        if len(line) == 1:
            self._start, self._began = step, self._clock()
            self._bar.update(self._task, completed=step)
            if step:
                self._bar.console.print(f"continues after step {step} of {self._steps}")
        elif evaluation := {name: value for name, value in line.items() if name.startswith("eval_")}:
            # Above the bar, where it stays.
            self._bar.console.print(f"{step}/{self._steps}  {scores(evaluation)}", soft_wrap=True)
        else:
            numbers = f"{losses(line)}  {line['positions_per_second']:,.0f} positions/s"
            if step < self._steps:
                numbers += f"  {duration(self._left(step))} left"
            self._bar.update(self._task, completed=step, description=numbers)
            if not self._live and (self._clock() - self._printed >= self.PLAIN_EVERY or step == self._steps):
                self._printed = self._clock()
                print(f"{step}/{self._steps}  {numbers}", file=sys.stderr, flush=True)

    def _left(self, step: int) -> float:
        return (self._clock() - self._began) / max(1, step - self._start) * (self._steps - step)

    def close(self) -> None:
        self._bar.stop()

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def losses(line: dict[str, float]) -> str:
    """The loss of each stream that a step reports."""
    from redraft.training.metrics import streams

    return "  ".join(f"{name.removesuffix('_loss')} {line[name]:.3f}" for name in streams(list(line)))


def scores(evaluation: dict[str, float]) -> str:
    """The score, and the accuracies or bits that it comes from."""
    kind = "eval_average_" if "eval_average_score" in evaluation else "eval_"
    values = {name.removeprefix(kind): value for name, value in evaluation.items()}
    shown = {name: value for name, value in values.items() if name.endswith(("accuracy", "bits"))}
    named = "  ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in shown.items())
    subject = "mean of the best checkpoints" if kind == "eval_average_" else "evaluation"
    return f"{subject}: score {values['score']:.3f}  {named}".rstrip()


def duration(seconds: float) -> str:
    """As 45s, 3:20 or 2:03:20."""
    whole = round(seconds)
    minutes, hours = whole // 60, whole // 3600
    if hours:
        return f"{hours}:{minutes % 60:02d}:{whole % 60:02d}"
    return f"{minutes}:{whole % 60:02d}" if minutes else f"{whole}s"
