"""`redraft eval`: score and speed of a model together with intervals, and the likelihood of text."""

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
    help="Measure score and speed of a model together, or its likelihood of text.",
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
        typer.Option("--settings", help="standard, sweep, multiblock, or points such as 0.5/0,0.95/off,0.5/0/1x3."),
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
    from redraft.eval.records import RecordLog
    from redraft.eval.report import markdown, write_report
    from redraft.eval.runner import fingerprint, in_processes, run
    from redraft.eval.settings import settings_named
    from redraft.eval.skills import SkillSuite
    from redraft.eval.table import Run, build_table
    from redraft.model.folder import checkpoint_folder

    points = settings_named(settings)
    folder = checkpoint_folder(model)
    weights = fingerprint(folder)
    suite = SkillSuite(seed, per_skill, split)
    workers = in_processes(folder, weights, processes, suite)
    items = suite.items()
    with RecordLog(out / "records.jsonl") as log, Progress() as progress:
        try:
            records = run(items, points, weights, log, workers, progress.show)
        except KeyboardInterrupt as stopped:
            print(f"redraft: stopped; the same command goes on from {out}", file=sys.stderr)
            raise typer.Exit(options.INTERRUPTED) from stopped
    table = build_table(records, points, Run(folder.name, weights, seed, split, processes))
    content = write_report(table, out)
    typer.echo(json.dumps(content, ensure_ascii=False) if as_json else markdown(table), nl=as_json)


@evaluation.command()
def elbo(
    model: options.Model = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FILE", help="Rows to score, as training takes them: JSONL.")
    ] = None,
    skills: Annotated[bool, typer.Option("--skills", help="Score the right answers to held-out prompts.")] = False,
    per_skill: Annotated[int, typer.Option("--per-skill", help="With --skills: items of each skill.")] = 20,
    split: Annotated[
        Literal["seen", "test", "both"], typer.Option("--split", help="With --skills: as in `redraft eval skills`.")
    ] = "both",
    seed: Annotated[int, typer.Option("--seed", help="Draws other masks, and other items.")] = 0,
    samples: Annotated[int, typer.Option("--samples", help="Masks of each block: a multiple of 4, at least 8.")] = 8,
    exact: Annotated[bool, typer.Option("--exact", help="Take all masks; for --block-length up to 4.")] = False,
    block_length: Annotated[
        int | None, typer.Option("--block-length", help="Tokens of a block [default: the model's].", show_default=False)
    ] = None,
    bad_rows: Annotated[
        Literal["fail", "skip"], typer.Option("--bad-rows", help="Stop at rows that can't be read, or leave them out.")
    ] = "fail",
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the report and of a line for each document.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Bits per byte and per token of held-out text, by the block-diffusion bound; see docs/likelihood.md.

    Example: redraft eval elbo --data held-out.jsonl --samples 16 --json
    """
    if skills == (data is not None):
        raise InvalidInput("redraft eval elbo scores either --data FILE or --skills; give one of them")
    options.set_threads(threads)
    from redraft.engine.llm import LLM
    from redraft.eval import elbo
    from redraft.model.folder import checkpoint_folder
    from redraft.training.likelihood import Estimator, estimate

    folder = checkpoint_folder(model)
    llm = LLM(folder, device=device, dtype=dtype, block_length=block_length)
    tokenizer = llm.tokenizer
    if tokenizer is None:
        raise InvalidInput(f"redraft eval elbo needs a tokenizer, and {folder} has no tokenizer.json")
    estimator = Estimator(
        block_length=llm.block_length,
        mask_id=llm.control.mask,
        eos_ids=tokenizer.eos_ids,
        samples=0 if exact else samples,
        seed=seed,
    )
    if data is None:
        texts = elbo.skill_texts(tokenizer, context=llm.context_length, seed=seed, per_skill=per_skill, split=split)
    else:
        texts = elbo.file_texts(
            data, tokenizer, context=llm.context_length, block_length=llm.block_length, bad_rows=bad_rows
        )
    with Progress("documents") as progress:
        estimates = estimate(llm.model, [text.sample for text in texts], estimator, progress.show)
    rows = elbo.summarise(texts, estimates)
    report, text = elbo.content(rows, estimator, folder.name), elbo.markdown(rows, estimator, folder.name)
    if out is not None:
        elbo.write_report(out, texts, estimates, report, text)
    typer.echo(json.dumps(report, ensure_ascii=False) if as_json else text, nl=as_json)


class Progress:
    """How much of `what` is there: a bar in a terminal, a line for each twentieth elsewhere; on standard error."""

    PARTS = 20

    def __init__(self, what: str = "answers") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True, highlight=False)
        columns = (BarColumn(bar_width=None), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self._live = console.is_terminal
        self._bar = Bar(*columns, console=console, disable=not self._live)
        self._task = self._bar.add_task("")
        self._what, self._printed = what, 0

    def show(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)
        part = done * self.PARTS // total
        if not self._live and part > self._printed:
            self._printed = part
            print(f"{done}/{total} {self._what}", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
