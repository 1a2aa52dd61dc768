"""Whole runs on a tiny model: the reward rises, a resumed run is the unbroken one, and what is written can be read."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from redraft.engine.llm import LLM
from redraft.errors import ConfigError
from redraft.rl import build
from redraft.rl.build import RLRun, open_rl_run
from redraft.rl.environment import Answer, Message, Turn
from redraft.rl.loop import reinforce
from redraft.rl.recipe import RLRecipe
from redraft.rl.rollout import roll_out
from redraft.rl.step import rl_step
from redraft.training.loop import save
from redraft.training.metrics import read_lines
from redraft.training.recipe import load_as
from redraft.training.state import states
from redraft.types import SamplingParams

SMALL = {
    "seed": 3,
    "environment": {"skills": {"math": 1.0}},
    "rollout": {"max_tokens": 12, "max_running": 32},
    "likelihood": {"levels": 2},
    "batch": {"prompts": 2, "answers": 4, "updates": 2, "length": 512},
    "schedule": {"steps": 4, "warmup": 0},
    "optimizer": {"rate": 1e-3},
    "run": {"precision": "float32", "save_every": 2},
}


@dataclass
class Letters:
    """Rewards the share of vowels; `turns` answers an episode."""

    turns: int = 1
    fingerprint: str = "letters"

    def reset(self, index: int) -> LettersEpisode:
        return LettersEpisode([{"role": "user", "content": f"Say {index}"}], self.turns)


@dataclass
class LettersEpisode:
    messages: Sequence[Message]
    turns: int
    tools: Sequence[Any] = ()
    answers: list[Answer] = field(default_factory=list)

    def step(self, answer: Answer) -> Turn:
        self.answers.append(answer)
        said: Message = {"role": "assistant", "content": answer.text}
        more: Message = {"role": "user", "content": f"And {len(self.answers)}"}
        self.messages = [*self.messages, said, more]
        vowels = sum(letter in "aeiou" for letter in answer.text)
        share = vowels / max(1, len(answer.text))
        return Turn(share, len(self.answers) == self.turns, {"vowels": share})


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> Letters:
    environment = Letters()
    monkeypatch.setattr(build, "open_environment", lambda *args, **more: environment)
    return environment


def recipe(start: Path, folder: Path, *overrides: str, **sections: Any) -> RLRecipe:
    path = folder.with_suffix(".yaml")
    raw = SMALL | {"start": str(start)} | sections
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return load_as(RLRecipe, path, [f"run.output={folder}", *overrides])


def weights(run: RLRun) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in run.model.parameters()])


@pytest.mark.slow
def test_the_reward_rises(start: Path, tmp_path: Path, letters: Letters) -> None:
    options = ("batch.prompts=4", "batch.answers=8", "optimizer.rate=1e-2", "schedule.steps=12", "loss.clip_low=0.5",
               "loss.clip_high=1.0")  # fmt: skip
    run = open_rl_run(recipe(start, tmp_path / "run", *options))
    rewards = [rl_step(run)["reward"] for _ in range(12)]
    assert sum(rewards[-3:]) > 1.5 * sum(rewards[:3]), rewards


def test_a_resumed_run_is_the_unbroken_one(start: Path, tmp_path: Path, letters: Letters) -> None:
    whole = open_rl_run(recipe(start, tmp_path / "whole"))
    lines = [rl_step(whole) for _ in range(4)]
    broken = open_rl_run(recipe(start, tmp_path / "broken"))
    for _ in range(2):
        rl_step(broken)
    save(broken)
    rl_step(broken)  # a step that is lost with the process
    broken.close()
    resumed = open_rl_run(recipe(start, tmp_path / "broken"))
    assert resumed.step == 2
    again = [rl_step(resumed) for _ in range(2)]
    assert torch.equal(weights(resumed), weights(whole))
    drop = ("seconds", "rollout_seconds", "update_seconds")
    for ours, theirs in zip(again, lines[2:], strict=True):
        assert {k: v for k, v in ours.items() if k not in drop} == {k: v for k, v in theirs.items() if k not in drop}
    steps = [line["step"] for line in read_lines(tmp_path / "broken" / "samples.jsonl")]
    assert steps == [1, 1, 2, 2, 3, 3, 4, 4]


def test_every_metric_stands_in_the_guide(start: Path, tmp_path: Path, letters: Letters) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "rl.md").read_text(encoding="utf-8")
    cells = "".join(re.findall(r"^\|([^|]+)\|", guide.split("## metrics.jsonl")[1], re.MULTILINE))
    line = rl_step(open_rl_run(recipe(start, tmp_path / "run", "loss.kl=0.1", "batch.updates=1")))
    others = {
        "correct",
        "format",
        "overlong",
        "behaviour_weight",
        "restarts",
        "duplicates",
    }  # of other rewards, of workers
    assert set(re.findall(r"`([a-z_0-9]+)`", cells)) == (line.keys() - {"vowels"}) | others


def test_a_run_leaves_a_model_metrics_samples_and_a_picture(start: Path, tmp_path: Path, letters: Letters) -> None:
    shown: list[dict[str, float]] = []
    settings = recipe(start, tmp_path / "run", "schedule.steps=2", "run.evaluate_every=2", "loss.kl=0.1")
    folder = reinforce(
        settings, report=shown.append, evaluate=lambda model, tokenizer: {"score": 0.5, "S_accuracy": 0.5}
    )
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 2] and lines == shown[1:]
    assert lines[0]["reference_kl"] >= 0 and lines[0]["kl"] > 0 and lines[2]["eval_S_accuracy"] == 0.5
    assert (tmp_path / "run" / "curves.png").stat().st_size > 1000
    read = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert [line["step"] for line in read] == [1, 1, 2, 2]
    assert read[0]["reward"] >= read[1]["reward"] and read[0]["messages"][0]["role"] == "user"
    completion = LLM(folder).generate("Say", SamplingParams(max_tokens=4))[0]
    assert completion.token_ids


def test_the_first_update_starts_at_a_ratio_of_one(start: Path, tmp_path: Path, letters: Letters) -> None:
    one = rl_step(open_rl_run(recipe(start, tmp_path / "one", "batch.updates=1")))
    assert one["log_ratio"] == one["log_ratio_spread"] == one["kl"] == one["clipped"] == 0.0
    two = rl_step(open_rl_run(recipe(start, tmp_path / "two", "loss.clip_low=0.0001", "loss.clip_high=0.0001")))
    assert two["log_ratio_spread"] > 0 and two["clipped"] > 0


@pytest.mark.parametrize(
    "sections",
    [
        {"likelihood": {"levels": 2, "noise": "trajectory", "edits": True}},
        {"likelihood": {"levels": 2, "noise": "steps"}, "loss": {"ratio": "token"}},
        {"likelihood": {"levels": 2, "noise": "sequence"}},
        {"lora": {"rank": 2}},
    ],
    ids=["trajectory", "token", "sequence", "lora"],
)
def test_every_kind_of_noise_takes_a_step(
    start: Path, tmp_path: Path, letters: Letters, sections: dict[str, Any]
) -> None:
    run = open_rl_run(recipe(start, tmp_path / "run", **sections))
    before = weights(run)
    line = rl_step(run)
    assert line["skipped"] < 1 and line["gradient_norm"] > 0
    assert not torch.equal(before, weights(run))


def test_where_all_rewards_are_equal_nothing_is_learnt(start: Path, tmp_path: Path) -> None:
    run = open_rl_run(recipe(start, tmp_path / "run"))  # it solves no task at all
    before = weights(run)
    line = rl_step(run)
    assert line["reward"] == line["correct"] == 0.0 and line["skipped"] == 1.0
    assert "loss" not in line and line["positions"] == 0
    assert torch.equal(before, weights(run)) and run.step == 1


def test_turns_are_answered_at_what_was_said_before(start: Path, tmp_path: Path, letters: Letters) -> None:
    letters.turns = 3
    run = open_rl_run(recipe(start, tmp_path / "run"))
    llm = LLM.from_model(run.model, run.tokenizer)
    groups = roll_out(llm, letters, [5, 6], 2, run.recipe.rollout, seed=1, mask_id=run.draws.mask_id)
    for number, group in enumerate(groups):
        for rollout in group:
            assert len(rollout.steps) == 3
            assert rollout.reward == pytest.approx(sum(_share(step.choice.text) for step in rollout.steps))
            for turn, step in enumerate(rollout.steps):
                said = rollout.messages[: 1 + 2 * turn]
                assert said[0]["content"] == f"Say {5 + number}"
                prompt = llm.render(said)
                assert step.sample.tokens.tolist() == [*prompt, *step.choice.token_ids]
                assert int(step.sample.supervised.sum()) == len(step.choice.token_ids)
    indices = [step.sample.index for group in groups for rollout in group for step in rollout.steps]
    assert len(set(indices)) == 12
    alone = roll_out(llm, letters, [6], 2, run.recipe.rollout, seed=1, mask_id=run.draws.mask_id)
    ours, theirs = ([[s.choice.token_ids for s in r.steps] for r in group] for group in (alone[0], groups[1]))
    assert ours == theirs
    assert rl_step(run)["response_tokens"] > 0


def _share(text: str) -> float:
    return sum(letter in "aeiou" for letter in text) / max(1, len(text))


def test_checkpoints_are_those_of_training(start: Path, tmp_path: Path, letters: Letters) -> None:
    run = open_rl_run(recipe(start, tmp_path / "run"))
    rl_step(run)
    save(run)
    assert [path.name for path in states(tmp_path / "run")] == ["state-00000001"]
    letters.fingerprint = "others"
    with pytest.raises(ConfigError, match="have changed since its checkpoint"):
        open_rl_run(recipe(start, tmp_path / "run"))


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("start=''", "`start` must name"),
        ("optimizer.balance=0.1", "optimizer.balance must be 0"),
        ("lora={rank: 2, dropout: 0.1, targets: [attention]}", "lora.dropout must be 0"),
        ("loss.ratio=token", "belong together"),
        ("likelihood.noise=steps", "belong together"),
        ("schedule.blocks=[[0, 4]]", "schedule.blocks must be empty"),
        ("run.processes=2", "run.processes must be 1"),
        ("run.evaluate=elbo", "run.evaluate must be"),
        ("rollout.temperature=0", "rollout.temperature must be above 0"),
        ("rollout.max_running=0", "rollout.max_running"),
        ("batch.answers=1", "batch.answers must be at least 2"),
        ("batch.prompts=0", "batch.prompts"),
        ("data={skills: {math: 1.0}}", "unknown key 'data'"),
    ],
)
def test_recipes_that_make_no_sense_are_refused(tmp_path: Path, override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        recipe(tmp_path, tmp_path / "run", override)


def test_groups_keep_the_rewards_of_their_own_prompt(start: Path, tmp_path: Path, letters: Letters) -> None:
    """A batch of one prompt that teaches and one that doesn't trains on the first alone."""
    run = open_rl_run(recipe(start, tmp_path / "run", "batch.updates=1"))
    reset = letters.reset

    def silent(index: int) -> LettersEpisode:
        episode = reset(index)
        if index % 2:
            episode.step = lambda answer: Turn(1.0, True, {"vowels": 0.0})  # type: ignore[method-assign]
        return episode

    letters.reset = silent  # type: ignore[method-assign]
    line = rl_step(run)
    assert line["skipped"] == 0.5
    only = open_rl_run(
        replace(
            run.recipe,
            batch=replace(run.recipe.batch, prompts=1),
            run=replace(run.recipe.run, output=str(tmp_path / "only")),
        )
    )
    assert rl_step(only)["positions"] == line["positions"]
    torch.testing.assert_close(weights(only), weights(run))
