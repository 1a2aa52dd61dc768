"""`redraft eval`: score and speed of a model together with intervals, and the likelihood of text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from redraft.cli import asking, options
from redraft.cli.elbo import elbo
from redraft.cli.harness import lm_eval
from redraft.cli.search import frontier
from redraft.errors import InvalidInput

evaluation = typer.Typer(
    help="Measure score and speed of a model together, or its likelihood of text.",
    epilog="Example: redraft eval --suite humaneval,gsm8k --limit 20 --settings quality,speed",
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Out = Annotated[
    Path, typer.Option("--out", help="Folder of the report and of the answers; a run that stopped goes on there.")
]


@evaluation.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    suite: asking.Names = None,
    data: asking.Data = None,
    grader: asking.Grader = None,
    settings: Annotated[
        str,
        typer.Option(
            "--settings", help="Modes and points such as quality,speed,0.5/off, or standard, sweep, multiblock."
        ),
    ] = "quality,speed",
    limit: asking.Limit = None,
    seed: asking.ItemSeed = 0,
    batch: asking.Batch = 16,
    model: options.Model = None,
    url: asking.Url = None,
    key: asking.Key = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    trace: asking.Trace = True,
    out: Out = Path("runs/eval"),
    as_json: options.Json = False,
) -> None:
    """Answer and grade the items of suites, or prompts of your own, at several settings; or see the commands below.

    Writes a table, a picture and every answer. A server that isn't `redraft serve` takes no thresholds: --settings
    as-served.
    """
    stated = asking.given(ctx)
    if ctx.invoked_subcommand is not None:
        if stated:
            raise InvalidInput(f"{stated[0]} before {ctx.invoked_subcommand} has no effect; options stand after it")
        return
    if not stated:
        typer.echo(ctx.get_help())
        return
    if suite == asking.REPORT:
        other = [name for name in stated if name not in ("--suite", "--model", "--json")]
        if other:
            raise InvalidInput(f"{other[0]} has no effect on {suite}, which lists what runs the report's benchmarks")
        asking.show_report_suite(model, as_json)
        return
    asking.require_matplotlib()
    from redraft.eval.records import RecordLog
    from redraft.eval.report import markdown, write_report
    from redraft.eval.runner import in_batches, run
    from redraft.eval.settings import settings_named
    from redraft.eval.table import Run, build_table

    points = settings_named(settings)
    chosen = asking.suite_of(suite, data, grader, seed, limit)
    items = chosen.items()
    if data is not None and grader is None:
        raise InvalidInput("--data needs --grader exact, contains, or FILE.py:FUNCTION")
    with RecordLog(out / "records.jsonl") as log:
        asked = asking.model_of(model, url, key, device, dtype, threads, batch, trace)
        workers = in_batches(asked.model, chosen, batch)
        with asking.resumable(out) as show:
            records = run(items, points, asked.model.identity, log, workers, show)
    options_ = {"suite": chosen.name, "seed": seed, "limit": limit, "batch": batch, "url": url}
    about = Run(asked.name, asked.model.identity, f"{len(items)} items of {chosen.name}", asked.how, options_)
    table = build_table(records, points, about)
    content = write_report(table, out)
    typer.echo(json.dumps(content, ensure_ascii=False) if as_json else markdown(table), nl=as_json)


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
    asking.require_matplotlib()
    from redraft.eval.records import RecordLog
    from redraft.eval.report import markdown, write_report
    from redraft.eval.runner import fingerprint, in_processes, run
    from redraft.eval.settings import settings_named
    from redraft.eval.skills import SkillSuite, about
    from redraft.eval.table import build_table
    from redraft.model.folder import checkpoint_folder

    points = settings_named(settings)
    folder = checkpoint_folder(model)
    weights = fingerprint(folder)
    suite = SkillSuite(seed, per_skill, split)
    workers = in_processes(folder, weights, processes, suite)
    items = suite.items()
    with RecordLog(out / "records.jsonl") as log, asking.resumable(out) as show:
        records = run(items, points, weights, log, workers, show)
    table = build_table(records, points, about(suite, items, folder.name, weights, processes))
    content = write_report(table, out)
    typer.echo(json.dumps(content, ensure_ascii=False) if as_json else markdown(table), nl=as_json)


def compare(
    first: Annotated[Path, typer.Argument(help="Folder of a run, or its records.jsonl.", show_default=False)],
    second: Annotated[Path, typer.Argument(help="The same of the other run.", show_default=False)],
    pair: Annotated[
        str | None,
        typer.Option(
            "--pair", metavar="A,B", help="Compare setting A of the first with B of the second.", show_default=False
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """What differs between two runs on the same items, paired, and whether that may be chance.

    Example: redraft eval compare runs/eval-before runs/eval-after
    """
    from redraft.eval.compare import compare_runs, content, load, markdown
    from redraft.eval.settings import Setting

    keys: tuple[str, str] | None = None
    if pair is not None:
        a, comma, b = pair.partition(",")
        if not comma:
            raise InvalidInput(f"pair must be two settings such as 0.7/0.5,0.5/0, got {pair!r}")
        keys = (Setting.parse(a).key, Setting.parse(b).key)
    rows = compare_runs(load(first), load(second), keys)
    text = json.dumps(content(rows)) if as_json else markdown(rows, (str(first), str(second)))
    typer.echo(text, nl=as_json)


evaluation.command()(skills)
evaluation.command()(elbo)
evaluation.command()(compare)
evaluation.command()(frontier)
evaluation.command(
    "lm-eval",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)(lm_eval)
