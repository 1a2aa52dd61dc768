"""Runs the items that a log lacks, in this process or in several, and writes each answer down as it comes."""

from __future__ import annotations

import hashlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from redraft.engine.llm import LLM
from redraft.errors import CheckpointError, InvalidInput
from redraft.eval.records import Record, RecordLog
from redraft.eval.settings import Setting
from redraft.eval.skills import Answerer, Item, answer
from redraft.types import SamplingParams

SUFFIXES = (".safetensors", ".json", ".jinja")


@dataclass(frozen=True, slots=True)
class Job:
    """An item and the settings at which it is still to be answered."""

    item: Item
    settings: tuple[Setting, ...]


Workers = Callable[[Sequence[Job]], Iterator[list[Record]]]
"""Does jobs in any order and yields the records of each as soon as they are there."""


def fingerprint(folder: Path) -> str:
    """16 hex digits of the hash of all that decides a checkpoint's answers: weights, configuration, tokenizer."""
    digest = hashlib.sha256()
    paths = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    for path in paths:
        try:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
        digest.update(f"{path.name} {content}\n".encode())
    return digest.hexdigest()[:16]


def in_process(llm: Answerer, model: str) -> Workers:
    """Workers that use a loaded model, one item after the other. model: its fingerprint."""

    def work(jobs: Sequence[Job]) -> Iterator[list[Record]]:
        return (answer(llm, model, job.item, job.settings) for job in jobs)

    return work


def in_processes(folder: Path, model: str, processes: int) -> Workers:
    """Workers that load the checkpoint once in each of several processes of one torch thread."""
    if isinstance(processes, bool) or not isinstance(processes, int) or processes < 1:
        raise InvalidInput(f"processes must be an integer of at least 1, got {processes!r}")

    def work(jobs: Sequence[Job]) -> Iterator[list[Record]]:
        # Spawned, not forked: torch's thread pools don't survive a fork.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(processes, len(jobs)), context, initializer=_prepare)
        try:
            for future in as_completed([pool.submit(_work, str(folder), model, job) for job in jobs]):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)

    return work


def run(
    items: Sequence[Item],
    settings: Sequence[Setting],
    model: str,
    log: RecordLog,
    workers: Workers,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[Record]:
    """The records of all items at all settings; those that the log lacks are made and added to it.

    model: the fingerprint. report: called with (answers that are there, answers wanted).
    """
    wanted = [(model, item.key, setting.key) for item in items for setting in settings]
    jobs = []
    for item in items:
        missing = tuple(setting for setting in settings if (model, item.key, setting.key) not in log.records)
        if missing:
            jobs.append(Job(item, missing))
    done = len(wanted) - sum(len(job.settings) for job in jobs)
    report(done, len(wanted))
    if jobs:
        for records in workers(jobs):
            log.add(records)
            done += len(records)
            report(done, len(wanted))
    return [log.records[key] for key in wanted]


def _prepare() -> None:
    """In a worker: one thread, and Ctrl-C is left to the parent, which ends its workers."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _work(folder: str, model: str, job: Job) -> list[Record]:
    return answer(_llm(folder), model, job.item, job.settings)


@cache
def _llm(folder: str) -> LLM:
    """The worker's model. Loaded by the first job, whose error reaches the parent, and warmed up before it is timed."""
    llm = LLM(folder, device="cpu", prefix_cache=False)  # each setting reads its prompt, or times couldn't be compared
    llm.chat([{"role": "user", "content": "warm up"}], SamplingParams(max_tokens=llm.block_length))
    return llm
