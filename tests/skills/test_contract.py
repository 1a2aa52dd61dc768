"""What every skill promises, at every level and in every split. What is a skill's own is in its own file."""

from __future__ import annotations

import json
import random
import re
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.skills import SKILLS, SPLITS, Split, Task, split_of
from redraft.skills.code import Code
from redraft.skills.tools import render_tools
from redraft.skills.words import pieces

TRAIN = 1000  # tasks drawn of a level; of a held-out split `Limits.held_out`


class Limits(NamedTuple):
    """Sizes in pieces of the tokenizer, over all levels together, and how many tasks the time of a test allows."""

    answer: int = 100  # the longest
    median: int = 42  # of the answers, at least
    long: float = 0.3  # share of answers above 66, at least
    prompt: int = 70  # with the offered tools; the longest
    rare: int = 70  # the longest of the 2% longest prompts
    held_out: int = 300
    graded: int = 300  # code starts a process for an answer
    attacked: int = 300


LIMITS = {
    "code": Limits(held_out=80, graded=6, attacked=6),
    "math": Limits(),
    "structured": Limits(median=38, long=0.2),
    "tools": Limits(median=30, long=0.0, held_out=200, attacked=30),
    "reasoning": Limits(answer=110, long=0.25, rare=80),
    "instructions": Limits(answer=115, long=0.25, rare=80),
}

HOSTILE = (
    "", " ", " \n ", "\x00", "\x00\ud800", "(" * 3000, "[" * 4000, '{"a":' * 600, "9" * 4096, "Answer:",
    "Answer: " + "(" * 3000, "Answer: " + "9" * 3000, "<tool_call>" * 300, f"<tool_call>{'[' * 4000}</tool_call>",
    "{}", "null", "I have no tool for that.", "def f(*a):\n    return None", "raise SystemExit(0)",
)  # fmt: skip

each_skill = pytest.mark.parametrize("name", SKILLS)
each_level = pytest.mark.parametrize(
    ("name", "level"), [(name, level) for name, skill in SKILLS.items() for level in skill.levels]
)


@cache
def draw(name: str, level: int, split: Split, count: int | None = None, seed: int = 0) -> tuple[Task, ...]:
    rng = random.Random(f"{name}{level}{split}{seed}")
    count = count or (TRAIN if split == "train" else LIMITS[name].held_out)
    return tuple(SKILLS[name].generate(rng, split, level) for _ in range(count))


def draw_levels(name: str, split: Split) -> list[Task]:
    return [task for level in SKILLS[name].levels for task in draw(name, level, split)]


def grades(name: str, answers: list[tuple[Task, str]]) -> list[float]:
    skill = SKILLS[name]
    if isinstance(skill, Code):
        return skill.grade_many(answers)
    return [skill.grade(task, response) for task, response in answers]


def restored(task: Task) -> Task:
    """The task after a file: JSON has no tuples."""
    content = json.loads(json.dumps(task.to_dict()))
    return Task(**content | {"tools": tuple(content["tools"])})


def size(text: str) -> int:
    """Pieces of the tokenizer; the marks of a call are one token each."""
    parts = re.split(r"(</?tool_call>)", text)
    return sum(1 if i % 2 else pieces(part) for i, part in enumerate(parts))


@pytest.mark.parametrize("split", SPLITS)
@each_level
def test_reference_answers_are_right(name: str, level: int, split: Split) -> None:
    for task in draw(name, level, split):
        assert (task.skill, task.level) == (name, level)
        assert split_of(task.composition, task.prompt) == split
        assert restored(task) == task
    tasks = draw(name, level, split)[: LIMITS[name].graded]
    assert grades(name, [(task, task.answer) for task in tasks]) == [1.0] * len(tasks)
    assert grades(name, [(restored(task), f"\n{task.answer}\n") for task in tasks]) == [1.0] * len(tasks)


@each_level
def test_other_answers_are_wrong(name: str, level: int) -> None:
    answers = []
    for task, other in pairwise(draw(name, level, "train")[: LIMITS[name].attacked]):
        huge = (task.answer + " " * 5000, task.answer + "\n" * 5000, "x" * 5000 + task.answer)
        others = (other.answer,) if other.reference != task.reference else ()
        answers += [(task, response) for response in (task.prompt, *huge, *others)]
        answers += [(task, response) for response in HOSTILE]
    wrong = [response for (_, response), grade in zip(answers, grades(name, answers), strict=True) if grade != 0.0]
    assert not wrong, wrong[0][:300]


@each_skill
@given(st.text(max_size=300))
def test_any_text_can_be_graded(name: str, response: str) -> None:
    assert SKILLS[name].grade(draw(name, 1, "train")[0], response) == 0.0


@each_skill
def test_splits_share_neither_prompts_nor_compositions(name: str) -> None:
    tasks = {split: draw_levels(name, split) for split in SPLITS}
    prompts = {split: {(task.prompt, render_tools(task.tools)) for task in drawn} for split, drawn in tasks.items()}
    compositions = {split: {task.composition for task in drawn} for split, drawn in tasks.items()}
    assert prompts["train"].isdisjoint(prompts["seen"] | prompts["test"])
    assert compositions["test"].isdisjoint(compositions["train"] | compositions["seen"])
    assert {task.prompt for task in tasks["train"]}.isdisjoint(task.prompt for task in tasks["seen"])


@each_level
def test_tasks_vary(name: str, level: int) -> None:
    train, test = draw(name, level, "train"), draw(name, level, "test")
    assert len({task.composition for task in train}) > 300
    assert len({task.composition for task in train[:250]}) >= 100
    assert len({task.prompt for task in train}) > 950
    assert len({task.composition for task in test[:80]}) >= 40


@each_skill
def test_sizes(name: str) -> None:
    limits, tasks = LIMITS[name], draw_levels(name, "train")
    prompts = sorted(size(task.prompt) + size(render_tools(task.tools)) for task in tasks)
    answers = sorted(size(task.answer) for task in tasks)
    assert prompts[int(0.98 * len(prompts))] <= limits.prompt and prompts[-1] <= limits.rare
    assert answers[-1] <= limits.answer
    assert answers[len(answers) // 2] >= limits.median
    assert sum(length > 66 for length in answers) >= limits.long * len(answers)


@each_level
def test_tasks_follow_from_the_seed(name: str, level: int) -> None:
    first, again, other = (draw.__wrapped__(name, level, "train", count=30, seed=seed) for seed in (5, 5, 6))
    assert first == again != other
