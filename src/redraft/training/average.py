"""The best checkpoints of a run, and the mean of several (LLaDA2.0 report: the top-k checkpoints are merged)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError

from redraft.errors import CheckpointError
from redraft.model.storage import write_json
from redraft.training.piecefiles import PieceFiles
from redraft.training.pieces import Piece
from redraft.training.state import states

SCORE = "score"


def note_score(state: Path, score: float) -> None:
    """Writes a checkpoint's score into its `run.json`, by a rename: the checkpoint is whole at any moment."""
    aside = state / "run.json.writing"
    write_json(aside, _about(state) | {SCORE: score})
    aside.replace(state / "run.json")


def score_of(state: Path) -> float | None:
    """What `note_score` wrote; None for a checkpoint that wasn't evaluated."""
    return _about(state).get(SCORE)


def best_states(folder: Path, count: int) -> list[Path]:
    """The `count` evaluated checkpoints of highest score, best first; of equal ones the later."""
    scored = [(score, state) for state in states(folder) if (score := score_of(state)) is not None]
    return [state for _, state in sorted(scored, reverse=True)[:count]]


def to_average(folder: Path, count: int) -> list[Path]:
    """The checkpoints that the export is the mean of: the best, or the last where none was evaluated."""
    return best_states(folder, count) or states(folder)[-count:]


def average_states(folders: Sequence[Path], pieces: Mapping[str, Piece]) -> None:
    """Fills the pieces with the mean of their rows over the checkpoints, balance biases included.

    The sum is float32 or wider, and one tensor is in memory at a time. (Adapters are averaged factor by factor: for
    near-by checkpoints the mean of their products up to terms of second order.) Raises CheckpointError unless every
    checkpoint holds these tensors.
    """
    if not folders:
        raise CheckpointError("there is no checkpoint to average")
    try:
        checkpoints = [PieceFiles(sorted(folder.glob("model-*.safetensors"))) for folder in folders]
        for folder, files in zip(folders, checkpoints, strict=True):
            _check(folder, files, pieces)
        for name, piece in pieces.items():
            rows = len(piece.tensor) if piece.tensor.ndim else 1
            total = torch.zeros_like(
                piece.tensor, dtype=torch.promote_types(piece.tensor.dtype, torch.float32), device="cpu"
            )
            for files in checkpoints:
                total += files.rows(name, piece.first, rows)
            with torch.no_grad():
                piece.tensor.copy_(total / len(checkpoints))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot average checkpoints: {' '.join(str(error).split())}") from None


def _check(folder: Path, files: PieceFiles, pieces: Mapping[str, Piece]) -> None:
    differing: Collection[str] = files.names ^ pieces.keys()
    differing = differing or [name for name, piece in pieces.items() if files.shape(name) != piece.shape]
    if differing:
        raise CheckpointError(f"{folder} is not of this model: it differs in {min(differing)}")


def _about(state: Path) -> dict:
    try:
        return json.loads((state / "run.json").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{state / 'run.json'} is not readable: {error}") from None
