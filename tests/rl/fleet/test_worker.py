"""A worker answers as the trainer would, by the weights that it was last brought, and says what they thought of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rl.fleet.fakes import Workers
from tests.rl.test_loop import Letters, recipe, weights

from redraft.engine.llm import LLM
from redraft.rl import source
from redraft.rl.build import RLRun, open_rl_run
from redraft.rl.fleet import worker as worker_module
from redraft.rl.fleet.ledger import Job
from redraft.rl.fleet.worker import Group, RolloutWorker
from redraft.rl.rollout import roll_out
from redraft.rl.step import rl_step


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> Letters:
    environment = Letters()
    monkeypatch.setattr("redraft.rl.build.open_environment", lambda *args, **more: environment)
    monkeypatch.setattr(worker_module, "open_environment", lambda *args, **more: environment)
    monkeypatch.setattr(source, "RayBackend", Workers)
    return environment


def state(run: RLRun) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in run.model.state_dict().items()}


def tokens(groups: list[Group]) -> list[list[list[int]]]:
    return [[rollout.steps[0].choice.token_ids for rollout in group.rollouts] for group in groups]


def test_it_answers_by_the_weights_that_it_was_brought(start: Path, tmp_path: Path, letters: Letters) -> None:
    run = open_rl_run(recipe(start, tmp_path / "run", "batch.answers=2"))
    rl_step(run)  # away from the checkpoint
    worker = RolloutWorker(run.recipe, run.folder)
    worker.update(3, state(run))
    groups = worker.answer(Job((4, 5), 2))
    assert [group.version for group in groups] == [3, 3]
    llm = LLM.from_model(run.model, run.tokenizer)
    settings = run.recipe.rollout
    expected = roll_out(llm, letters, [4, 5], 2, settings, seed=run.recipe.seed, mask_id=run.draws.mask_id)
    assert tokens(groups) == [[rollout.steps[0].choice.token_ids for rollout in group] for group in expected]
    worker.update(2, {})  # late: older than what it has
    assert tokens(worker.answer(Job((4, 5), 3))) == tokens(groups)


def test_it_waits_for_weights_that_are_recent_enough(start: Path, tmp_path: Path, letters: Letters) -> None:
    run = open_rl_run(recipe(start, tmp_path / "run", "batch.answers=2"))
    worker = RolloutWorker(run.recipe, run.folder)
    worker.update(0, state(run))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(worker.answer, Job((8,), 2))
        worker.update(1, state(run))
        with pytest.raises(TimeoutError):
            answer.result(timeout=0.3)
        worker.update(2, state(run))
        assert answer.result(timeout=120)[0].version == 2


def test_weights_that_come_on_the_way_are_taken_between_blocks(
    start: Path, tmp_path: Path, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_rl_run(recipe(start, tmp_path / "run", "batch.answers=2", "rollout.max_tokens=70"))
    worker = RolloutWorker(run.recipe, run.folder)
    worker.update(0, state(run))
    plain, seen = worker.llm.stream, []

    def stream(prompts: Any, params: Any = None) -> Any:
        for number, event in enumerate(plain(prompts, params)):
            if number == 5:
                worker.update(1, {name: -tensor for name, tensor in state(run).items()})
            seen.append(worker.version)
            yield event

    monkeypatch.setattr(worker.llm, "stream", stream)
    (group,) = worker.answer(Job((0,), 0))
    assert group.version == 0 and worker.version == 1
    assert seen[0] == 0 and seen[-1] == 1 and seen == sorted(seen)


def test_what_it_thought_of_its_answers_is_what_the_trainer_thinks_with_the_same_weights(
    start: Path, tmp_path: Path, letters: Letters
) -> None:
    whole = open_rl_run(recipe(start, tmp_path / "whole"))
    fleet = open_rl_run(recipe(start, tmp_path / "fleet", "workers.count=1", "workers.max_staleness=0"))
    try:
        for _ in range(2):
            plain, told = rl_step(whole), rl_step(fleet)
            assert told["behaviour_weight"] == pytest.approx(1.0, abs=1e-4)
            assert told["staleness"] == plain["staleness"] == 0
            for name in ("reward", "response_tokens", "skipped"):
                assert told[name] == pytest.approx(plain[name])
        torch.testing.assert_close(weights(fleet), weights(whole), rtol=1e-3, atol=1e-4)
    finally:
        fleet.close()
        whole.close()


def test_a_fleet_learns_from_answers_of_older_weights(start: Path, tmp_path: Path, letters: Letters) -> None:
    options = ("workers.count=2", "workers.prompts=1", "workers.max_staleness=2", "optimizer.rate=1e-2")
    run = open_rl_run(recipe(start, tmp_path / "run", *options))
    try:
        lines = [rl_step(run) for _ in range(4)]
    finally:
        run.close()
    assert all(0 <= line["staleness"] <= 2 for line in lines)
    assert lines[-1]["staleness"] > 0, "two batches were begun before the first was trained on"
    assert all(0 < line["behaviour_weight"] <= 2.0 for line in lines)
