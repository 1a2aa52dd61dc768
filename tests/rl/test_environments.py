"""Environments give the same episode for an index, and rewards are made of the pieces that were asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from redraft.errors import ConfigError
from redraft.rl.environment import Answer
from redraft.rl.environments import EnvironmentConfig, open_environment
from redraft.rl.environments.skills import SkillEnvironment
from redraft.rl.rewards import RewardConfig, overlong
from redraft.skills.base import split_of

MATH = EnvironmentConfig(skills={"math": 1.0}, levels=(1.0, 0.0, 1.0))
GYM = EnvironmentConfig(kind="gym", dataset="chain_sum", arguments={"min_terms": 2, "max_terms": 2})


def answer(text: str, tokens: int = 10, complete: bool = True) -> Answer:
    return Answer(text, tokens, complete)


@pytest.mark.parametrize("config", [MATH, GYM])
def test_an_index_is_an_episode(config: EnvironmentConfig) -> None:
    one, two, other = (open_environment(config, RewardConfig(), seed=seed) for seed in (1, 1, 2))
    prompts = [one.reset(i).messages for i in range(20)]
    assert prompts == [two.reset(i).messages for i in range(20)]
    assert prompts != [other.reset(i).messages for i in range(20)]
    assert len({str(prompt) for prompt in prompts}) > 15
    assert one.fingerprint == two.fingerprint != other.fingerprint


def test_tasks_are_those_of_training_at_the_levels_that_were_asked_for() -> None:
    environment = SkillEnvironment({"math": 1.0, "tools": 3.0}, RewardConfig(), levels=(0.0, 1.0))
    tasks = [environment.task(i) for i in range(60)]
    assert {task.level for task in tasks} == {2}
    assert {task.skill for task in tasks} == {"math", "tools"}
    assert sum(task.skill == "tools" for task in tasks) > 35
    assert all(split_of(task.composition, task.prompt) == "train" for task in tasks)
    offered = next(i for i, task in enumerate(tasks) if task.tools)
    assert environment.reset(offered).tools == tasks[offered].tools


def test_a_skill_is_rewarded_by_its_grader_and_the_pieces_that_have_a_weight() -> None:
    reward = RewardConfig(correct=1.0, format=0.2, overlong=0.5, overlong_from=10, overlong_to=20)
    environment = SkillEnvironment({"math": 1.0}, reward)
    task = environment.task(3)
    right = environment.reset(3).step(answer(task.answer))
    assert right.done and right.parts == {"correct": 1.0, "format": 1.0, "overlong": 0.0}
    assert right.reward == pytest.approx(1.2)
    wrong = environment.reset(3).step(answer("Answer: 123456", tokens=15))
    assert wrong.parts == {"correct": 0.0, "format": 1.0, "overlong": -0.5}
    assert wrong.reward == pytest.approx(-0.05)
    assert environment.reset(3).step(answer(task.answer, complete=False)).parts["format"] == 0
    assert environment.reset(3).step(answer("I think it is 9")).parts["format"] == 0
    plain = SkillEnvironment({"math": 1.0}, RewardConfig()).reset(3).step(answer(task.answer))
    assert plain.parts == {"correct": 1.0} and plain.reward == 1.0


def test_the_answer_joins_the_conversation() -> None:
    episode = SkillEnvironment({"math": 1.0}, RewardConfig()).reset(0)
    episode.step(answer("Answer: 1"))
    assert [message["role"] for message in episode.messages] == ["user", "assistant"]


@pytest.mark.parametrize(("tokens", "expected"), [(0, 0.0), (10, 0.0), (15, -0.5), (20, -1.0), (99, -1.0)])
def test_overlong_answers_are_punished_by_degrees(tokens: int, expected: float) -> None:
    assert overlong(tokens, 10, 20) == pytest.approx(expected)


def test_a_data_set_of_reasoning_gym_scores_its_answers() -> None:
    environment: Any = open_environment(GYM, RewardConfig(), seed=5)
    entry = environment.items[2]
    assert environment.reset(2).step(answer(entry["answer"])).reward == 1.0
    assert environment.reset(2).step(answer(f"Let me add.\nAnswer: {entry['answer']}")).reward == 1.0
    assert environment.reset(2).step(answer(str(int(entry["answer"]) + 1))).reward < 0.5


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kind": "chess"}, "environment.kind must be"),
        ({"dataset": "chain_sum"}, "environment.dataset has no effect"),
        ({"kind": "gym", "dataset": "chain_sum"}, "environment.skills has no effect"),
        ({"skills": {"chess": 1.0}}, "unknown skill 'chess'"),
        ({"skills": {}}, "environment.skills must give weights"),
        ({"skills": {"math": 0.0}}, "environment.skills must give weights"),
        ({"levels": (1.0, 1.0, 1.0, 1.0)}, "math has 3 levels, got 4 weights"),
        ({"levels": (0.0, 0.0)}, "environment.levels must be weights"),
        ({"kind": "gym", "dataset": "no_such_set", "skills": {}, "levels": ()}, "environment.dataset 'no_such_set'"),
        (
            {"kind": "gym", "dataset": "chain_sum", "arguments": {"min_terms": 0}, "skills": {}, "levels": ()},
            "environment.dataset 'chain_sum'",
        ),
    ],
)
def test_what_does_not_exist_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_environment(replace(MATH, **changes), RewardConfig(), seed=0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"correct": -1.0}, "reward.correct"),
        ({"correct": 0.0}, "can't both be 0"),
        ({"overlong_from": 256}, "reward.overlong_from"),
    ],
)
def test_weights_of_rewards_are_checked(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RewardConfig(**changes)
