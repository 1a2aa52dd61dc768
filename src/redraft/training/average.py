"""The best checkpoints of a run, and the mean of several (LLaDA2.0 report: the top-k checkpoints are merged)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

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


class Mean:
    """The mean of the tensors of checkpoints, balance biases included, read when asked for; of one it is that one.

    The sum is float32 or wider. (Adapters are averaged factor by factor: for near-by checkpoints the mean of their
    products up to terms of second order.) Raises CheckpointError unless every checkpoint holds tensors of `shapes`.
    """

    def __init__(self, folders: Sequence[Path], shapes: Mapping[str, tuple[int, ...]]):
        if not folders:
            raise CheckpointError("there is no checkpoint to average")
        self.shapes = shapes
        self._files = [PieceFiles(sorted(folder.glob("model-*.safetensors"))) for folder in folders]
        for folder, files in zip(folders, self._files, strict=True):
            differing: Collection[str] = files.names ^ shapes.keys()
            differing = differing or [name for name, shape in shapes.items() if files.shape(name) != shape]
            if differing:
                raise CheckpointError(f"{folder} is not of this model: it differs in {min(differing)}")

    def rows(self, name: str, first: int, count: int) -> Tensor:
        """Rows `first` to `first + count` of a tensor (all of a scalar)."""
        total = self._files[0].rows(name, first, count)
        total = total.to(torch.promote_types(total.dtype, torch.float32))
        for files in self._files[1:]:
            total += files.rows(name, first, count)
        return total.div_(len(self._files))

    def whole(self, name: str) -> Tensor:
        """All rows of a tensor."""
        return self.rows(name, 0, self.shapes[name][0] if self.shapes[name] else 1)


@torch.no_grad()
def average_states(folders: Sequence[Path], pieces: Mapping[str, Piece]) -> None:
    """Fills the pieces with the `Mean` of their rows over the checkpoints, one tensor at a time."""
    try:
        mean = Mean(folders, {name: piece.shape for name, piece in pieces.items()})
        for name, piece in pieces.items():
            piece.tensor.copy_(mean.rows(name, piece.first, piece.count))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot average checkpoints: {' '.join(str(error).split())}") from None


def _about(state: Path) -> dict:
    try:
        return json.loads((state / "run.json").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{state / 'run.json'} is not readable: {error}") from None
