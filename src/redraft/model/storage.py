"""Tensors in safetensors files of a folder: one file, or shards with an index.

Only safetensors files are read: they hold numbers and nothing that runs.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from redraft.errors import CheckpointError

SHARD_BYTES = 4 * 2**30
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}

_REFUSED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".gguf")
_LISTED = 8


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as its file's header describes it."""

    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype


def read_headers(folder: Path) -> dict[str, Stored]:
    """All tensors of a folder by name, from the files' headers alone.

    Raises CheckpointError: no file, a missing or broken one, a dtype that isn't floating, or files that contradict
    their index.
    """
    return _read_headers(_weight_files(folder))


def write_shards(
    folder: Path,
    sizes: Mapping[str, int],
    read: Callable[[str], Tensor],
    shard_bytes: int = SHARD_BYTES,
) -> list[str]:
    """Writes tensors in the order of `sizes` (bytes by name) and returns the file names, the index last.

    read: the tensor of a name, asked for when its shard is written, so that one shard is in memory at a time.
    """
    shards = list(_split(sizes, shard_bytes))
    count = len(shards)
    files = [SINGLE] if count == 1 else [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    for file, names in zip(files, shards, strict=True):
        write_tensors(folder / file, {name: read(name) for name in names})
    if count == 1:
        return files
    weight_map = {name: file for file, names in zip(files, shards, strict=True) for name in names}
    write_json(folder / INDEX, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map})
    return [*files, INDEX]


def _weight_files(folder: Path) -> dict[Path, set[str] | None]:
    """The safetensors files of a folder, each with the tensors that the index expects in it (None: no index)."""
    if (folder / INDEX).exists():
        return _indexed_files(folder)
    if (folder / SINGLE).exists():
        return {folder / SINGLE: None}
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return dict.fromkeys(files)
    refused = sorted(file.name for file in folder.iterdir() if file.suffix in _REFUSED)
    if refused:
        raise CheckpointError(
            f"{folder} holds {listing(refused)}, which is not read, because such files can run code when opened; "
            "convert the weights to safetensors first"
        )
    raise CheckpointError(f"{folder} holds no *.safetensors file")


def _indexed_files(folder: Path) -> dict[Path, set[str] | None]:
    index = folder / INDEX
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
        raise CheckpointError(f"{index} names files that are missing: {listing(sorted(absent))}")
    return files


def _read_headers(files: Mapping[Path, set[str] | None]) -> dict[str, Stored]:
    stored: dict[str, Stored] = {}
    problems: list[str] = []
    for file, expected in files.items():
        with opened(file) as reader:
            names = list(reader.keys())
            for name in names:
                if name in stored:
                    problems.append(f"{name} is in {stored[name].file.name} and in {file.name}")
                entry = reader.get_slice(name)
                dtype = DTYPES.get(entry.get_dtype())
                if dtype is None:
                    problems.append(f"{name} is {entry.get_dtype()}, not one of {', '.join(DTYPES)}")
                stored[name] = Stored(file, tuple(entry.get_shape()), dtype or torch.float32)
        if expected is not None:
            problems += [f"{name} is not in {file.name}, where the index says" for name in sorted(expected - {*names})]
            problems += [f"{name} is in {file.name}, but not in the index" for name in sorted({*names} - expected)]
    if problems:
        raise CheckpointError(f"{next(iter(files)).parent}: {listing(problems)}")
    return stored


def opened(file: Path) -> Any:
    """A reader of one file; used as a context."""
    try:
        return safe_open(str(file), framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is not a complete safetensors file: {error}") from None


def listing(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    rest = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def write_tensors(file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes one file, with `metadata` in its header; on the disk when this returns."""
    file.touch()
    mode = stat.S_IMODE(file.stat().st_mode)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, file, {"format": "pt", **(metadata or {})}
    )
    file.chmod(mode)  # safetensors makes files that only their owner may read; the umask should decide
    _sync(file)


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


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Indented JSON, on the disk when this returns."""
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _sync(file)


def _sync(file: Path) -> None:
    """On the disk before it is renamed into place."""
    with file.open("rb") as handle:
        os.fsync(handle.fileno())
