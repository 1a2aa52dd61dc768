"""Where a model comes from and goes to: folders and hub repositories, devices, shard sizes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download

from redraft.errors import CheckpointError, InvalidInput

_HUB = ("cache_dir", "force_download", "local_files_only", "token", "revision")
_READ = ["*.json", "*.safetensors", "*.jinja", "*.txt"]  # what a checkpoint is read from; nothing that runs
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def local_folder(name: str | os.PathLike[str], arguments: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The folder of a checkpoint, fetched from the hub unless it is here, and the arguments that this didn't use."""
    rest = dict(arguments)
    hub = {key: rest.pop(key) for key in _HUB if key in rest}
    subfolder = rest.pop("subfolder", "") or ""
    folder = Path(name)
    if not folder.exists():
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(name)) or str(name).startswith("."):
            raise CheckpointError(f"{name} does not exist, and is not the name of a repository")
        hub = {key: value for key, value in hub.items() if value is not None}
        folder = Path(snapshot_download(str(name), allow_patterns=_READ, **hub))
    return folder / subfolder, rest


def one_device(device_map: Any) -> torch.device:
    """The device that a `device_map` puts the whole model on; a model split over devices is refused."""
    if isinstance(device_map, Mapping):
        places = set(device_map.values())
        if set(device_map) != {""} or len(places) != 1:
            raise InvalidInput(f'device_map must put the whole model on one device ({{"": device}}), got {device_map}')
        device_map = places.pop()
    if device_map in ("auto", "balanced", "balanced_low_0", "sequential"):
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return accelerator or torch.device("cpu")
    try:
        return torch.device("cpu" if device_map is None else device_map)
    except (RuntimeError, TypeError):
        raise InvalidInput(f'device_map must be a device, "auto" or {{"": device}}, got {device_map!r}') from None


def byte_count(size: int | str) -> int:
    """Bytes of a size such as 5000000, "500MB" or "5GiB"."""
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    match = re.fullmatch(r"(\d+)\s*([KMG]?I?)B?", str(size).strip().upper())
    if match is None or match[2] == "I":
        raise InvalidInput(f'max_shard_size must be bytes or a size such as "4GB", got {size!r}')
    return int(match[1]) * _UNITS[match[2]]
