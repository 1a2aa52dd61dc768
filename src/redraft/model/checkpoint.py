"""Reading and writing checkpoints in the Hugging Face layout (spec/model.md, "Checkpoint").

Only safetensors files are read: they hold numbers and nothing that runs. All headers are checked against the
network before any memory is taken; then one tensor at a time goes from its file into its place, so that the peak is
the model plus one tensor. Reading and writing back gives the same bytes of every tensor.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from redraft.errors import CheckpointError, InvalidInput
from redraft.model.config import ModelConfig
from redraft.model.names import Slot, is_stacked, keeps_precision, official_slots, stacked_slots
from redraft.model.network import LLaDA2

SHARD_BYTES = 4 * 2**30

_CONFIG = "config.json"
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_REFUSED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".gguf")
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_DTYPE_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in _DTYPES.values()}
_LISTED = 8
_EMBEDDING, _HEAD = "model.word_embeddings.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor as its file's header describes it."""

    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype


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
    stored = _read_headers(_weight_files(folder))
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
        _write_json(aside / _CONFIG, content)
        for name in (*names, _CONFIG):
            os.replace(aside / name, folder / name)
        for old in folder.iterdir():
            ours = old.name in (_SINGLE, _INDEX) or _SHARD.fullmatch(old.name)
            if ours and old.name not in names:
                old.unlink()
    except SafetensorError as error:
        raise CheckpointError(f"{folder} could not be written: {error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def resolve_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A floating dtype that the network runs in, from its name or itself."""
    found = _DTYPE_NAMES.get(dtype.removeprefix("torch.")) if isinstance(dtype, str) else dtype
    if found is None or found not in _DTYPES.values():
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


def _weight_files(folder: Path) -> dict[Path, set[str] | None]:
    """The safetensors files of a folder, each with the tensors that the index expects in it (None: no index)."""
    if (folder / _INDEX).exists():
        return _indexed_files(folder)
    if (folder / _SINGLE).exists():
        return {folder / _SINGLE: None}
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return dict.fromkeys(files)
    refused = sorted(file.name for file in folder.iterdir() if file.suffix in _REFUSED)
    if refused:
        raise CheckpointError(
            f"{folder} holds {_listing(refused)}, which is not read, because such files can run code when opened; "
            "convert the weights to safetensors first"
        )
    raise CheckpointError(f"{folder} holds no *.safetensors file")


def _indexed_files(folder: Path) -> dict[Path, set[str] | None]:
    index = folder / _INDEX
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{index} is not a readable index with a weight_map: {error!r}") from None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map must be a non-empty object of tensor name → file name")
    files: dict[Path, set[str] | None] = {}
    for name, shard in weight_map.items():
        # A plain name: a path could leave the folder.
        if not isinstance(shard, str) or not re.fullmatch(r"[^/\\:\0]+\.safetensors", shard):
            raise CheckpointError(f"{index}: {name} must be in a *.safetensors file of this folder, got {shard!r}")
        expected = files.setdefault(folder / shard, set())
        if expected is not None:
            expected.add(name)
    absent = [file.name for file in files if not file.is_file()]
    if absent:
        raise CheckpointError(f"{index} names files that are missing: {_listing(sorted(absent))}")
    return files


def _read_headers(files: Mapping[Path, set[str] | None]) -> dict[str, _Stored]:
    stored: dict[str, _Stored] = {}
    problems: list[str] = []
    for file, expected in files.items():
        with _opened(file) as reader:
            names = list(reader.keys())
            for name in names:
                if name in stored:
                    problems.append(f"{name} is in {stored[name].file.name} and in {file.name}")
                entry = reader.get_slice(name)
                dtype = _DTYPES.get(entry.get_dtype())
                if dtype is None:
                    problems.append(f"{name} is {entry.get_dtype()}, not one of {', '.join(_DTYPES)}")
                stored[name] = _Stored(file, tuple(entry.get_shape()), dtype or torch.float32)
        if expected is not None:
            problems += [f"{name} is not in {file.name}, where the index says" for name in sorted(expected - {*names})]
            problems += [f"{name} is in {file.name}, but not in the index" for name in sorted({*names} - expected)]
    if problems:
        raise CheckpointError(f"{next(iter(files)).parent}: {_listing(problems)}")
    return stored


def _opened(file: Path) -> Any:
    try:
        return safe_open(str(file), framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is not a complete safetensors file: {error}") from None


def _file_dtype(stored: Mapping[str, _Stored]) -> torch.dtype:
    dtypes = {entry.dtype for name, entry in stored.items() if not keeps_precision(name)}
    return reduce(torch.promote_types, dtypes) if dtypes else torch.float32


def _matched(model: LLaDA2, stored: Mapping[str, _Stored], folder: Path) -> dict[str, Slot]:
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
    problems = "; ".join(f"{len(names)} {kind}: {_listing(names)}" for kind, names in kinds.items() if names)
    if problems:
        raise CheckpointError(f"{folder}: the tensors do not match config.json: {problems}")
    return slots


def _listing(names: Iterable[str]) -> str:
    names = list(names)
    rest = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")


# --- filling ----------------------------------------------------------------------------------------------------


def _materialise(model: LLaDA2, device: str | torch.device) -> None:
    """Gives a meta model memory. What the checkpoint doesn't hold (counters) starts at zero, not as garbage."""
    model.to_empty(device=device)
    held = model.state_dict().keys()
    for name, buffer in model.named_buffers():
        if name not in held:
            buffer.zero_()


def _fill(model: LLaDA2, slots: Mapping[str, Slot], stored: Mapping[str, _Stored]) -> None:
    state = model.state_dict()
    by_file: dict[Path, list[str]] = {}
    for name, entry in stored.items():
        by_file.setdefault(entry.file, []).append(name)
    for file, names in by_file.items():
        with _opened(file) as reader:
            for name in names:
                if name in slots:
                    slot = slots[name]
                    state[slot.parameter][slot.index].copy_(reader.get_tensor(name))
    if _HEAD in stored and _HEAD not in slots:
        _check_tied(state, stored)


def _widened(
    model: LLaDA2, slots: Mapping[str, Slot], stored: Mapping[str, _Stored], keep_all: bool
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


def _check_tied(state: Mapping[str, Tensor], stored: Mapping[str, _Stored]) -> None:
    embedding = state["word_embeddings.weight"]
    with _opened(stored[_HEAD].file) as reader:
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
    shards = list(_split(sizes, shard_bytes))
    count = len(shards)
    files = [_SINGLE] if count == 1 else [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    for file, names in zip(files, shards, strict=True):
        tensors = {name: state[slots[name].parameter][slots[name].index].to("cpu", dtypes[name]) for name in names}
        if _HEAD in tensors and model.config.tie_word_embeddings:
            tensors[_HEAD] = tensors[_HEAD].clone()  # safetensors refuses two names for one storage
        _write_tensors(folder / file, tensors)
    if count == 1:
        return files
    weight_map = {name: file for file, names in zip(files, shards, strict=True) for name in names}
    _write_json(folder / _INDEX, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map})
    return [*files, _INDEX]


def _write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    file.touch()
    mode = stat.S_IMODE(file.stat().st_mode)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, {"format": "pt"})
    file.chmod(mode)  # safetensors makes files that only their owner may read; the umask should decide
    _sync(file)


def _written_dtype(state: Mapping[str, Tensor], slot: Slot, file_dtype: torch.dtype | None) -> torch.dtype:
    """The narrower dtype that the tensor had in its file, where that still loses nothing; else the one it has."""
    tensor = state[slot.parameter][slot.index]
    if file_dtype is None or file_dtype.itemsize >= tensor.dtype.itemsize:
        return tensor.dtype
    return file_dtype if torch.equal(tensor.to(file_dtype).to(tensor.dtype), tensor) else tensor.dtype


def _split(sizes: Mapping[str, int], limit: int) -> Iterator[list[str]]:
    """Consecutive names whose sizes add up to at most `limit`; a larger tensor stands alone."""
    names: list[str] = []
    total = 0
    for name, size in sizes.items():
        if names and total + size > limit:
            yield names
            names, total = [], 0
        names.append(name)
        total += size
    yield names


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _sync(file)


def _sync(file: Path) -> None:
    """On the disk before it is renamed into place."""
    with file.open("rb") as handle:
        os.fsync(handle.fileno())
