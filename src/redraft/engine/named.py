"""Modes with names of their own: settings that were chosen for a checkpoint or a domain, in a JSON file. Nothing here
imports torch.

    {"code": {"threshold": 0.4, "edit_threshold": 0.0, "about": {...}}, ...}

A mode is resolved where a request enters (command, server): its fields stand where the request is silent, and what the
request sets itself outranks them. The engine knows settings alone.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redraft.errors import InvalidInput
from redraft.types import MODES, SamplingParams

FILE = "modes.json"
FIELDS = (
    "threshold",
    "edit_threshold",
    "max_post_steps",
    "min_unmask",
    "mbe_blocks",
    "mbe_steps",
    "mbe_edit_threshold",
    "stutter_penalty",
)
ABOUT = "about"  # for readers; any JSON
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
Modes = Mapping[str, Mapping[str, Any]]


def modes_of(folder: Path, file: str | Path | None = None) -> dict[str, dict[str, Any]]:
    """Fields of `SamplingParams` by the name of the mode: of a file, None: of the checkpoint folder's own, {} without
    one. Raises InvalidInput for a file that is named and not there, and for what is no mode."""
    path = folder / FILE if file is None else Path(file)
    if file is None and not path.exists():
        return {}
    content = _read(path)
    return {name: _checked(path, name, mode) for name, mode in content.items()}


def with_mode(fields: Mapping[str, Any], modes: Modes) -> dict[str, Any]:
    """The fields of a request, the mode resolved when it is one of these; the built-in ones are left as they are.
    Raises InvalidInput for a mode that is neither."""
    name = fields.get("mode")
    if name is None or name in MODES:
        return dict(fields)
    if name not in modes:
        raise InvalidInput(f"mode must be one of {', '.join((*MODES, *modes))}, got {name!r}")
    return {**modes[name], **{key: value for key, value in fields.items() if key != "mode"}}


def write_mode(path: Path, name: str, fields: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Puts a mode into a file, which keeps its others; whole or not at all. Raises InvalidInput."""
    mode = {**fields, ABOUT: dict(about)}
    _checked(path, name, mode)
    content = _read(path) if path.exists() else {}
    text = json.dumps(content | {name: mode}, indent=1, ensure_ascii=False) + "\n"
    fresh = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, path)
    except OSError as error:
        raise InvalidInput(f"cannot write modes to {path}: {error.strerror or error}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"cannot read modes from {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} is not readable as JSON: {error}") from None
    if not isinstance(content, dict):
        raise InvalidInput(f"{path} must hold modes by their names, got {type(content).__name__}")
    return content


def _checked(path: Path, name: str, mode: Any) -> dict[str, Any]:
    if not NAME.fullmatch(name) or name in MODES:
        raise InvalidInput(
            f"{path}: a mode's name must be lower-case letters, digits, - _ and ., and none of {', '.join(MODES)}, "
            f"got {name!r}"
        )
    if not isinstance(mode, dict):
        raise InvalidInput(f"{path}: mode {name!r} must be an object of settings, got {type(mode).__name__}")
    fields = {key: value for key, value in mode.items() if key != ABOUT}
    for key in fields:
        if key not in FIELDS:
            raise InvalidInput(f"{path}: mode {name!r} has an unknown setting {key!r}; known: {', '.join(FIELDS)}")
    try:
        SamplingParams(**fields)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: mode {name!r}: {error}") from None
    return fields
