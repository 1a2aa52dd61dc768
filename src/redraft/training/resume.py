"""What must stay as it is for a run to go on, and what may change between two starts.

A run may be resumed with another number of steps, other rates, weights of its losses, noise or processes. It may not
with another model, tokenizer, optimiser, kind of objective or starting point, whose states or data wouldn't fit; nor
with other data, another seed or number of samples a step, since its place in the data is the step times the samples.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from redraft.errors import CheckpointError, ConfigError
from redraft.model.storage import write_json
from redraft.training.recipe import BaseRecipe

FILE = "recipe.json"
FREE_SECTIONS = (
    "schedule", "objective", "likelihood", "loss", "rollout", "workers", "optimizer", "parallel", "run",
)  # fmt: skip
FREE_KEYS = ("batch.length", "batch.updates", "data.bad_rows", "data.check")
FIXED_KEYS = ("optimizer.kind", "objective.kind")  # of sections whose other keys are free


def check_recipe(folder: Path, recipe: BaseRecipe) -> None:
    """Raises ConfigError, with the keys, if the run in the folder can't go on by this recipe.

    Keys that the folder's recipe doesn't have are taken as they are: an older version of Redraft wrote it.
    """
    path = folder / FILE
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}, by which the run was started, is not readable: {error}") from None
    now = json.loads(json.dumps(asdict(recipe)))
    changed = [
        f"{key} was {json.dumps(old)} and is {json.dumps(new)}"
        for key, old, new in _differences(recipe, before, now)
        if not _may_change(key)
    ]
    if changed:
        raise ConfigError(
            f"the run in {folder} can't go on by another recipe: {'; '.join(changed)}. "
            "Set these back, or choose another run.output"
        )


def check_data(folder: Path, before: str | None, now: str) -> None:
    """Raises ConfigError if the data's fingerprint is not that of the checkpoint (None: it has none)."""
    if before not in (None, now):
        raise ConfigError(
            f"the data of the run in {folder} have changed since its checkpoint, so that it can't go on at its place "
            "in them; restore the files (and data.check, by which rows are left out), or choose another run.output"
        )


def write_recipe(folder: Path, recipe: BaseRecipe) -> None:
    """Keeps the recipe with the run; by a rename, so that a run that is killed leaves a whole one."""
    aside = folder / f"{FILE}.writing"
    write_json(aside, asdict(recipe))
    os.replace(aside, folder / FILE)


def _may_change(key: str) -> bool:
    return key not in FIXED_KEYS and (key.partition(".")[0] in FREE_SECTIONS or key in FREE_KEYS)


def _differences(config: Any, before: Any, now: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Keys with their values in both. Sections are compared key by key; so are mappings, where a key may be absent."""
    for field in fields(config):
        if field.name not in before:
            continue
        key, old, new = f"{where}{field.name}", before[field.name], now[field.name]
        value = getattr(config, field.name)
        if is_dataclass(value) and isinstance(old, dict):
            yield from _differences(value, old, new, f"{key}.")
        elif isinstance(new, dict) and isinstance(old, dict):
            names = sorted(old.keys() | new.keys())
            yield from ((f"{key}.{n}", old.get(n), new.get(n)) for n in names if old.get(n) != new.get(n))
        elif old != new:
            yield key, old, new
