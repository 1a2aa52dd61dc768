from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from redraft.cli.main import run
from redraft.eval import runner
from redraft.eval.answer import LocalModel
from redraft.eval.records import Record
from redraft.eval.runner import Job, in_batches
from redraft.eval.task import Suite
from redraft.types import Choice, Completion, SamplingParams, Stats


class Parrot:
    """Answers every prompt with one word."""

    block_length = 32
    context_length = 1024

    def render(self, messages: object, tools: object = None) -> list[int]:
        return [1]

    def generate(self, prompts: object, params: SamplingParams | None = None) -> list[Completion]:
        stats = Stats(forwards=2, generated_tokens=4, seconds=0.1)
        assert isinstance(prompts, list)
        return [Completion([1], [Choice("word", [2] * 4, "stop", stats)]) for _ in prompts]


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that passes for a checkpoint, and workers that don't load it; Ctrl-C is pressed at the job "stop_at"."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    monkeypatch.setattr(runner, "in_processes", _workers(None))
    return folder


def _workers(stop_at: int | None):
    def in_processes(folder: Path, model: str, processes: int, suite: Suite):
        def work(jobs: Sequence[Job]) -> Iterator[list[Record]]:
            for number, job in enumerate(jobs):
                if number == stop_at:
                    raise KeyboardInterrupt
                yield from in_batches(LocalModel(Parrot(), model), suite)([job])

        return work

    return in_processes


def command(checkpoint: Path, *more: str) -> list[str]:
    out = str(checkpoint.parent / "out")
    return ["eval", "skills", "--model", str(checkpoint), "--per-skill", "2", "--out", out, *more]


def test_the_report_is_printed_and_written(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command(checkpoint)) == 0
    out, err = capsys.readouterr()
    folder = checkpoint.parent / "out"
    assert out == (folder / "report.md").read_text() and "| draft-only 0.95 |" in out
    assert err.splitlines()[-1] == "48/48 answers"
    assert (folder / "frontier.png").exists()
    assert len((folder / "records.jsonl").read_text().splitlines()) == 48


def test_json(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command(checkpoint, "--json", "--settings", "0.3/0", "--split", "test", "--seed", "4")) == 0
    content = json.loads(capsys.readouterr().out)
    row = content["rows"][0]
    assert (row["setting"], row["items"], row["accuracy"]["value"], row["tokens_per_forward"]) == (
        "0.3/0",
        12,
        0.0,
        2.0,
    )
    assert (content["run"]["options"]["seed"], content["run"]["options"]["split"]) == (4, "test")


def test_a_stopped_run_goes_on(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "in_processes", _workers(5))
    assert run(command(checkpoint)) == 130
    assert "the same command goes on" in capsys.readouterr().err
    records = checkpoint.parent / "out" / "records.jsonl"
    before = records.read_text()
    assert len(before.splitlines()) == 20
    monkeypatch.setattr(runner, "in_processes", _workers(None))
    assert run(command(checkpoint)) == 0
    assert records.read_text().startswith(before)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--settings", "fast"), "settings must be"),
        (("--per-skill", "0"), "per_skill"),
        (("--split", "train"), "split"),
        (("--model", "/no/such/folder"), "/no/such/folder"),
        (("--out", "/dev/null"), "cannot write records"),
    ],
)
def test_bad_input_is_one_line(
    checkpoint: Path, more: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command(checkpoint, *more)) == 2
    err = capsys.readouterr().err
    assert err.startswith("redraft: ") and err.count("\n") == 1 and words in err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["eval"]) == 0
    assert "Example: redraft eval --suite" in capsys.readouterr().out
    assert run(["eval", "skills", "--help"]) == 0
    assert "Example: redraft eval skills" in capsys.readouterr().out


def elbo_rows(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    turns = [{"role": "user", "content": "Add 2 and 3."}, {"role": "assistant", "content": "5"}]
    path.write_text(json.dumps({"messages": turns}) + "\n")
    return path


def test_elbo_scores_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, folder = elbo_rows(tmp_path), tmp_path / "out"
    command = ["eval", "elbo", "--data", str(rows), "--block-length", "4", "--exact", "--json", "--out", str(folder)]
    assert run(command) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report == json.loads((folder / "elbo.json").read_text()) and err.endswith("1/1 documents\n")
    assert report["estimator"]["kind"] == "exact" and report["rows"][0]["documents"] == 1
    assert report["rows"][0]["per_token"]["value"] > 0 and report["rows"][0]["bytes"] == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "give one of them"),
        (("--skills", "--data", "rows.jsonl"), "give one of them"),
        (("--data", "rows.jsonl", "--samples", "6"), "samples must be a multiple of 4"),
        (("--data", "rows.jsonl", "--exact"), "1 to 4 supervised positions, got 32"),
        (("--data", "no-such.jsonl"), "no-such.jsonl"),
        (("--skills", "--model", "/no/such/folder"), "/no/such/folder"),
    ],
)
def test_bad_input_of_elbo_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: tuple[str, ...],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    elbo_rows(tmp_path)
    assert run(["eval", "elbo", *more]) == 2
    err = capsys.readouterr().err
    assert err.startswith("redraft: ") and err.count("\n") == 1 and words in err


def prompts(folder: Path) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text('{"prompt": "Say word.", "answer": "word"}\n{"prompt": "Say more.", "answer": "more"}\n')
    return path


@pytest.fixture
def parrot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is a parrot."""
    from redraft.cli import asking

    def model_of(*options: object) -> asking.Asked:
        return asking.Asked(LocalModel(Parrot(), "m"), "parrot", "Loudly.", None)

    monkeypatch.setattr(asking, "model_of", model_of)


def test_prompts_of_ones_own(tmp_path: Path, parrot: None, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["eval", "--data", str(prompts(tmp_path)), "--grader", "exact", "--out", str(out)]
    assert run([*command, "--settings", "quality"]) == 0
    text = capsys.readouterr().out
    assert text == (out / "report.md").read_text() and "2 items of prompts.jsonl:exact. Loudly." in text
    assert "| all | Q | 2 | 50.0 [" in text
    assert run([*command, "--settings", "quality,0.5/0/p2", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [row["setting"] for row in content["rows"] if row["task"] is None] == ["0.7/0.5", "0.5/0/p2"]
    assert len((out / "records.jsonl").read_text().splitlines()) == 4  # those of the first run weren't made again
    assert run(["eval", "compare", str(out), str(out), "--pair", "0.7/0.5,0.5/0/p2"]) == 0
    assert "| all | 0.7/0.5 → 0.5/0/p2 | 2 | +0.0 [+0.0, +0.0] | 0 | 1 |" in capsys.readouterr().out
    assert run(["eval", "compare", str(out), str(out), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--suite", "poetry"), "suite must be one of"),
        (("--suite", "skills", "--data", "prompts.jsonl"), "either --suite NAMES or --data FILE"),
        (("--suite", "skills", "--grader", "exact"), "grader belongs to --data"),
        (("--data", "prompts.jsonl"), "--data needs --grader"),
        (("--data", "prompts.jsonl", "--grader", "exact", "--limit", "0"), "limit"),
        (("--data", "prompts.jsonl", "--grader", "exact", "--settings", "fast"), "settings must be"),
        (("--suite", "skills", "skills"), "--suite before skills has no effect"),
        (("--limit", "3", "compare", "a", "b"), "--limit before compare has no effect"),
        (("--limit", "3"), "either --suite NAMES or --data FILE"),
        (("--suite", "llada2.1", "--settings", "speed"), "--settings has no effect on llada2.1"),
        (("--suite", "skills", "--limit", "1", "--batch", "0"), "batch"),
        (("--suite", "skills", "--limit", "1", "--url", "http://localhost:1", "--dtype", "float64"), "dtype belongs"),
        (("compare", "nowhere", "nowhere"), "cannot read nowhere"),
        (("compare", "a", "b", "--pair", "0.5/0"), "pair must be two settings"),
    ],
)
def test_bad_input_of_suites_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    prompts(tmp_path)
    assert run(["eval", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("redraft: ") and err.count("\n") == 1 and words in err
