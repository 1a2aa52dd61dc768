"""Where a checkpoint lies: a folder of the user's, or the model inside the package."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from redraft.errors import CheckpointError

EMBEDDED = "redraft-nano"


def checkpoint_folder(path: str | Path | None) -> Path:
    """The folder of a checkpoint; no path, or the name "redraft-nano", is the model inside the package."""
    if path is None or (str(path) == EMBEDDED and not Path(path).exists()):
        path = Path(str(importlib.resources.files("redraft"))) / "assets" / EMBEDDED
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder; a checkpoint is a folder with config.json and *.safetensors")
    return folder
