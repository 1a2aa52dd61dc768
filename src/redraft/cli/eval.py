"""`redraft eval`: score and speed of a model together, with intervals."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from redraft.cli import options
from redraft.errors import InvalidInput

evaluation = typer.Typer(
    help="Measure score and speed of a model together.",
    epilog="Example: redraft eval skills --settings sweep",
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@evaluation.callback(invoke_without_command=True)
def root(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@evaluation.command()
def skills(
    model: options.Model = None,
    per_skill: Annotated[int, typer.Option("--per-skill", help="Items of each skill.")] = 200,
    settings: Annotated[
        str,
        typer.Option("--settings", help="standard, sweep, or points THRESHOLD/EDIT_THRESHOLD such as 0.5/0,0.95/off."),
    ] = "standard",
    seed: Annotated[int, typer.Option("--seed", help="Draws other items.")] = 0,
    split: Annotated[
        Literal["seen", "test", "both"],
        typer.Option("--split", help="Unseen prompts of compositions seen in training, of unseen ones, or half each."),
    ] = "both",
    processes: Annotated[int, typer.Option("--processes", help="Processes of one thread each.")] = 2,
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the report and of the answers; a run that stopped goes on there.")
    ] = Path("runs/eval"),
    as_json: options.Json = False,
) -> None:
    """Answer and grade held-out prompts at several settings; write a table, a picture and every answer.

    Example: redraft eval skills --settings sweep --per-skill 200 --out runs/eval
    """
    if find_spec("matplotlib") is None:
        raise InvalidInput("redraft eval draws its picture with matplotlib: pip install 'redraft[eval]'")
    from redraft.engine.settings import checkpoint_folder
    from redraft.eval.records import RecordLog
    from redraft.eval.report import markdown, write_report
    from redraft.eval.runner import fingerprint, in_processes, run
    from redraft.eval.settings import settings_named
    from redraft.eval.skills import draw_items
    from redraft.eval.table import Run, build_table

    points = settings_named(settings)
    folder = checkpoint_folder(model)
    weights = fingerprint(folder)
    workers = in_processes(folder, weights, processes)
    items = draw_items(seed, per_skill, split)
    with RecordLog(out / "records.jsonl") as log, Progress() as progress:
        try:
            records = run(items, points, weights, log, workers, progress.show)
        except KeyboardInterrupt as stopped:
            print(f"redraft: stopped; the same command goes on from {out}", file=sys.stderr)
            raise typer.Exit(options.INTERRUPTED) from stopped
    table = build_table(records, points, Run(folder.name, weights, seed, split, processes))
    content = write_report(table, out)
    typer.echo(json.dumps(content, ensure_ascii=False) if as_json else markdown(table), nl=as_json)


class Progress:
    """How many answers are there: a bar in a terminal, a line for each twentieth elsewhere; on standard error."""

    PARTS = 20

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True, highlight=False)
        columns = (BarColumn(bar_width=None), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self._live = console.is_terminal
        self._bar = Bar(*columns, console=console, disable=not self._live)
        self._task = self._bar.add_task("")
        self._printed = 0

    def show(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)
        part = done * self.PARTS // total
        if not self._live and part > self._printed:
            self._printed = part
            print(f"{done}/{total} answers", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
