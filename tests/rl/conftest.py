"""A tiny finished checkpoint that reinforcement learning starts from."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.training.test_loop import TINY

from redraft.training import loop
from redraft.training.recipe import load_recipe

NANO = Path(__file__).parents[2] / "recipes" / "nano.yaml"


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps old: it answers at random."""
    folder = tmp_path_factory.mktemp("start")
    overrides = [*TINY, f"run.output={folder}", "schedule.steps=2", "optimizer.kind=adamw", "run.precision=float32"]
    run = loop.open_run(load_recipe(NANO, overrides))
    return loop.run_to_end(run, loop.train_step, draw=lambda metrics, picture: None)
