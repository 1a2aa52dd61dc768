"""Peak memory of a training step, in a process of its own."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from bench.trainers import Task, build
from bench.training_sizes import Size

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_bytes(arm: str, size: Size, dtype: str, threads: int, seed: int) -> dict[str, int] | None:
    """`before`: resident bytes with the model and the batch there; `peak`: the most during two steps that follow, the
    second with the optimiser's state in place. None where the system doesn't tell (proc(5): VmRSS, VmHWM)."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measure, arm, size, dtype, threads, seed).result()


def _measure(arm: str, size: Size, dtype: str, threads: int, seed: int) -> dict[str, int] | None:
    if not (STATUS.exists() and CLEAR.exists()):
        return None
    torch.set_num_threads(threads)
    task = Task(size, dtype, seed, size.network(seed))
    trainer = build(arm, task)
    before = _resident("VmRSS")
    CLEAR.write_text("5")  # the peak counts from here
    for _ in range(2):
        trainer.step(len(task.samples))
    return {"before": before, "peak": _resident("VmHWM")}


def _resident(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024
