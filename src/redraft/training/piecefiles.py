"""Tensors whose rows lie over several processes, in one safetensors file a process, readable by any number of them.

The files' headers say where each piece begins, in the form of torch's distributed checkpoints in safetensors
(`torch.distributed.checkpoint.HuggingFaceStorageReader` reads them too). Torch's own form is not used, because its
index is a pickle.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redraft.errors import CheckpointError
from redraft.model.storage import listing, opened, write_tensors
from redraft.training.pieces import Piece

_INFO, _OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"


def write_pieces(file: Path, pieces: dict[str, Piece]) -> None:
    """Writes the rows of each piece, and where they begin."""
    offsets = {
        name: {_OFFSETS: [piece.first] + [0] * (piece.tensor.ndim - 1) if piece.tensor.ndim else []}
        for name, piece in pieces.items()
    }
    write_tensors(file, {name: piece.tensor.detach() for name, piece in pieces.items()}, {_INFO: json.dumps(offsets)})


@dataclass(frozen=True, slots=True)
class _Stored:
    """A piece as its file's header describes it; a scalar has no shape."""

    reader: Any
    first: int
    shape: tuple[int, ...]


class PieceFiles:
    """The tensors of several such files of one checkpoint."""

    def __init__(self, files: Iterable[Path]):
        self._stored: dict[str, list[_Stored]] = {}
        for file in files:
            reader = opened(file)
            try:
                offsets = json.loads((reader.metadata() or {})[_INFO])
                for name in reader.keys():  # noqa: SIM118  (a reader is no mapping)
                    shape = tuple(reader.get_slice(name).get_shape())
                    first = int(offsets[name][_OFFSETS][0]) if shape else 0
                    self._stored.setdefault(name, []).append(_Stored(reader, first, shape))
            except (KeyError, TypeError, ValueError, IndexError):
                raise CheckpointError(f"{file} doesn't say which rows it holds") from None
        for stored in self._stored.values():
            stored.sort(key=lambda part: part.first)

    @property
    def names(self) -> set[str]:
        return set(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the whole tensor."""
        last = self._stored[name][-1]
        return (last.first + last.shape[0], *last.shape[1:]) if last.shape else ()

    def rows(self, name: str, first: int, count: int) -> Tensor:
        """Rows `first` to `first + count` of a tensor (all of a scalar), in memory of their own. Raises CheckpointError
        if some are nowhere."""
        stored = self._stored[name]
        if not stored[0].shape:
            return stored[0].reader.get_tensor(name).clone()
        parts, at, end = [], first, first + count
        for part in stored:
            upto = min(end, part.first + part.shape[0])
            if part.first <= at < upto:
                parts.append(part.reader.get_slice(name)[at - part.first : upto - part.first])
                at = upto
        if at < end:
            raise CheckpointError(f"rows {at} to {end - 1} of {name} are in none of the checkpoint's files")
        return torch.cat(parts) if parts else stored[0].reader.get_slice(name)[0:0]

    def fill(self, pieces: dict[str, Piece]) -> None:
        """Copies every piece's rows into it. Raises CheckpointError unless names and shapes are the pieces'."""
        problems = [f"{name} is missing" for name in sorted(pieces.keys() - self.names)]
        problems += [f"{name} is not in the model" for name in sorted(self.names - pieces.keys())]
        problems += [
            f"{name} is {list(self.shape(name))} instead of {list(piece.shape)}"
            for name, piece in pieces.items()
            if name in self.names and self.shape(name) != piece.shape
        ]
        if problems:
            raise CheckpointError(listing(problems))
        for name, piece in pieces.items():
            piece.tensor.copy_(self.rows(name, piece.first, piece.count))
