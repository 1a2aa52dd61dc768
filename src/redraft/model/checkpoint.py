"""Reading and writing checkpoints in the Hugging Face layout (spec/model.md, "Checkpoint").

Only safetensors files are read: they hold numbers and nothing that runs. All headers are checked against the
network before any memory is taken; then one tensor at a time goes from its file into its place, so that the peak is
the model plus one tensor. Reading and writing back gives the same bytes of every tensor.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from redraft.errors import CheckpointError, InvalidInput
from redraft.model.config import ModelConfig
from redraft.model.names import Slot, is_stacked, keeps_precision, official_slots, stacked_slots
from redraft.model.network import LLaDA2
from redraft.model.storage import (
    DTYPES,
    INDEX,
    SHARD,
    SHARD_BYTES,
    SINGLE,
    Stored,
    listing,
    opened,
    read_headers,
    write_json,
    write_shards,
)

_CONFIG = "config.json"
_DTYPE_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}
_EMBEDDING, _HEAD = "model.word_embeddings.weight", "lm_head.weight"


def load_model(
    path: str | os.PathLike[str],
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    config: ModelConfig | None = None,
) -> LLaDA2:
    """The network of a checkpoint folder, in evaluation mode.

    dtype: of the weights; None takes the file's (the widest, if they differ, so that nothing is lost). Router weights
    and expert biases are at least float32 whatever it is. config: used instead of the folder's `config.json`.
    Raises CheckpointError, one message for all that is missing, extra or mis-shaped; ConfigError for the config.
    """
    folder = _existing_folder(path)
    config = config or ModelConfig.from_json(folder)
    stored = read_headers(folder)
    wanted = resolve_dtype(dtype) if dtype is not None else _file_dtype(stored)
    model = LLaDA2(config, device="meta", dtype=wanted)
    slots = _matched(model, stored, folder)
    _materialise(model, device)
    _fill(model, slots, stored)
    model.file_dtypes = _widened(model, slots, stored, keep_all=dtype is None)
    return model.eval()


def save_model(
    model: LLaDA2,
    path: str | os.PathLike[str],
    *,
    config: Mapping[str, Any] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes weights and `config.json` in the official layout, in shards with an index above `shard_bytes`.

    config: content of `config.json` instead of the network's own. Files are written aside and renamed at the end, so
    an interrupted save leaves the old checkpoint; weights of an earlier save that are no longer valid are removed.
    """
    if shard_bytes < 1:
        raise InvalidInput(f"shard_bytes must be a positive number of bytes, got {shard_bytes}")
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; a checkpoint is saved into a folder")
    folder.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".saving-", dir=folder))
    try:
        names = _write_weights(model, aside, shard_bytes)
        content = dict(config if config is not None else model.config.to_dict())
        content["torch_dtype"] = str(model.dtype).removeprefix("torch.")
        write_json(aside / _CONFIG, content)
        for name in (*names, _CONFIG):
            os.replace(aside / name, folder / name)
        for old in folder.iterdir():
            ours = old.name in (SINGLE, INDEX) or SHARD.fullmatch(old.name)
            if ours and old.name not in names:
                old.unlink()
    except SafetensorError as error:
        raise CheckpointError(f"{folder} could not be written: {error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def resolve_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A floating dtype that the network runs in, from its name or itself."""
    found = _DTYPE_NAMES.get(dtype.removeprefix("torch.")) if isinstance(dtype, str) else dtype
    if found is None or found not in DTYPES.values():
        raise InvalidInput(f"dtype must be one of {', '.join(_DTYPE_NAMES)}, got {dtype!r}")
    return found


# --- finding and checking ---------------------------------------------------------------------------------------


def _existing_folder(path: str | os.PathLike[str]) -> Path:
    folder = Path(path)
    if not folder.exists():
        raise CheckpointError(f"{folder} does not exist; give the folder that holds config.json and *.safetensors")
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; give the folder that holds config.json and *.safetensors")
    return folder


def _file_dtype(stored: Mapping[str, Stored]) -> torch.dtype:
    dtypes = {entry.dtype for name, entry in stored.items() if not keeps_precision(name)}
    return reduce(torch.promote_types, dtypes) if dtypes else torch.float32


def _matched(model: LLaDA2, stored: Mapping[str, Stored], folder: Path) -> dict[str, Slot]:
    """The slots of the layout that the file has, once every tensor is known to fit."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    slots = stacked_slots(shapes) if is_stacked(stored) else official_slots(shapes)
    expected = {name: slot.shape for name, slot in slots.items()}
    if model.config.tie_word_embeddings and _HEAD in stored:
        expected[_HEAD] = expected[_EMBEDDING]  # a copy of the embedding, checked when it is read
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
        raise CheckpointError(f"{folder}: the tensors do not match config.json: {problems}")
    return slots


# --- filling ----------------------------------------------------------------------------------------------------


def _materialise(model: LLaDA2, device: str | torch.device) -> None:
    """Gives a meta model memory. What the checkpoint doesn't hold (counters) starts at zero, not as garbage."""
    model.to_empty(device=device)
    held = model.state_dict().keys()
    for name, buffer in model.named_buffers():
        if name not in held:
            buffer.zero_()


def _fill(model: LLaDA2, slots: Mapping[str, Slot], stored: Mapping[str, Stored]) -> None:
    state = model.state_dict()
    by_file: dict[Path, list[str]] = {}
    for name, entry in stored.items():
        by_file.setdefault(entry.file, []).append(name)
    for file, names in by_file.items():
        with opened(file) as reader:
            for name in names:
                if name in slots:
                    slot = slots[name]
                    state[slot.parameter][slot.index].copy_(reader.get_tensor(name))
    if _HEAD in stored and _HEAD not in slots:
        _check_tied(state, stored)


def _widened(
    model: LLaDA2, slots: Mapping[str, Slot], stored: Mapping[str, Stored], keep_all: bool
) -> dict[str, torch.dtype]:
    """File dtypes of the tensors that are wider in memory without the caller asking for it, by file name.

    A tied `lm_head.weight` is listed whenever the file has it, so that it is written back.
    """
    state = model.state_dict()
    widened = {
        name: stored[name].dtype
        for name, slot in slots.items()
        if stored[name].dtype != state[slot.parameter].dtype and (keep_all or keeps_precision(slot.parameter))
    }
    if _HEAD in stored and _HEAD not in slots:
        widened[_HEAD] = stored[_HEAD].dtype if keep_all else model.dtype
    return widened


def _check_tied(state: Mapping[str, Tensor], stored: Mapping[str, Stored]) -> None:
    embedding = state["word_embeddings.weight"]
    with opened(stored[_HEAD].file) as reader:
        head = reader.get_tensor(_HEAD).to(embedding.device, embedding.dtype)
    if not torch.equal(head, embedding):
        raise CheckpointError(
            f"{stored[_HEAD].file.parent}: tie_word_embeddings is true, but {_HEAD} differs from {_EMBEDDING}"
        )


# --- writing ----------------------------------------------------------------------------------------------------


def _write_weights(model: LLaDA2, folder: Path, shard_bytes: int) -> list[str]:
    """Writes the weights into `folder` and returns the file names, the index last."""
    state = model.state_dict()
    slots = official_slots({name: tuple(tensor.shape) for name, tensor in state.items()})
    if model.config.tie_word_embeddings and _HEAD in model.file_dtypes:
        slots[_HEAD] = slots[_EMBEDDING]  # the file had the tied copy: write it back
    dtypes = {name: _written_dtype(state, slot, model.file_dtypes.get(name)) for name, slot in slots.items()}
    sizes = {name: math.prod(slot.shape) * dtypes[name].itemsize for name, slot in slots.items()}

    def read(name: str) -> Tensor:
        slot = slots[name]
        tensor = state[slot.parameter][slot.index].to("cpu", dtypes[name])
        # safetensors refuses two names for one storage
        return tensor.clone() if name == _HEAD and model.config.tie_word_embeddings else tensor

    return write_shards(folder, sizes, read, shard_bytes)


def _written_dtype(state: Mapping[str, Tensor], slot: Slot, file_dtype: torch.dtype | None) -> torch.dtype:
    """The narrower dtype that the tensor had in its file, where that still loses nothing; else the one it has."""
    tensor = state[slot.parameter][slot.index]
    if file_dtype is None or file_dtype.itemsize >= tensor.dtype.itemsize:
        return tensor.dtype
    return file_dtype if torch.equal(tensor.to(file_dtype).to(tensor.dtype), tensor) else tensor.dtype
