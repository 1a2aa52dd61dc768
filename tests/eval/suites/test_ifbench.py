from __future__ import annotations

import signal
import time

import pytest

from redraft.eval.suites.ifbench import IfBench, limited
from redraft.eval.task import Item, graded

SUITE = IfBench()
ITEMS = SUITE.items()


def of(instruction: str) -> Item:
    """The first item with this instruction alone."""
    return next(item for item in ITEMS if item.reference["instruction_id_list"] == [instruction])


def test_items() -> None:
    assert len(ITEMS) == len({item.key for item in ITEMS}) == 294
    assert all(item.prompt == item.reference["prompt"] for item in ITEMS)


def test_right_wrong_empty_and_huge_answers() -> None:
    item = of("count:keywords_multiple")
    words = {"kaleidoscope": 1, "nebula": 2, "whisper": 3, "labyrinth": 5, "paradox": 7}
    right = " ".join(" ".join([word] * count) for word, count in words.items()) + "."
    assert graded(SUITE, item, right) == (1.0, "")
    assert graded(SUITE, item, "Sure!\n" + right + "\nBye.") == (1.0, "")
    for response in (right.replace("nebula", "cloud", 1), "", "   \n", "x" * 10**6):
        assert graded(SUITE, item, response) == (0.0, "")


def test_hostile_answers_are_wrong_or_an_error_that_is_told() -> None:
    hostile = ["(" * 5000, "\x00\ud800", "```" * 2000, "a" * 50_000, "<think>" * 100, "%s{}[]\\" * 1000]
    for item in ITEMS[::20]:
        for response in hostile:
            score, error = graded(SUITE, item, response)
            assert (score in (0.0, 1.0) and not error) or (score is None and error.startswith("grader: "))


def test_an_unknown_instruction_is_an_error() -> None:
    item = Item(
        suite=SUITE.name,
        task="ifbench",
        messages=[{"role": "user", "content": "x"}],
        reference={"key": "x", "prompt": "x", "instruction_id_list": ["count:stars"], "kwargs": [{}]},
    )
    score, error = graded(SUITE, item, "x")
    assert score is None and "no checker of count:stars" in error


def test_time_is_limited() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimeoutError, match="after 1 seconds"), limited(1):
        time.sleep(60)
    assert signal.getsignal(signal.SIGALRM) is before
