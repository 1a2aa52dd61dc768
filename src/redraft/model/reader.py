"""The weights of a checkpoint folder: checked against the network, then any rows of any of its tensors.

All headers are checked before any memory is taken; then one tensor at a time goes from its file into its place, and of
that only the rows that are asked for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redraft.errors import CheckpointError
from redraft.model.config import ModelConfig
from redraft.model.names import Slot, is_stacked, keeps_precision, official_slots, stacked_slots
from redraft.model.network import LLaDA2
from redraft.model.storage import listing, opened, read_headers

EMBEDDING, HEAD = "model.word_embeddings.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Rows:
    """Where rows of a network's tensor go: `tensor` holds those from `first` on (the first dimension)."""

    tensor: Tensor
    first: int = 0


class CheckpointReader:
    """A checkpoint folder whose tensors fit a network.

    config: used instead of the folder's `config.json`. Raises CheckpointError, one message for all that is missing,
    extra or mis-shaped; ConfigError for the config.
    """

    def __init__(self, path: str | os.PathLike[str], config: ModelConfig | None = None):
        self.folder = _existing_folder(path)
        self.config = config or ModelConfig.from_json(self.folder)
        self._stored = read_headers(self.folder)
        state = LLaDA2(self.config, device="meta").state_dict()
        self._shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
        self._slots = self._matched()
        self._names: dict[str, list[str]] = {}
        for name, slot in self._slots.items():
            self._names.setdefault(slot.parameter, []).append(name)

    @property
    def dtype(self) -> torch.dtype:
        """The widest of the weights, so that nothing is lost; routers aside."""
        dtypes = {entry.dtype for name, entry in self._stored.items() if not keeps_precision(name)}
        return reduce(torch.promote_types, dtypes) if dtypes else torch.float32

    def fill(self, rows: Mapping[str, Rows]) -> None:
        """Copies into each place, by the names of the network's tensors, the rows that belong there."""
        by_file: dict[Path, list[str]] = {}
        for parameter in rows:
            for name in self._names[parameter]:
                by_file.setdefault(self._stored[name].file, []).append(name)
        for file, names in by_file.items():
            with opened(file) as reader:
                for name in names:
                    _copy(reader, name, self._slots[name], rows[self._slots[name].parameter])
        self._check_tied(rows)

    def widened(self, dtypes: Mapping[str, torch.dtype], *, keep_all: bool) -> dict[str, torch.dtype]:
        """File dtypes of the tensors that are wider in memory without the caller asking for it, by file name.

        dtypes: in memory, of the network's tensors. keep_all: none of them was asked for. A tied `lm_head.weight` is
        listed whenever the file has it, so that it is written back.
        """
        widened = {
            name: self._stored[name].dtype
            for name, slot in self._slots.items()
            if self._stored[name].dtype != dtypes[slot.parameter] and (keep_all or keeps_precision(slot.parameter))
        }
        if self._has_tied_copy:
            widened[HEAD] = self._stored[HEAD].dtype if keep_all else dtypes["word_embeddings.weight"]
        return widened

    @property
    def _has_tied_copy(self) -> bool:
        return HEAD in self._stored and HEAD not in self._slots

    def _matched(self) -> dict[str, Slot]:
        """The slots of the layout that the file has, once every tensor is known to fit."""
        stored = self._stored
        slots = stacked_slots(self._shapes) if is_stacked(stored) else official_slots(self._shapes)
        expected = {name: slot.shape for name, slot in slots.items()}
        if self.config.tie_word_embeddings and HEAD in stored:
            expected[HEAD] = expected[EMBEDDING]  # a copy of the embedding, checked when it is read
        kinds = {
            "missing": [name for name in expected if name not in stored],
            "extra": [name for name in stored if name not in expected],
            "mis-shaped": [
                f"{name} {list(stored[name].shape)} instead of {list(shape)}"
                for name, shape in expected.items()
                if name in stored and stored[name].shape != shape
            ],
        }
        problems = "; ".join(f"{len(names)} {kind}: {listing(names)}" for kind, names in kinds.items() if names)
        if problems:
            raise CheckpointError(f"{self.folder}: the tensors do not match config.json: {problems}")
        return slots

    def _check_tied(self, rows: Mapping[str, Rows]) -> None:
        part = rows.get("word_embeddings.weight")
        if part is None or not self._has_tied_copy:
            return
        with opened(self._stored[HEAD].file) as reader:
            head = _rows(reader, HEAD, part).to(part.tensor.device, part.tensor.dtype)
        if not torch.equal(head, part.tensor):
            raise CheckpointError(f"{self.folder}: tie_word_embeddings is true, but {HEAD} differs from {EMBEDDING}")


def materialise(model: LLaDA2, device: str | torch.device) -> None:
    """Gives a network on the meta device memory, to be filled. What checkpoints don't hold (counters) starts at zero,
    not as garbage."""
    model.to_empty(device=device)
    held = model.state_dict().keys()
    for name, buffer in model.named_buffers():
        if name not in held:
            buffer.zero_()


def _existing_folder(path: str | os.PathLike[str]) -> Path:
    folder = Path(path)
    if not folder.exists():
        raise CheckpointError(f"{folder} does not exist; give the folder that holds config.json and *.safetensors")
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; give the folder that holds config.json and *.safetensors")
    return folder


def _copy(reader: Any, name: str, slot: Slot, part: Rows) -> None:
    """A file's tensor into its place, or the rows of it that the place has."""
    if not slot.index or isinstance(slot.index[0], slice):
        place = part.tensor[(slice(None), *slot.index[1:])]
        if len(place):
            place.copy_(_rows(reader, name, part))
    elif 0 <= slot.index[0] - part.first < len(part.tensor):  # one expert, which is one row
        part.tensor[(slot.index[0] - part.first, *slot.index[1:])].copy_(reader.get_tensor(name))


def _rows(reader: Any, name: str, part: Rows) -> Tensor:
    stored, count = reader.get_slice(name), len(part.tensor)
    if count == stored.get_shape()[0]:
        return reader.get_tensor(name)
    return stored[part.first : part.first + count]
