"""What a conversion reads: settings, tensors one at a time, and a tokenizer.

Both kinds of source speak the names of Hugging Face: `config` holds the keys of a `config.json`, `tensors` the names
of its checkpoint.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from redraft.errors import CheckpointError
from redraft.model.storage import Stored, opened, read_headers

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor that hasn't been read. dtype: of what `read` gives, so float32 for a quantised one."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Source(Protocol):
    """config: keys of `config.json`; its `eos_token_id` and `pad_token_id` are those that generation uses."""

    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    def read(self, name: str) -> Tensor: ...

    def write_tokenizer(self, folder: Path) -> None:
        """Puts `tokenizer.json`, its configuration and the chat template into a folder."""
        ...


class FolderSource:
    """A Hugging Face folder of safetensors files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        config = _read_json(folder / "config.json")
        generation = _read_json(folder / "generation_config.json", optional=True)
        ids = {name: generation[name] for name in ("eos_token_id", "pad_token_id") if generation.get(name) is not None}
        self.config: Mapping[str, Any] = config | ids
        self._stored: dict[str, Stored] = read_headers(folder)
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(entry.shape, entry.dtype) for name, entry in self._stored.items()
        }

    def read(self, name: str) -> Tensor:
        with opened(self._stored[name].file) as reader:
            return reader.get_tensor(name)

    def write_tokenizer(self, folder: Path) -> None:
        if not (self._folder / TOKENIZER_FILES[0]).is_file():
            raise CheckpointError(f"{self._folder} holds no tokenizer.json, the file of a fast tokenizer")
        for name in TOKENIZER_FILES:
            if (self._folder / name).is_file():
                shutil.copyfile(self._folder / name, folder / name)


def open_source(path: Path) -> Source:
    """The source at a path: a folder, or a GGUF file. Raises CheckpointError for anything else."""
    if path.is_dir():
        return FolderSource(path)
    if not path.exists():
        raise CheckpointError(f"{path} does not exist; give a Hugging Face folder or a GGUF file")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise CheckpointError(f"{path} is neither a Hugging Face folder nor a GGUF file")
    from redraft.convert.gguf import GGUFSource

    return GGUFSource(path)


def _read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    if optional and not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; a Hugging Face folder holds {path.name}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} is not readable as JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content
