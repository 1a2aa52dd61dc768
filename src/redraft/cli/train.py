"""`redraft train`: a recipe in, a model out; the same command resumes an interrupted run."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from redraft.cli import launch, options
from redraft.errors import ConfigError


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of one in this package (nano.yaml).")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the recipe: schedule.steps=100.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Refuse to continue a run that is already there.")] = False,
    threads: options.Threads = None,
) -> None:
    """Train a model by a recipe, or continue the run that was interrupted.

    Example: redraft train recipes/nano.yaml schedule.steps=2000 run.output=runs/short
    """
    path = recipe_path(recipe)
    if find_spec("matplotlib") is None:
        raise ConfigError("redraft train draws its curves with matplotlib: pip install 'redraft[train]'")
    options.set_threads(threads)
    from redraft.training.loop import train as run
    from redraft.training.recipe import load_recipe

    plan = load_recipe(path, overrides or ())
    if plan.run.processes > 1 and not launch.in_group():
        raise typer.Exit(launch.launch(plan.run.processes, sys.argv[1:]))
    with Progress(plan.schedule.steps) as progress:
        try:
            folder = run(plan, resume=not fresh, report=progress.show)
        except KeyboardInterrupt as stopped:
            progress.close()
            print(f"redraft: {stopped}", file=sys.stderr)
            raise typer.Exit(options.INTERRUPTED) from stopped
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
    """The line of numbers of a training run: a bar in a terminal, now and then a plain line elsewhere."""

    PLAIN_EVERY = 100

    def __init__(self, steps: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True, highlight=False)
        columns = (
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._live = console.is_terminal
        self._steps = steps
        self._bar = Bar(*columns, console=console, disable=not self._live)
        self._task = self._bar.add_task("", total=steps)

    def show(self, line: dict[str, float]) -> None:
        """Shows one step's metrics."""
        numbers = (
            f"draft {line['draft_loss']:.3f}  edit {line['edit_loss']:.3f}  {line['tokens_per_second']:,.0f} tokens/s"
        )
        step = int(line["step"])
        self._bar.update(self._task, completed=step, description=numbers)
        if not self._live and (step % self.PLAIN_EVERY == 0 or step == self._steps):
            print(f"{step}/{self._steps}  {numbers}", file=sys.stderr, flush=True)

    def close(self) -> None:
        self._bar.stop()

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
