"""The 33 benchmarks of the LLaDA2.1 report: which harness runs each, and whether it can run here.

The report says neither prompts nor numbers of examples; those of the harness are the nearest there are, so that scores
can be compared between runs of this suite, and with the report's only roughly.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, Final

from redraft.eval.report import grid

NAME: Final = "llada2.1"
Figures = tuple[float, float]
"""Score and tokens per forward."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """harness, task: what runs it; data: where its items are. mini_speed, mini_quality: the report's figures of
    LLaDA2.1-mini. missing: why there is nothing to run. near: a suite of ours that asks something similar."""

    category: str
    name: str
    harness: str
    task: str
    data: str
    mini_speed: Figures
    mini_quality: Figures
    missing: str = ""
    near: str = ""


def benchmarks() -> list[Benchmark]:
    """All of them, in the report's order, from the table beside this file."""
    text = (files("redraft.eval.suites") / "llada21.csv").read_text(encoding="utf-8")
    return [_benchmark(row) for row in csv.DictReader(text.splitlines())]


@dataclass(frozen=True, slots=True)
class Status:
    """runs: whether the benchmark can run here and now; why not, or the command that runs it."""

    benchmark: Benchmark
    runs: bool
    note: str


def statuses(model: str | None = None, cached: Callable[[str], bool] | None = None) -> list[Status]:
    """Of all benchmarks, in the report's order. model: a checkpoint folder, for the commands. cached: whether a dataset
    of the hub is on this machine; None looks."""
    harness, look = find_spec("lm_eval") is not None, cached or in_cache
    return [_status(benchmark, model, harness, look) for benchmark in benchmarks()]


def in_cache(dataset: str) -> bool:
    """Whether a dataset of the hub was fetched before, or may be fetched: offline, only the cache is looked at."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() not in ("1", "ON", "YES", "TRUE"):
        return True
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return False
    return os.path.isdir(os.path.join(HF_HUB_CACHE, f"datasets--{dataset.replace('/', '--')}"))


def content(found: list[Status]) -> list[dict[str, Any]]:
    """As JSON values."""
    return [{**asdict(each.benchmark), "runs": each.runs, "note": each.note} for each in found]


def markdown(found: list[Status]) -> str:
    """For a reader."""
    rows = [
        (
            each.benchmark.category,
            each.benchmark.name,
            f"{each.benchmark.harness} {each.benchmark.task}".strip(),
            *(f"{score:g} | {rate:g}" for score, rate in (each.benchmark.mini_speed, each.benchmark.mini_quality)),
            "yes" if each.runs else "no",
            each.note,
        )
        for each in found
    ]
    head = ("category", "benchmark", "harness, task", "mini S", "mini Q", "runs here", "by, or why not")
    return (
        "# The benchmarks of the LLaDA2.1 report\n\nScores and tokens per forward of LLaDA2.1-mini in speed (S) and "
        "quality mode (Q) are the report's. It says neither prompts nor examples, so a harness's own score can be "
        f"compared with them only roughly.\n\n{grid(head, rows)}\n"
    )


def _benchmark(row: dict[str, str]) -> Benchmark:
    speed, quality = (
        (float(row[f"mini_{mode}_score"]), float(row[f"mini_{mode}_tpf"])) for mode in ("speed", "quality")
    )
    names = ("category", "name", "harness", "task", "data", "missing", "near")
    return Benchmark(**{name: row[name] for name in names}, mini_speed=speed, mini_quality=quality)


def _status(benchmark: Benchmark, model: str | None, harness: bool, cached: Callable[[str], bool]) -> Status:
    if benchmark.missing:
        why = benchmark.missing
    elif not harness:
        why = "lm-eval is not installed: pip install 'redraft[lm-eval]'"
    elif not cached(benchmark.data):
        why = f"the hub is switched off (HF_HUB_OFFLINE), and its dataset {benchmark.data} is not in the cache"
    else:
        arguments = f" --model_args model={model}" if model else ""
        command = f"redraft eval lm-eval run --model redraft{arguments} --tasks {benchmark.task} --apply_chat_template"
        # The harness runs what a model writes as it is, without a sandbox, and wants to be told that it may.
        command += " --confirm_run_unsafe_code" if benchmark.category == "Coding" else ""
        return Status(benchmark, True, f"`{command}`")
    return Status(benchmark, False, why + (f"; similar: --suite {benchmark.near}" if benchmark.near else ""))
