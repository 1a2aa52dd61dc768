"""Reasoning: the last line alone is graded, and what the reference solutions say is true."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.skills.base import SPLITS, Split, Task
from redraft.skills.reasoning import SKILL, final_answer

DRAWS = 300


def draw(split: Split, level: int, count: int = DRAWS, seed: int = 0) -> list[Task]:
    rng = random.Random(f"{split}{level}{seed}")
    return [SKILL.generate(rng, split, level) for _ in range(count)]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("level", SKILL.levels)
def test_case_and_a_full_stop_do_not_count(split: Split, level: int) -> None:
    for task in draw(split, level):
        assert SKILL.grade(task, f"Answer: {task.reference['answer'].upper()}.\n") == 1.0


@pytest.mark.parametrize("level", SKILL.levels)
def test_wrong_answers_are_wrong(level: int) -> None:
    for task in draw("train", level):
        right = task.reference["answer"]
        wrong = (
            right, f"Answer: {right}, {right}", f"Answer: {right} or yes", f"Answer: not {right}",
            f"{task.answer}\nAnswer: no", f"Answer: {right}\nand more", f"{task.answer}\n{task.answer}",
        )  # fmt: skip
        for response in wrong:
            assert SKILL.grade(task, response) == 0.0, response[:80]


def test_the_last_line_alone_decides() -> None:
    assert final_answer("one\nAnswer: a, b") == "a, b"
    assert final_answer("Answer: a\nAnswer: a") is None
    assert final_answer("the Answer: a") is None
    task = next(task for task in draw("train", 2) if ", " in task.reference["answer"])
    items = task.reference["answer"].split(", ")
    assert SKILL.grade(task, f"Answer: {','.join(items)}") == 1.0
    assert SKILL.grade(task, f"Answer: {', '.join(items[::-1])}") == float(items == items[::-1])


@pytest.mark.parametrize("level", SKILL.levels)
def test_orderings_follow_from_the_prompt(level: int) -> None:
    """An independent solver: chains the comparisons of the prompt and compares with the written order."""
    checked = 0
    for task in draw("train", level, 1000):
        if "/ordering/" not in task.composition:
            continue
        more = task.composition.split("/")[2]
        below = {}
        for one, word, two in re.findall(r"([A-Z]\w+) is (\w+) than ([A-Z]\w+)\.", task.prompt):
            below.update({one: two} if word == more else {two: one})
        (name,) = set(below) - set(below.values())
        chain = [name]
        while name in below:
            chain.append(name := below[name])
        assert f"Order: {' > '.join(chain)}" in task.answer.splitlines()
        checked += 1
    assert checked > 50


def test_truth_values_agree_with_python() -> None:
    checked = 0
    for task in draw("train", 3, 1000):
        if "/truth/" not in task.composition:
            continue
        found = re.fullmatch(r"(.*?\.) (?:True or false|Is it true|Check): (.*)[?.]", task.prompt)
        assert found
        facts, statement = found.groups()
        values = {name: not no for name, no in re.findall(r"(\w+) is (not )?\w+\.", facts)}
        for name, value in values.items():
            statement = re.sub(rf"{name} is not \w+", str(not value), statement)
            statement = re.sub(rf"{name} is \w+", str(value), statement)
        assert re.fullmatch(r"(True|False|and|or|[() ])+", statement)
        assert task.reference["answer"] == str(eval(statement)).lower()  # noqa: S307 - checked in the line above
        checked += 1
    assert checked > 50


def test_lists_agree_with_python() -> None:
    sorts = counts = 0
    for task in draw("train", 2, 1500):
        operation = task.composition.split("/")[3] if "/list/" in task.composition else ""
        if operation.startswith("sort"):
            numbers = [int(number) for number in re.findall(r"\d+", task.prompt)]
            falling = "large to" in task.prompt or "high to" in task.prompt
            assert task.reference["answer"] == ", ".join(map(str, sorted(numbers, reverse=falling)))
            sorts += 1
        elif operation.startswith(("keep", "select")) and "above" in task.prompt:
            limit = int(task.prompt.split("above ")[1].split()[0].strip(".,?:"))
            numbers = [int(number) for number in re.findall(r"\d+", task.prompt.replace(f"above {limit}", ""))]
            assert task.reference["answer"] == ", ".join(str(number) for number in numbers if number > limit)
            counts += 1
    assert sorts > 20 and counts > 5


@given(st.text(max_size=300))
def test_grading_never_raises(response: str) -> None:
    task = draw("train", 1, 1)[0]
    assert SKILL.grade(task, f"Answer:{response}") in (0.0, 1.0)
