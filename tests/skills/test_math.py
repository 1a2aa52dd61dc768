"""Math tasks: every written step is true and leads to the answer; the grader takes the last `Answer: N`."""

import random
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.skills.base import Task
from redraft.skills.math import SKILL, Unfit, work_out


def draws(count: int, seed: int = 0) -> Iterator[Task]:
    rng = random.Random(seed)
    for level in SKILL.levels:
        for _ in range(count):
            yield SKILL.sample(rng, level)


def calculate(text: str) -> int:
    """Adds, subtracts and multiplies (first) small numbers; a reading of its own."""
    total = 0
    for sign, first, second in re.findall(r"(^|[+-]) ?(\d+)(?: \* (\d+))?", text):
        value = int(first) * int(second or 1)
        total += -value if sign == "-" else value
    return total


def test_every_written_equation_is_true_and_every_step_uses_known_numbers():
    for task in draws(400):
        *steps, last = task.answer.split("\n")
        known = {int(n) for n in re.findall(r"\d+", task.prompt)}
        for step in steps:
            head, columns = re.fullmatch(r"(?:[A-Z][a-z]+: )?(\d+ [*+-] \d+): (.*)\.", step).groups()  # type: ignore
            *equations, result = columns.split(", ")
            assert {int(n) for n in re.findall(r"\d+", head)} <= known
            assert calculate(head) == int(result)
            for equation in equations:
                left, right = equation.split(" = ")
                assert calculate(left) == int(right), step
            known.add(int(result))
        assert last == f"Answer: {task.reference['number']}"
        assert int(result) == task.reference["number"]


@given(st.integers(10, 99), st.sampled_from(["+", "-", "*"]), st.integers(2, 99))
def test_work_out_is_right_or_unfit(x, sign, y):
    expected = {"+": x + y, "-": x - y, "*": x * y}[sign]
    if 10 <= expected <= 99:
        result, text = work_out(x, sign, y)
        assert result == expected
        assert text.startswith(f"{x} {sign} {y}: ")
        assert text.endswith(f", {expected}.")
    else:
        with pytest.raises(Unfit):
            work_out(x, sign, y)


def test_a_story_told_back_gives_the_answer():
    """Level 1 events, read by their verbs: the story itself says what the answer is."""
    gains = ("buys", "finds", "gets", "makes", "wins", "brings", " gives {n} to {a}.")
    read = 0
    for task in draws(400, seed=1):
        if task.level != 1 or not re.match(r"s\d [+-]\d q", task.composition):
            continue
        first, second, _ = re.split(r"(?<=[.?]) ", task.prompt)
        owner = re.search(r"[A-Z][a-z]+(?=\.| has| starts| owns)", first).group()  # type: ignore
        x, n = (int(re.search(r"\d+", sentence).group()) for sentence in (first, second))  # type: ignore
        gain = any(g.format(n=n, a=owner) in second for g in gains)
        assert task.reference["number"] == (x + n if gain else x - n), task.prompt
        read += 1
    assert read > 100


def test_wrong_answers_grade_wrong():
    task = next(draws(1))
    n = task.reference["number"]
    for response in (
        str(n), f"answer: {n}", f"The Answer: {n}", f"Answer: {n + 1}", f"Answer: {n}0", f"Answer: -{n}",
        f"Answer: {n}.5", f"Answer: {n} or {n + 1}", f"Answer: {n}\nAnswer: {n + 1}", "Answer: x",
        f"Answer:\n{n}", task.answer + " " * 4000,
    ):  # fmt: skip
        assert SKILL.grade(task, response) == 0.0, response[:80]


def test_the_last_answer_line_counts():
    task = next(draws(1))
    n = task.reference["number"]
    assert SKILL.grade(task, f"Answer: {n + 1}\nNo, again.\nAnswer: {n}") == 1.0
