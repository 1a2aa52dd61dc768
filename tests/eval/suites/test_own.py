from __future__ import annotations

import json
from pathlib import Path

import pytest

from redraft.errors import InvalidInput
from redraft.eval.suites import Limited, Several, suite_named
from redraft.eval.suites.own import OwnSuite
from redraft.eval.task import graded

ROWS = [
    {"prompt": "2 + 3?", "answer": 5, "domain": "math", "max_tokens": 10},
    {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Spain?"}],
        "answer": "Madrid",
    },
]


def written(folder: Path, *rows: object) -> str:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n\n")
    return str(path)


def test_rows_become_items(tmp_path: Path) -> None:
    first, second = OwnSuite(written(tmp_path, *ROWS), "exact").items()
    assert (first.task, first.prompt, first.max_tokens) == ("math", "2 + 3?", 10)
    assert (second.task, second.prompt, second.max_tokens, len(second.messages)) == ("all", "Spain?", 256, 2)
    assert first.key != second.key


@pytest.mark.parametrize(
    ("grader", "scores"),
    # right, right with white space, right inside more, wrong, empty, huge
    [("exact", [1, 1, 0, 0, 0, 0]), ("contains", [1, 1, 1, 0, 0, 0])],
)
def test_graders(tmp_path: Path, grader: str, scores: list[int]) -> None:
    suite = OwnSuite(written(tmp_path, *ROWS), grader)
    item = suite.items()[1]
    responses = ["Madrid", " Madrid\n", "It is Madrid.", "Paris", "", "x" * 10**6]
    assert [suite.grade(item, response) for response in responses] == scores


def test_a_function_of_a_file_grades(tmp_path: Path) -> None:
    code = tmp_path / "grade.py"
    code.write_text("def half(row, response):\n    return 0.5 if row['difficulty'] == 'hard' else 1 / 0\n")
    suite = OwnSuite(
        written(tmp_path, {"prompt": "a", "difficulty": "hard"}, {"prompt": "b", "difficulty": ""}), f"{code}:half"
    )
    hard, easy = suite.items()
    assert graded(suite, hard, "anything") == (0.5, "")
    assert graded(suite, easy, "anything") == (None, "grader: ZeroDivisionError: division by zero")
    before = suite.name
    code.write_text("def half(row, response):\n    return 1.0\n")
    assert before.startswith("rows.jsonl:grade.py:half@") and suite.name != before, "what is cached is of one version"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("{", "line 1 is not JSON"),
        ("[]", "either prompt or messages"),
        ({"prompt": "a", "messages": []}, "either prompt or messages"),
        ({"prompt": 3, "answer": "a"}, "prompt must be text"),
        ({"messages": [], "answer": "a"}, "prompt must be text"),
        ({"messages": [{"role": "user"}], "answer": "a"}, "prompt must be text"),
        ({"prompt": "a"}, "answer is missing"),
        ({"prompt": "a", "answer": "a", "domian": "x"}, "unknown field 'domian'"),
        ({"prompt": "a", "answer": "a", "domain": ""}, "domain"),
        ({"prompt": "a", "answer": "a", "max_tokens": 0}, "max_tokens must be an integer"),
        ("", "has no prompts"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        OwnSuite(written(tmp_path, row), "exact").items()


@pytest.mark.parametrize("grader", ["fuzzy", "grade.py", "no-such.py:f", "here.py:missing", "broken.py:f"])
def test_graders_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grader: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.py").write_text("x = 1\n")
    Path("broken.py").write_text("1 / 0\n")
    with pytest.raises(InvalidInput, match="grader"):
        OwnSuite(written(tmp_path, *ROWS), grader).items()


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(InvalidInput, match=r"no-such\.jsonl"):
        OwnSuite("no-such.jsonl", "exact").items()


def test_without_a_grader_nothing_is_graded(tmp_path: Path) -> None:
    suite = OwnSuite(written(tmp_path, *ROWS))
    score, error = graded(suite, suite.items()[0], "5")
    assert score is None and "there is no grader" in error


def test_several_suites_grade_their_own_items(tmp_path: Path) -> None:
    first = OwnSuite(written(tmp_path, *ROWS), "exact")
    (tmp_path / "more").mkdir()
    second = OwnSuite(written(tmp_path / "more", {"prompt": "Peru?", "answer": "Lima"}), "contains")
    both = Limited(Several((first, second)), 1)
    items = both.items()
    assert [item.prompt for item in items] == ["2 + 3?", "Spain?"]  # Peru and Spain are of the same domain
    assert [both.grade(item, "5") for item in items] == [1.0, 0.0]


def test_suites_have_names() -> None:
    assert len(suite_named("skills", limit=2).items()) == 12
    with pytest.raises(InvalidInput, match="suite must be one of skills"):
        suite_named("skills,poetry")
    with pytest.raises(InvalidInput, match="limit"):
        suite_named("skills", limit=0).items()
