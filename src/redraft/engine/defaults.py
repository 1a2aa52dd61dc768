"""`generation_config.json` of a checkpoint: its control ids, and the settings that it proposes. Nothing here imports
torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redraft.errors import CheckpointError, ConfigError
from redraft.types import SamplingParams

SAMPLING = {  # name in the file: ours
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_new_tokens": "max_tokens",
    "threshold": "threshold",
    "editing_threshold": "edit_threshold",
    "max_post_steps": "max_post_steps",
}


def generation_config(folder: Path) -> dict[str, Any]:
    """The content of `generation_config.json`, {} without one. A repetition penalty is refused: it is not ours."""
    path = folder / "generation_config.json"
    if not path.exists():
        return {}
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} is not readable as JSON: {error}") from None
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(raw).__name__}")
    penalty = raw.get("repetition_penalty")
    if penalty not in (None, 1, 1.0):
        raise ConfigError(f"repetition_penalty={penalty!r} in {path} is not supported; it must be 1.0")
    return raw


def sampling_defaults(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `SamplingParams` that the file sets. `do_sample: false` makes it greedy, whatever its temperature says,
    as in transformers. Raises ConfigError for a value that can't be one."""
    found = {ours: generation[name] for name, ours in SAMPLING.items() if generation.get(name) is not None}
    if generation.get("do_sample") is False:
        for name in ("temperature", "top_p", "top_k"):
            found.pop(name, None)
    try:
        SamplingParams(**found)
    except ValueError as error:
        raise ConfigError(f"generation_config.json: {error}") from None
    return found
