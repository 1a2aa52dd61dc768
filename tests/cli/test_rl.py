"""What `redraft rl` shows, and what it refuses before anything is built."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from redraft.cli.main import run
from redraft.cli.rl import COLUMNS, Table

STEP = {
    "reward": 0.5,
    "correct": 0.25,
    "skipped": 0.5,
    "staleness": 0.0,
    "response_tokens": 33.3,
    "tokens_per_forward": 4.25,
    "rollout_seconds": 12.0,
    "update_seconds": 3.0,
}
UPDATE = {"clipped": 0.1, "log_ratio_spread": 0.0123, "kl": 1e-4, "entropy": 0.5}


def test_a_row_a_step_under_a_heading_that_comes_back() -> None:
    out = io.StringIO()
    table = Table(40, out)
    table.show({"step": 0})
    for step in range(1, 31):
        table.show({"step": step, **STEP, **(UPDATE if step != 2 else {})})
    lines = out.getvalue().splitlines()
    assert len(lines) == 32 and lines[0] == lines[26] and lines[0].split()[:3] == ["step", "reward", "right"]
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split() == (
        ["1/40", "0.500", "0.250", "0.50", "0.10", "1.2e-02", "1.0e-04", "0.500", "33.3", "4.25", "12.0", "3.0"]
    )
    assert lines[2].split().count("-") == 4, "a step without an update"


def test_evaluations_and_where_a_run_goes_on_are_lines_of_their_own() -> None:
    out = io.StringIO()
    table = Table(40, out)
    table.show({"step": 7})
    table.show({"step": 8, "tokens": 9, "eval_score": 0.5, "eval_Q_accuracy": 0.6, "eval_S_accuracy": 0.4})
    assert out.getvalue().splitlines() == [
        "continues after step 7 of 40",
        "evaluation: score 0.500  Q accuracy 0.600  S accuracy 0.400",
    ]


def test_every_column_is_a_metric_of_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "rl.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in guide for name in COLUMNS)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["start=''"], "`start` must name a checkpoint"),
        (["loss.clip=0.1"], "unknown key 'loss.clip'"),
        (["workers.max_staleness=-1"], "workers.max_staleness must be at least 0"),
        (["workers.cap=0.5"], "workers.cap must be at least 1"),
        (["environment.skills={chess: 1.0}"], "unknown skill 'chess'"),
    ],
)
def test_mistakes_are_one_line(
    overrides: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["rl", "nano_math.yaml", f"run.output={tmp_path}", *overrides]) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1 and says in error[0]
