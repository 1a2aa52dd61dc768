"""`redraft eval frontier` and `redraft tune`: settings that are worth their quality."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft.cli import asking, options
from redraft.errors import InvalidInput

if TYPE_CHECKING:
    from redraft.eval.race import Evaluate
    from redraft.eval.task import Item

Candidates = Annotated[
    str | None,
    typer.Option(
        "--settings",
        help="The candidates, as in `redraft eval` [default: thresholds, edit thresholds, post steps, open blocks].",
        show_default=False,
    ),
]
Out = Annotated[Path, typer.Option("--out", help="Folder of the answers; a search that stopped goes on there.")]


def frontier(
    suite: asking.Names = None,
    data: asking.Data = None,
    grader: asking.Grader = None,
    settings: Candidates = None,
    limit: asking.Limit = None,
    seed: asking.ItemSeed = 0,
    batch: asking.Batch = 16,
    model: options.Model = None,
    url: asking.Url = None,
    key: asking.Key = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    out: Out = Path("runs/frontier"),
    as_json: options.Json = False,
) -> None:
    """The front of quality against speed over a suite or your own prompts; settings that others beat are left early.

    Without a grader, quality is the agreement with quality mode. Example: redraft eval frontier --data prompts.jsonl
    """
    asking.require_matplotlib()
    from redraft.eval import frontier as found_by

    candidates = _candidates(settings)
    chosen = asking.suite_of(suite, data, grader, seed, limit)
    asked = asking.model_of(model, url, key, device, dtype, threads, batch, False)
    with _search(chosen, data is not None and grader is None, asked, batch, out) as search:
        found = found_by.find(candidates, search.items, search.evaluate)
    about = f"Model `{asked.name}`, {len(search.items)} items of {search.name}. {asked.how}"
    found_by.write(found, about, out)
    typer.echo(json.dumps(found_by.content(found)) if as_json else found_by.markdown(found, about), nl=as_json)


def tune(
    budget: Annotated[
        float, typer.Option("--budget", help="Points of the score, of 100, that may be lost at most.")
    ] = 1.0,
    confidence: Annotated[float, typer.Option("--confidence", help="That no more is lost, for each domain.")] = 0.95,
    suite: asking.Names = None,
    data: asking.Data = None,
    grader: asking.Grader = None,
    settings: Candidates = None,
    limit: asking.Limit = None,
    seed: asking.ItemSeed = 0,
    batch: asking.Batch = 16,
    model: options.Model = None,
    url: asking.Url = None,
    key: asking.Key = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    modes: Annotated[
        Path | None,
        typer.Option(
            "--modes", metavar="FILE", help="Where the modes go [default: modes.json in the folder of --model]."
        ),
    ] = None,
    out: Out = Path("runs/tune"),
    as_json: options.Json = False,
) -> None:
    """Find, for each domain, the fastest setting that loses no more than --budget points; write it down as a mode.

    A domain is a task of the suite, or the `domain` of your rows, and becomes the name of a mode, which `redraft
    generate`, `chat` and `serve` and its playground take. Example: redraft tune --budget 2 --data prompts.jsonl
    """
    from redraft.engine.named import FILE, write_mode
    from redraft.eval.tune import items_needed, require_items
    from redraft.eval.tune import tune as tuned

    if not 0 < budget < 100:
        raise InvalidInput(f"budget must be above 0 and below 100 points, got {budget:g}")
    if not 0.5 < confidence < 1:
        raise InvalidInput(f"confidence must be above 0.5 and below 1, got {confidence:g}")
    if modes is None and (model is None or url is not None):
        raise InvalidInput("where the modes go must be said with --modes FILE, unless --model is a folder here")
    candidates = _candidates(settings)
    if suite is not None and limit is None:
        limit = items_needed(budget / 100, confidence)  # of suites that draw as many as they are asked for
    chosen = asking.suite_of(suite, data, grader, seed, limit)
    asked = asking.model_of(model, url, key, device, dtype, threads, batch, False)
    path = modes if modes is not None else Path(asked.folder or ".") / FILE
    results = []
    with _search(chosen, data is not None and grader is None, asked, batch, out) as search:
        domains: dict[str, list[Item]] = {}
        for item in search.items:
            domains.setdefault(item.task, []).append(item)
        for domain, items in domains.items():  # all of them, before hours go into the first
            require_items(domain, len(items), budget / 100, confidence)
        for domain, items in domains.items():
            found = tuned(domain, items, candidates, search.evaluate, budget=budget / 100, confidence=confidence)
            name = mode_name(domain)
            about = found.about(budget / 100, confidence) | {"model": asked.model.identity, "suite": search.name}
            write_mode(path, name, found.setting.fields, about)
            results.append((name, found))
    if as_json:
        typer.echo(json.dumps([{"mode": name, "file": str(path), **asdict(found)} for name, found in results]))
        return
    for name, found in results:
        typer.echo(
            f"{name}: {found.setting.key}, {found.speedup:.2f} times the TPF of {found.reference.key}; score "
            f"{100 * found.gain.mean:+.1f} points, at confidence {confidence:g} no less than {100 * found.low:+.1f} "
            f"({found.gain.items} items; {found.answers} answers, {found.answers / found.grid:.0%} of the full grid's)"
        )
    typer.echo(f"The modes are in {path}.")


def mode_name(domain: str) -> str:
    """A domain as the name of a mode; with `tuned-` before one that is none, such as that of a built-in mode."""
    from redraft.types import MODES

    name = re.sub(r"[^a-z0-9_.-]+", "-", domain.lower()).strip("-._")[:56]
    return name if name and name not in MODES else f"tuned-{name}".rstrip("-")


@dataclass(frozen=True)
class Search:
    """name: of the suite. evaluate: answers what the log lacks."""

    name: str
    items: list[Item]
    evaluate: Evaluate


@contextmanager
def _search(chosen: Any, ungraded: bool, asked: asking.Asked, batch: int, out: Path) -> Iterator[Search]:
    from redraft.eval.agreement import agreement
    from redraft.eval.records import RecordLog
    from redraft.eval.runner import in_batches, run

    items = chosen.items()
    with RecordLog(out / "records.jsonl") as log, asking.resumable(out) as show:
        if ungraded:
            chosen = agreement(items, asked.model, log, batch, report=show)
            items = chosen.items()
        workers = in_batches(asked.model, chosen, batch)

        def evaluate(settings: Any, some: Any) -> Any:
            return run(some, settings, asked.model.identity, log, workers, show)

        yield Search(chosen.name, items, evaluate)


def _candidates(settings: str | None) -> Any:
    from redraft.eval.frontier import CANDIDATES
    from redraft.eval.settings import settings_named

    return CANDIDATES if settings is None else settings_named(settings)
