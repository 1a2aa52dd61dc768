"""`redraft eval frontier` and `redraft tune` over a model whose answers are known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from redraft.cli import asking
from redraft.cli.main import run
from redraft.cli.search import mode_name
from redraft.engine.named import modes_of
from redraft.eval.answer import Answer
from redraft.eval.settings import QUALITY, Setting
from redraft.eval.task import Item


@dataclass(frozen=True)
class Known:
    """Right ("yes yes") where its threshold is at least that of the prompt's domain; the lower, the faster."""

    identity: str = "known"
    block_length: int | None = 32

    def answer(self, items: Sequence[Item], setting: Setting) -> list[Answer]:
        needed = {"easy": 0.35, "hard": 0.65}
        good = [(setting.threshold or 0.0) >= needed[item.messages[0]["content"].split()[0]] for item in items]
        forwards = round(100 * (setting.threshold or 0.0))
        return [Answer(text="yes yes" if right else "no no", tokens=100, forwards=forwards) for right in good]


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """48 prompts of each of two domains, and a model that is known."""
    monkeypatch.setattr(asking, "model_of", lambda *options: asking.Asked(Known(), "known", "Known.", None))
    path = tmp_path / "prompts.jsonl"
    rows = [
        {"prompt": f"{domain} {number}", "domain": domain, "answer": "yes yes"}
        for number in range(48)
        for domain in ("easy", "hard")
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def command(verb: Sequence[str], prompts: Path, *more: str) -> list[str]:
    return [*verb, "--data", str(prompts), "--out", str(prompts.parent / "out"), *more]


def test_tune_writes_a_mode_for_each_domain(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    modes = prompts.parent / "modes.json"
    grid = "0.3/off,0.4/off,0.5/off,0.6/off,0.7/off,0.8/off"
    more = ("--grader", "exact", "--settings", grid, "--budget", "6", "--modes", str(modes))
    assert run(command(["tune"], prompts, *more)) == 0
    out = capsys.readouterr().out
    assert "easy: 0.4/off, 1.75 times the TPF of 0.7/0.5" in out and f"The modes are in {modes}." in out
    assert modes_of(prompts.parent) == {
        "easy": {"threshold": 0.4, "edit_threshold": "off"},
        "hard": {"threshold": 0.7, "edit_threshold": 0.5},  # what is faster loses too much
    }
    about = json.loads(modes.read_text())["easy"]["about"]
    assert (about["budget_points"], about["confidence"], about["items"]) == (6.0, 0.95, 36)
    assert run(command(["tune"], prompts, *more, "--json")) == 0  # from the log, and the same
    assert [each["mode"] for each in json.loads(capsys.readouterr().out)] == ["easy", "hard"]


def test_without_a_grader_agreement_with_quality_mode_decides(
    prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = "0.3/off,0.4/off,0.7/off,0.7/0.5"
    assert run(command(["eval", "frontier"], prompts, "--settings", grid, "--json")) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["items"] == 96 and content["answers"] <= content["answers_of_the_full_grid"] == 4 * 96
    points = {point["setting"]: point["accuracy"]["value"] for point in content["points"]}
    assert points == {"0.3/off": 0.0, "0.4/off": 0.5, "0.7/off": 1.0, "0.7/0.5": 1.0}
    assert {point["setting"] for point in content["points"] if point["on_front"]} >= {"0.3/off", "0.4/off"}
    folder = prompts.parent / "out"
    assert (folder / "frontier.png").exists() and "agreement with Q" in (folder / "frontier.md").read_text()
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    graded = [line for line in lines if line["setting"] == QUALITY.key]
    assert len(graded) == 2 * 96 and {line["score"] for line in graded} == {1.0}  # as asked, and as reference


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "--modes FILE"),
        (("--modes", "m.json", "--grader", "exact"), "at least 219 are needed"),
        (("--modes", "m.json", "--budget", "0"), "budget must be above 0"),
        (("--modes", "m.json", "--confidence", "1"), "confidence must be above"),
        (("--modes", "m.json", "--suite", "skills"), "either --suite NAMES or --data FILE"),
    ],
)
def test_bad_input_of_tune_is_one_line(
    prompts: Path, more: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command(["tune"], prompts, *more)) == 2
    err = [line for line in capsys.readouterr().err.splitlines() if line.startswith("redraft: ")]
    assert len(err) == 1 and words in err[0]


@pytest.mark.parametrize(
    ("domain", "name"),
    [("code", "code"), ("My Domain!", "my-domain"), ("speed", "tuned-speed"), ("数学", "tuned"), ("a" * 90, "a" * 56)],
)
def test_domains_become_names(domain: str, name: str) -> None:
    assert mode_name(domain) == name
