"""Runs the items that a log lacks, in this process or in several, and writes each answer down as it comes."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from redraft.errors import CheckpointError, InvalidInput
from redraft.eval.answer import Answer, LocalModel, Model, stutter
from redraft.eval.records import Record, RecordLog
from redraft.eval.settings import Setting
from redraft.eval.task import Item, Suite, graded

SUFFIXES = (".safetensors", ".json", ".jinja")
NO_PART = ("modes.json",)  # named settings decide no answer by themselves
ROUND = 4  # batches of items between two writes of the log


@dataclass(frozen=True, slots=True)
class Job:
    """An item and the settings at which it is still to be answered."""

    item: Item
    settings: tuple[Setting, ...]


Workers = Callable[[Sequence[Job]], Iterator[list[Record]]]
"""Does jobs in any order and yields records as soon as they are there."""


def fingerprint(folder: Path) -> str:
    """16 hex digits of the hash of all that decides a checkpoint's answers: weights, configuration, tokenizer."""
    digest = hashlib.sha256()
    paths = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.name not in NO_PART)
    for path in paths:
        try:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
        digest.update(f"{path.name} {content}\n".encode())
    return digest.hexdigest()[:16]


def in_batches(model: Model, suite: Suite, batch: int = 1) -> Workers:
    """Workers that ask one model for `batch` answers at a time, of the same setting, so that each setting has its own
    throughput. 1: one item after the other, each at all its settings."""
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise InvalidInput(f"batch must be an integer of at least 1, got {batch!r}")

    def work(jobs: Sequence[Job]) -> Iterator[list[Record]]:
        for part in _chunks(jobs, 1 if batch == 1 else ROUND * batch):
            yield from _answered(model, suite, part)

    return work


def in_processes(folder: Path, identity: str, processes: int, suite: Suite) -> Workers:
    """Workers that load the checkpoint once in each of several processes of one torch thread; one request at a time."""
    if isinstance(processes, bool) or not isinstance(processes, int) or processes < 1:
        raise InvalidInput(f"processes must be an integer of at least 1, got {processes!r}")

    def work(jobs: Sequence[Job]) -> Iterator[list[Record]]:
        # Spawned, not forked: torch's thread pools don't survive a fork.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(processes, len(jobs)), context, initializer=_prepare)
        try:
            for future in as_completed([pool.submit(_work, str(folder), identity, suite, job) for job in jobs]):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)

    return work


def run(
    items: Sequence[Item],
    settings: Sequence[Setting],
    identity: str,
    log: RecordLog,
    workers: Workers,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[Record]:
    """The records of all items at all settings; those that the log lacks are made and added to it.

    identity: of the model. report: called with (answers that are there, answers wanted).
    """
    wanted = [(identity, item.key, setting.key) for item in items for setting in settings]
    jobs = []
    for item in items:
        missing = tuple(setting for setting in settings if (identity, item.key, setting.key) not in log.records)
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


def _record(model: Model, item: Item, setting: Setting, answer: Answer, result: tuple[float | None, str]) -> Record:
    """What the log keeps of an answer and its (score, error)."""
    score, error = result
    length = model.block_length
    return Record(
        model=model.identity,
        item=item.key,
        setting=setting.key,
        suite=item.suite,
        task=item.task,
        level=item.level,
        split=item.split,
        score=score,
        error=error,
        tokens=answer.tokens,
        forwards=answer.forwards,
        edits=answer.edits,
        blocks=-(-answer.tokens // length) if length else 0,
        stutter=stutter(answer.text),
        seconds=answer.seconds,
        first_block_seconds=answer.first_block_seconds,
        finish_reason=answer.finish_reason,
        prompt=item.prompt,
        response=answer.text,
        trace=answer.trace,
    )


def _chunks(jobs: Sequence[Job], size: int) -> Iterator[Sequence[Job]]:
    return (jobs[start : start + size] for start in range(0, len(jobs), size))


def _answered(model: Model, suite: Suite, jobs: Sequence[Job]) -> Iterator[list[Record]]:
    """Setting by setting over these jobs. Settings often agree on an answer, which is then graded once."""
    scores: dict[tuple[str, str, str], tuple[float | None, str]] = {}
    for setting in dict.fromkeys(setting for job in jobs for setting in job.settings):
        items = [job.item for job in jobs if setting in job.settings]
        records = []
        for item, answer in zip(items, model.answer(items, setting), strict=True):
            key = (item.key, answer.text, answer.error)
            if key not in scores:
                # Without an answer there is nothing to grade, and nothing right.
                scores[key] = (0.0, answer.error) if answer.error else graded(suite, item, answer.text)
            records.append(_record(model, item, setting, answer, scores[key]))
        yield records


def _prepare() -> None:
    """In a worker: one thread, and Ctrl-C is left to the parent, which ends its workers. A parent that is killed can't:
    a worker ends when it is gone, instead of waiting for jobs for ever."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(folder: str, identity: str, suite: Suite, job: Job) -> list[Record]:
    return [record for part in _answered(LocalModel(_llm(folder), identity), suite, [job]) for record in part]


@cache
def _llm(folder: str) -> object:
    """The worker's model. Loaded by the first job, whose error reaches the parent, and warmed up before it is timed."""
    from redraft.engine.llm import LLM
    from redraft.types import SamplingParams

    llm = LLM(folder, device="cpu", prefix_cache=False)  # each setting reads its prompt, or times couldn't be compared
    llm.chat([{"role": "user", "content": "warm up"}], SamplingParams(max_tokens=llm.block_length))
    return llm
