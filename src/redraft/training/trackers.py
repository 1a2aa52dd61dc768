"""Where the metrics of a run go besides its file: TensorBoard, trackio or Weights & Biases, by their own packages."""

from __future__ import annotations

import importlib
import secrets
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from redraft.errors import ConfigError
from redraft.training.recipe import BaseRecipe

PROJECT = "redraft"
MODULES = {"tensorboard": "torch.utils.tensorboard", "trackio": "trackio", "wandb": "wandb"}


class Tracker(Protocol):
    """Takes lines of metrics; one of them is `step`."""

    def write(self, **values: Any) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files under `folder/tensorboard`. A resumed run takes back the steps that it runs again."""

    def __init__(self, recipe: BaseRecipe, folder: Path, step: int):
        package: Any = tracker_package("tensorboard")
        self._writer = package.SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, **values: Any) -> None:
        for name, value in _grouped(values).items():
            self._writer.add_scalar(name, value, values["step"])

    def close(self) -> None:
        self._writer.close()


class Hosted:
    """trackio, or wandb, whose calls it shares. A resumed run goes on under its name."""

    def __init__(self, kind: str, recipe: BaseRecipe, folder: Path, step: int):
        package: Any = tracker_package(kind)
        name = _name(folder, fresh=step == 0)
        # wandb finds a run by its id, and trackio by its name.
        own = {"id": name, "dir": str(folder)} if kind == "wandb" else {}
        try:
            self._run = package.init(project=PROJECT, name=name, config=asdict(recipe), resume="allow", **own)
        except Exception as error:  # each package has its own: nobody is logged in, no network, a full disk
            raise ConfigError(f"run.track={kind} could not start: {' '.join(str(error).split())}") from error

    def write(self, **values: Any) -> None:
        self._run.log(_grouped(values), step=values["step"])

    def close(self) -> None:
        self._run.finish()


def open_tracker(recipe: BaseRecipe, folder: Path, step: int) -> Tracker | None:
    """The tracker of `run.track`, for a run that goes on after `step` steps. Raises ConfigError if its package is
    missing."""
    kind = recipe.run.track
    if kind == "none":
        return None
    return TensorBoard(recipe, folder, step) if kind == "tensorboard" else Hosted(kind, recipe, folder, step)


def tracker_package(kind: str) -> ModuleType:
    """The module that a kind of tracking is done by."""
    try:
        return importlib.import_module(MODULES[kind])
    except ImportError as error:
        raise ConfigError(
            f"run.track={kind} needs the package {kind}: pip install 'redraft[{kind}]' ({error})"
        ) from error


def _grouped(values: dict[str, Any]) -> dict[str, float]:
    """Numbers by "train/..." and "eval/...", which the pages of these programs show together."""
    out = {}
    for name, value in values.items():
        if name != "step" and isinstance(value, (int, float)):
            group, rest = ("eval", name.removeprefix("eval_")) if name.startswith("eval_") else ("train", name)
            out[f"{group}/{rest}"] = float(value)
    return out


def _name(folder: Path, *, fresh: bool) -> str:
    """The run's name in a project: its folder's, and an ending that tells apart runs that had this folder in turn."""
    path = folder / "tracked-as"
    if fresh or not path.exists():
        path.write_text(f"{folder.resolve().name}-{secrets.token_hex(3)}\n", encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()
