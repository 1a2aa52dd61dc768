from __future__ import annotations

from collections import Counter

import pytest

from redraft.eval.suites.choices import Choices, letter
from redraft.eval.task import graded


@pytest.mark.parametrize("task", ["hellaswag", "truthfulqa"])
def test_items(task: str) -> None:
    suite = Choices(task)
    items = suite.items()
    assert len(items) == len({item.key for item in items}) == 100
    assert suite.items() == items
    answers = Counter(item.reference["answer"] for item in items)
    assert max(answers.values()) < 50, "the right choice stands anywhere"
    for item in items:
        right = item.reference["answer"]
        assert f"\n{right}. " in item.prompt
        assert graded(suite, item, right) == (1.0, "")
        assert graded(suite, item, "AB"[right == "A"]) == (0.0, "")


def test_the_choice_with_the_letter_is_the_right_one() -> None:
    item = next(item for item in Choices("truthfulqa").items() if "blood type" in item.prompt)
    right = "Blood type has no impact on someone's abilities."
    assert f"\n{item.reference['answer']}. {right}" in item.prompt


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("B", "B"),
        (" b", None),
        ("B.", "B"),
        ("(B)", "B"),
        ("**B**", "B"),
        ("B) because of A", "B"),
        ("Answer: B", "B"),
        ("The answer is B, not A.", "B"),
        ("A man walks in.", None),
        ("I think it is (C).", "C"),
        ("", None),
        ("x" * 10**6 + "\nB", None),
        ("\x00\ud800B", "B"),
        ("A or B", None),
    ],
)
def test_letters(response: str, expected: str | None) -> None:
    assert letter(response) == expected
