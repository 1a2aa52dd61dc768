"""The adapter to reasoning-gym: right answers only, no untrustworthy scorer, a clear error without the package."""

from __future__ import annotations

import json
import random
import sys

import pytest

from redraft.errors import InvalidInput
from redraft.skills import gym
from redraft.skills.base import SPLITS, Split, Task


def draw(split: Split, level: int, count: int) -> list[Task]:
    rng = random.Random(f"{split}{level}")
    return [gym.SKILL.generate(rng, split, level) for _ in range(count)]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("level", gym.SKILL.levels)
def test_only_right_answers_pass(split: Split, level: int) -> None:
    for task in draw(split, level, 100):
        restored = Task(**json.loads(json.dumps(task.to_dict())))
        assert gym.SKILL.grade(restored, task.answer) == 1.0
        assert gym.SKILL.grade(task, f"Answer: {task.answer}\n") == 1.0
        for response in ("", "Answer:", "garbage", task.answer + " or not", task.answer * 3, task.prompt, "9" * 9000):
            assert gym.SKILL.grade(task, response) == 0.0


def test_every_source_is_drawn_and_splits_are_disjoint() -> None:
    tasks = {split: [task for level in gym.SKILL.levels for task in draw(split, level, 120)] for split in SPLITS}
    assert {task.reference["dataset"] for task in tasks["train"]} == set(gym.SOURCES)
    assert not {task.prompt for task in tasks["train"]} & {task.prompt for task in tasks["seen"] + tasks["test"]}
    compositions = {split: {task.composition for task in drawn} for split, drawn in tasks.items()}
    assert not compositions["test"] & (compositions["train"] | compositions["seen"])
    assert len(compositions["train"]) > 100


def test_same_seed_same_tasks() -> None:
    assert draw("test", 2, 30) == draw("test", 2, 30)


@pytest.mark.parametrize("name", ["number_sorting", "spell_backward", "coin_flip"])
def test_probing_finds_scorers_that_accept_wrong_answers(name: str) -> None:
    import reasoning_gym

    items = reasoning_gym.create_dataset(name, seed=0, size=20)
    assert not all(gym.trusted(items.score_answer, entry) for entry in items)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    gym.dataset.cache_clear()
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(InvalidInput, match=r"reasoning-gym.*redraft\[train\]"):
        gym.SKILL.generate(random.Random(0), "train", 1)
