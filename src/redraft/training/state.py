"""Checkpoints of a run: written aside, synced and renamed, so that the last good one is never half overwritten.

Every process writes its own rows of weights and optimiser, and reads those that it needs of all files: a run goes on
with any number of processes and any layout of the model over them. All processes must see one folder.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from redraft.errors import CheckpointError
from redraft.model.storage import write_json
from redraft.training.optimizer import Optimizer
from redraft.training.parallel import Distributed
from redraft.training.piecefiles import PieceFiles, write_pieces
from redraft.training.pieces import copied_piece

_PREFIX = "state-"
_ASIDE, _OLD = ".writing", ".replaced"


def save_state(
    folder: Path,
    step: int,
    distributed: Distributed,
    optimizer: Optimizer,
    extra: dict[str, Any],
    keep: int,
    spare: Collection[Path] = (),
) -> Path:
    """Writes `folder/state-<step>`: weights, optimiser, and `extra` as JSON. Older ones beyond `keep` go, but for those
    to `spare`.

    All processes call it, and none returns before the checkpoint is there. Raises CheckpointError on all of them if one
    could not write (a full disk); what was there before is then untouched, and nothing is left of the new one.
    """
    target, aside, ranks = folder / f"{_PREFIX}{step:08d}", folder / _ASIDE, distributed.ranks
    if ranks.first:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
    ranks.wait()
    problem = None
    try:
        _write(aside, distributed, optimizer)
        if ranks.first:
            write_json(aside / "run.json", {"step": step, **extra})
    except (OSError, SafetensorError) as error:
        problem = f"{folder}: the checkpoint of step {step} could not be written: {error}"
    if ranks.sums({"problems": problem is not None})["problems"]:
        if ranks.first:
            shutil.rmtree(aside, ignore_errors=True)
        raise CheckpointError(problem or f"{folder}: another process could not write the checkpoint of step {step}")
    if ranks.first:
        _sync_folder(aside)
        shutil.rmtree(folder / _OLD, ignore_errors=True)
        if target.exists():
            target.rename(folder / _OLD)
        aside.rename(target)
        _sync_folder(folder)
        shutil.rmtree(folder / _OLD, ignore_errors=True)
        prune(folder, keep, spare)
    ranks.wait()
    return target


def prune(folder: Path, keep: int, spare: Collection[Path] = ()) -> None:
    """Deletes the checkpoints before the latest `keep`, but for those to `spare`."""
    for old in set(states(folder)[:-keep]) - set(spare):
        shutil.rmtree(old)


def states(folder: Path) -> list[Path]:
    """The run's checkpoints, oldest first."""
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if (path / "run.json").exists())


def load_state(path: Path, distributed: Distributed, optimizer: Optimizer) -> dict[str, Any]:
    """Restores a checkpoint in place, whatever processes wrote it; returns its JSON."""
    if not any(path.glob("model-*-of-*.safetensors")):
        raise CheckpointError(
            f"cannot resume from {path}: it has no model-*-of-*.safetensors, so it is not whole, or an earlier version "
            "of Redraft wrote it; choose another run.output"
        )
    try:
        distributed.settle()
        PieceFiles(sorted(path.glob("model-*.safetensors"))).fill(distributed.pieces)
        files = PieceFiles(sorted(path.glob("optimizer-*.safetensors")))
        tensors = {}
        for name in files.names:
            piece = optimizer.piece(name)
            if files.shape(name) == piece.shape:
                value = files.rows(name, piece.first, len(piece.tensor))
                tensors[name] = value.to(piece.tensor.device)
            else:
                tensors[name] = files.rows(name, 0, 1)
        optimizer.load_state(tensors)
        return json.loads((path / "run.json").read_text(encoding="utf-8"))
    except (OSError, SafetensorError, CheckpointError, KeyError, json.JSONDecodeError) as error:
        raise CheckpointError(f"cannot resume from {path}: {' '.join(str(error).split())[:300]}") from None


def _write(folder: Path, distributed: Distributed, optimizer: Optimizer) -> None:
    """This process's files: the rows that it owns, and of the optimiser's scalars those of the first process."""
    ranks = distributed.ranks
    ending = f"-{ranks.rank + 1:05d}-of-{ranks.world:05d}.safetensors"
    weights = {name: piece for name, piece in distributed.pieces.items() if piece.owner and len(piece.tensor)}
    write_pieces(folder / f"model{ending}", weights)
    entries = {}
    for name, value in optimizer.state().items():
        piece = optimizer.piece(name)
        if value.shape != piece.tensor.shape:
            if ranks.first:
                entries[name] = copied_piece(value, ranks.world, first=True)
        elif piece.owner and len(value):
            entries[name] = replace(piece, tensor=value)
    write_pieces(folder / f"optimizer{ending}", entries)


def _sync_folder(folder: Path) -> None:
    """The names in a folder, on the disk; only POSIX systems can open one."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
