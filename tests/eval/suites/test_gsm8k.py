from __future__ import annotations

import pytest

from redraft.eval.suites import gsm8k
from redraft.eval.suites.gsm8k import Gsm8k, final
from redraft.eval.task import graded
from redraft.skills.gym import SOURCES

SUITE = Gsm8k()
ITEM = SUITE.items()[0]


def test_items() -> None:
    items = SUITE.items()
    assert len(items) == len({item.key for item in items}) == 100
    assert ITEM.reference["answer"] == "18" and "Melanie" in ITEM.prompt and "Answer: NUMBER" in ITEM.prompt


def test_training_has_none_of_its_templates() -> None:
    """GSM-Symbolic's templates are made of these items; were they trained on, the items would have to go."""
    assert not [name for name in SOURCES if "gsm" in name]


@pytest.mark.parametrize(
    "response",
    [
        "Answer: 18",
        "5 * 2 = 10, so\nAnswer: 18.",
        "answer: $18",
        "Answer: **18**",
        "Answer: 18.00",
        "Answer: 3*6",
        "Answer: \\frac{36}{2}",
        "#### 18",
        "So it is \\boxed{18}.",
        "She started with 18 vacuum cleaners!",
        "Answer: 17\nNo.\nAnswer: 18",
    ],
)
def test_right_answers(response: str) -> None:
    assert graded(SUITE, ITEM, response) == (1.0, "")


@pytest.mark.parametrize(
    "response",
    [
        "",
        "I don't know.",
        "Answer: 19",
        "Answer: 1,800",
        "18 at first, 20 at last",
        "x" * 10**6,
        "Answer: " + "9" * 5000,
        "Answer: " + "(" * 190,
        "Answer: 9^9^9^9",
        "Answer: 9**9**9",
        "Answer: 99999!!!!",
        "Answer: __import__('os').system('true')",
        "Answer: \ud800",
    ],
    ids=range(13),
)
def test_wrong_empty_huge_and_hostile_answers(response: str) -> None:
    assert graded(SUITE, ITEM, response) == (0.0, "")


def test_what_takes_too_long_is_an_error_of_the_grader(monkeypatch: pytest.MonkeyPatch) -> None:
    import math_verify
    from math_verify.errors import TimeoutException

    def slow(*_: object, **__: object) -> object:
        raise TimeoutException("timed out")

    monkeypatch.setattr(math_verify, "parse", slow)
    score, error = graded(SUITE, ITEM, "Answer: 18")
    assert score is None and "TimeoutError: math-verify was not done" in error


def test_the_result_of_an_answer() -> None:
    assert final("1, 2 and 3.5") == "3.5" and final("none") == "" and final("Answer: x\nof 7") == "x"
    assert gsm8k.LONGEST == 4000 and final("Answer: 1" + " " * 5000 + "2") == "2"
