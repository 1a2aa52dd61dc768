"""One optimiser step over a global batch: its documents, their forwards, the gradient, the update, its metrics."""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

import torch

from redraft.errors import InvalidInput, NumericalError
from redraft.training.build import Run
from redraft.training.data.pack import pack
from redraft.training.optimizer import balance
from redraft.training.parallel import uncounted
from redraft.training.precision import autocast, compute_dtype


def train_step(run: Run) -> dict[str, float]:
    """Takes a step; returns its metrics.

    Every forward of the batch is prepared first, so that each stream can be divided by its count over the whole batch,
    on all processes. A process that has fewer forwards than others takes its part in theirs with an idle one, that
    counts nothing.
    """
    started = time.monotonic()
    recipe, model, ranks, objective = run.recipe, run.model, run.ranks, run.objective
    draws = run.draws
    torch.manual_seed(recipe.seed + (run.step << 8) + ranks.rank)  # dropout of a resumed run is that of an unbroken one
    device = model.device.type
    with autocast(compute_dtype(recipe.run.precision, device), device):
        packs, own = _packs(run)
        with run.distributed.lockstep():
            prepared = [objective.prepare(model, documents, draws) for documents in packs]
        counted = [item.counts | {"positions": item.positions} for item in prepared]
        counts = ranks.sums(_summed(counted, own))
        sums: list[dict[str, float]] = []
        for turn, item in enumerate(prepared):
            with contextlib.nullcontext() if turn < own else uncounted(model):
                loss, of_item = objective.loss(model, item, counts)
                (loss * (turn < own)).backward()
            sums.append(of_item)
    totals = ranks.sums(_summed(sums, own))
    line = objective.report(totals, counts)
    if not math.isfinite(line["loss"]):
        raise NumericalError(f"the loss is not finite at step {run.step}; the last checkpoint is untouched")
    factor = recipe.schedule.factor(run.step)
    try:
        norm = run.optimizer.step(factor)
    except NumericalError as error:
        raise NumericalError(f"step {run.step}: {error}") from None
    # Adapters can't carry a change of the balance that belongs to frozen routers.
    frozen = recipe.lora is not None and not recipe.lora.train_router
    worst_load = balance(model, 0.0 if frozen else recipe.optimizer.balance, ranks)
    seconds = time.monotonic() - started
    run.step += 1
    run.positions += int(counts["positions"])
    run.seconds += seconds
    return {
        "step": run.step,
        "positions": run.positions,
        "seconds": round(run.seconds, 2),
        "positions_per_second": round(counts["positions"] / seconds, 1),
        **line,
        "learning_rate_factor": factor,
        "gradient_norm": norm,
        "worst_load": worst_load,
    }


def _packs(run: Run) -> tuple[list[list[Any]], int]:
    """This process's forwards of the step, as many on every process, and how many of them are its own: the rest repeat
    the batch's smallest. They are packed from the whole batch, whatever the number of processes, and dealt out largest
    first."""
    batch = run.recipe.batch
    indices = range(run.step * batch.samples, (run.step + 1) * batch.samples)
    documents = [document for index in indices for document in run.source.documents(index)]
    if not documents:
        raise InvalidInput(f"rows {indices[0]} to {indices[-1]} of the data hold no usable document")
    packs, world = pack(documents, batch.length), run.ranks.world
    own = packs[run.ranks.rank :: world]
    idle = -(-len(packs) // world) - len(own)
    return own + [packs[-1]] * idle, len(own)


def _summed(dicts: list[dict[str, float]], own: int) -> dict[str, float]:
    """The sum of the first `own`; all have the same names."""
    return {name: sum(values[name] for values in dicts[:own]) for name in dicts[0]}
