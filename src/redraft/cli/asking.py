"""What the verbs of an evaluation share: which items, who answers them, and how far they are."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redraft.cli import options
from redraft.errors import InvalidInput

if TYPE_CHECKING:
    from redraft.eval.answer import Model
    from redraft.eval.task import Suite

Names = Annotated[
    str | None,
    typer.Option("--suite", metavar="NAMES", help="Suites, with commas between, or llada2.1 (docs/evaluation.md)."),
]
Data = Annotated[Path | None, typer.Option("--data", metavar="FILE", help="Prompts of your own instead, as JSONL.")]
Grader = Annotated[str | None, typer.Option("--grader", help="Of --data: exact, contains, or FILE.py:FUNCTION.")]
Limit = Annotated[int | None, typer.Option("--limit", help="Items of each task at most.")]
ItemSeed = Annotated[int, typer.Option("--seed", help="Draws other items, where a suite draws them.")]
Batch = Annotated[
    int, typer.Option("--batch", help="Answers written at a time; with 1, TPS is that of a single request.")
]
Url = Annotated[
    str | None, typer.Option("--url", help="Ask the server at this address, of OpenAI's API, instead of a model here.")
]
Key = Annotated[str | None, typer.Option("--key", envvar="REDRAFT_API_KEY", help="The API key that the server wants.")]
Trace = Annotated[bool, typer.Option("--trace/--no-trace", help="Write the edits of each answer down too.")]


REPORT = "llada2.1"


@dataclass(frozen=True)
class Asked:
    """Who answers. name: for readers. how: the same in a sentence."""

    model: Model
    name: str
    how: str
    folder: Path | None


def given(ctx: typer.Context) -> list[str]:
    """The options that stand on the command line, as they are written there."""
    named = {parameter.name: parameter.opts[0] for parameter in ctx.command.params}
    sources = {name: ctx.get_parameter_source(name) for name in named if name}
    return [named[name] for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def show_report_suite(model: str | None, as_json: bool) -> None:
    """Prints which benchmarks of the LLaDA2.1 report can run here, by what, and why not the others."""
    from redraft.eval.suites import llada21

    found = llada21.statuses(model)
    text = json.dumps(llada21.content(found)) if as_json else llada21.markdown(found)
    typer.echo(text, nl=as_json)


def suite_of(names: str | None, data: Path | None, grader: str | None, seed: int, limit: int | None) -> Suite:
    """The suite that the options name. Raises InvalidInput unless they name one."""
    from redraft.eval.suites import Limited, suite_named
    from redraft.eval.suites.own import OwnSuite

    if (names is None) == (data is None):
        raise InvalidInput("give either --suite NAMES or --data FILE")
    if names is not None:
        if grader is not None:
            raise InvalidInput(f"grader belongs to --data; a suite has its own, got {grader!r}")
        return suite_named(names, seed, limit)
    return Limited(OwnSuite(str(data), grader), limit)


def model_of(
    model: str | None,
    url: str | None,
    key: str | None,
    device: str | None,
    dtype: str | None,
    threads: int | None,
    batch: int,
    traced: bool,
) -> Asked:
    """The model that the options name. With a server, `model` is the name of one of its models."""
    if batch < 1:
        raise InvalidInput(f"batch must be an integer of at least 1, got {batch}")
    many = "one request at a time" if batch == 1 else f"{batch} at a time"
    if url is not None:
        for name, value in (("device", device), ("dtype", dtype), ("threads", threads)):
            if value is not None:
                raise InvalidInput(f"{name} belongs to a model in this process, not to a server: --{name} or --url")
        from redraft.eval.remote import RemoteModel

        remote = RemoteModel.connect(url, key=key, name=model, concurrency=batch, traced=traced)
        return Asked(remote, remote.name, f"Greedy, over HTTP at {remote.url}, {many}.", None)
    options.set_threads(threads)
    from redraft.engine.llm import LLM
    from redraft.eval.answer import LocalModel
    from redraft.eval.runner import fingerprint
    from redraft.model.folder import checkpoint_folder
    from redraft.types import SamplingParams

    folder = checkpoint_folder(model)
    # Each setting reads its prompt, or their times couldn't be compared.
    llm = LLM(folder, device=device, dtype=dtype, max_running=batch, prefix_cache=False)
    if llm.tokenizer is None:
        raise InvalidInput(f"an evaluation needs a tokenizer, and {folder} has no tokenizer.json")
    llm.chat([{"role": "user", "content": "warm up"}], SamplingParams(max_tokens=llm.block_length))
    kind = str(llm.model.dtype).removeprefix("torch.")
    identity = f"{fingerprint(folder)}/{kind}"
    how = f"Greedy, on the engine, {many}, {kind} on {llm.model.device}."
    return Asked(LocalModel(llm, identity, traced), folder.name, how, folder)


def require_matplotlib() -> None:
    """Before an hour is spent on what can't be drawn."""
    if find_spec("matplotlib") is None:
        raise InvalidInput("redraft eval draws its picture with matplotlib: pip install 'redraft[eval]'")


@contextmanager
def resumable(out: Path) -> Iterator[Callable[[int, int], None]]:
    """A bar for a run that may be stopped and goes on from its log."""
    with Progress() as progress:
        try:
            yield progress.show
        except KeyboardInterrupt as stopped:
            print(f"redraft: stopped; the same command goes on from {out}", file=sys.stderr)
            raise typer.Exit(options.INTERRUPTED) from stopped


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
        self._what, self._printed, self._total = what, 0, 0

    def show(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)
        if total != self._total:  # the next round of a search
            self._total, self._printed = total, 0
        part = done * self.PARTS // total
        if not self._live and part > self._printed:
            self._printed = part
            print(f"{done}/{total} {self._what}", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
