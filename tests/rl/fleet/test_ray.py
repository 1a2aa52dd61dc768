"""The same runs on Ray: an actor that is killed is replaced, and so is what a lost node had to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rl.test_loop import recipe

from redraft.errors import ConfigError
from redraft.rl.build import RLRun, open_rl_run
from redraft.rl.loop import reinforce
from redraft.rl.step import rl_step
from redraft.training.metrics import read_lines

pytestmark = pytest.mark.slow
ray = pytest.importorskip("ray")


@pytest.fixture
def two_nodes() -> Iterator[Any]:
    """A cluster of two nodes on this machine, one worker on each, which this process has joined."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    # Not waited for: `Cluster` gives a node 30 seconds, and a busy machine needs more.
    cluster.add_node(wait=False, num_cpus=1, include_dashboard=False)
    second = cluster.add_node(wait=False, num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        yield cluster, second
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_a_recipe_runs_on_workers_of_its_own(start: Path, tmp_path: Path) -> None:
    options = ("workers.count=2", "workers.prompts=1", "schedule.steps=2", "batch.answers=2", "rollout.max_tokens=4")
    folder = reinforce(recipe(start, tmp_path / "run", *options))
    assert (folder / "config.json").exists()
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    assert not ray.is_initialized(), "what the run started has ended with it"


OPTIONS = ("workers.count=2", "workers.prompts=1", "batch.answers=2", "rollout.max_tokens=4", "schedule.steps=9")


def check(run: RLRun, steps: int) -> None:
    """Every step was trained on its own prompts, once."""
    lines = read_lines(run.folder / "samples.jsonl")
    assert [line["step"] for line in lines] == [step for step in range(1, steps + 1) for _ in range(2)]
    assert [line["prompt"] // 2 for line in lines] == [line["step"] - 1 for line in lines]


def test_an_actor_that_is_killed_is_replaced(start: Path, tmp_path: Path) -> None:
    run = open_rl_run(recipe(start, tmp_path / "run", *OPTIONS))
    try:
        rl_step(run)
        answers: Any = run.answers
        ray.kill(answers.fleet._backend.actors[0])
        lines = [rl_step(run) for _ in range(3)]
    finally:
        run.close()
    assert lines[-1]["restarts"] == 1 and lines[-1]["duplicates"] == 0
    check(run, 4)


def test_the_work_of_a_lost_node_is_done_elsewhere(start: Path, tmp_path: Path, two_nodes: Any) -> None:
    cluster, second = two_nodes
    run = open_rl_run(recipe(start, tmp_path / "run", *OPTIONS))
    try:
        rl_step(run)
        cluster.add_node(wait=False, num_cpus=2)
        cluster.remove_node(second)
        lines = [rl_step(run) for _ in range(3)]
    finally:
        run.close()
    assert lines[-1]["restarts"] >= 1 and lines[-1]["duplicates"] == 0
    check(run, 4)


def test_an_address_where_nobody_answers_is_named(start: Path, tmp_path: Path) -> None:
    run = open_rl_run(recipe(start, tmp_path / "run", "workers.count=1", "workers.address=127.0.0.1:1"))
    with pytest.raises(ConfigError, match=r"workers.address '127.0.0.1:1'"):
        _ = run.answers
