"""Checkpoints of a run: written aside, synced and renamed, so that the last good one is never half overwritten."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from redraft.errors import CheckpointError
from redraft.model.network import LLaDA2
from redraft.training.optimizer import Optimizer

_PREFIX = "state-"


def save_state(folder: Path, step: int, model: LLaDA2, optimizer: Optimizer, extra: dict[str, Any], keep: int) -> Path:
    """Writes `folder/state-<step>`: weights, optimiser, and `extra` as JSON. Older ones beyond `keep` go."""
    target, aside = folder / f"{_PREFIX}{step:08d}", folder / ".writing"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_file({k: v.detach().contiguous() for k, v in model.state_dict().items()}, aside / "model.safetensors")
    save_file({k: v.contiguous() for k, v in optimizer.state().items()}, aside / "optimizer.safetensors")
    (aside / "run.json").write_text(json.dumps({"step": step, **extra}), encoding="utf-8")
    for file in aside.iterdir():
        with open(file, "rb") as handle:
            os.fsync(handle.fileno())
    shutil.rmtree(target, ignore_errors=True)
    aside.rename(target)
    for old in states(folder)[:-keep]:
        shutil.rmtree(old)
    return target


def states(folder: Path) -> list[Path]:
    """The run's checkpoints, oldest first."""
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if (path / "run.json").exists())


def load_state(path: Path, model: LLaDA2, optimizer: Optimizer) -> dict[str, Any]:
    """Restores a checkpoint in place; returns its JSON."""
    try:
        model.load_state_dict(load_file(path / "model.safetensors"))
        optimizer.load_state(load_file(path / "optimizer.safetensors"))
        return json.loads((path / "run.json").read_text(encoding="utf-8"))
    except (OSError, SafetensorError, RuntimeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"cannot resume from {path}: {' '.join(str(error).split())[:300]}") from None
