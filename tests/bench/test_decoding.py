"""The command: what it writes, what it leaves out, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import decoding, machine
from bench.experiment import Experiment
from bench.report import summary, table
from redraft.model.config import ModelConfig

SMALL = ["--threads", "1", "--prompts", "32", "64", "--new-tokens", "64", "--repeats", "2"]


@pytest.fixture(autouse=True)
def _quick_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that nobody else uses, with rates that take no time to find."""
    from bench import floors

    monkeypatch.setattr(floors, "measure", lambda dtype: floors.Rates(1e9, 1e9))
    monkeypatch.setattr(machine, "busy_seconds", lambda: None)


def run(config: ModelConfig, out: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = decoding.main([*arguments, "--out", str(out)], config)
    return code, json.loads(out.read_text())


def test_the_file_has_all_fields(tiny: ModelConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, results = run(tiny, tmp_path / "new" / "out.json", *SMALL)
    assert code == 0 and results["sound"] is True
    assert {"benchmark", "started", "command", "machine", "settings", "rates", "floors", "seconds"} <= results.keys()
    assert results["settings"]["config"]["hidden_size"] == 32 and results["settings"]["parameters"] > 0
    assert results["forwards"] == 16 and results["skipped"] == []
    # Two rounds over two prompts with four systems, and a check: in float32 it stands for a cell of the first round.
    assert len(results["runs"]) == 4 + 3 * 4 + 4 + 4 * 4
    for one in results["runs"]:
        assert one["seconds"] > 0 and one["forwards_measured"] <= one["forwards"] and one["drafted_as_asked"]
        assert one["sampled"] == (one["forwards_measured"] < one["forwards"])
        if one["dtype"] == "float32":
            assert one["steps_equal"] == one["steps_compared"] > 0
    assert [check["forwards"] for check in results["checks"]] == [
        dict.fromkeys(("cached", "uncached", "baseline", "diffusers"), 16),
        dict.fromkeys(("cached", "uncached", "baseline", "diffusers"), 8),
    ]
    rows = {(row["dtype"], row["prompt"], row["system"]): row for row in results["summary"]}
    assert len(rows) == 2 * 2 * 4
    row = rows["float32", 64, "baseline"]
    assert row["ratio"]["repeats"] == 2 and row["ratio"]["min"] <= row["ratio"]["median"] <= row["ratio"]["max"]
    assert rows["float32", 64, "cached"]["ratio"]["median"] == 1.0
    assert results["floors"][0]["cached"]["floor_seconds"] < results["floors"][0]["baseline"]["floor_seconds"]
    shown = capsys.readouterr().out
    assert "estimate of the first round" in shown and "forwards equal, tokens equal" in shown
    assert not list(tmp_path.rglob("*.part"))


def test_full_runs_every_forward(tiny: ModelConfig, tmp_path: Path) -> None:
    arguments = ["--dtype", "float32", "--threads", "1", "--prompts", "32", "--new-tokens", "64", "--repeats", "1"]
    _, results = run(tiny, tmp_path / "out.json", *arguments, "--full")
    assert all(not one["sampled"] and one["forwards_measured"] == 16 for one in results["runs"])
    assert all(one["steps_equal"] == one["steps_compared"] == 16 for one in results["runs"])


def test_the_slower_a_forward_the_fewer_are_timed(
    tiny: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """About 3 s a recomputation at the short prompt, 20 s at the long one, as the plan believes."""
    from bench import floors

    monkeypatch.setattr(floors, "measure", lambda dtype: floors.Rates(1e6, 1e9))
    arguments = ["--dtype", "float32", "--threads", "1", "--prompts", "32", "512", "--new-tokens", "96"]
    _, results = run(tiny, tmp_path / "out.json", *arguments, "--repeats", "2", "--budget-seconds", "1e6")
    counts = {(one["prompt"], one["system"], one["repeat"]): one["forwards_measured"] for one in results["runs"]}
    assert counts[32, "baseline", 0] == counts[32, "cached", 0] == 24  # the check
    assert counts[32, "baseline", 1] == 2 and counts[32, "cached", 1] == 10
    assert counts[512, "baseline", 0] == 1
    assert (512, "diffusers", 0) not in counts and (512, "uncached", 0) not in counts
    assert "prompt 512 without diffusers, uncached" in capsys.readouterr().out


def test_a_plan_runs_nothing(tiny: ModelConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert decoding.main([*SMALL, "--plan", "--out", str(tmp_path / "out.json")], tiny) == 0
    assert not (tmp_path / "out.json").exists()
    assert "first round about" in capsys.readouterr().out


def test_what_does_not_fit_is_left_out_and_listed(tiny: ModelConfig, tmp_path: Path) -> None:
    code, results = run(tiny, tmp_path / "out.json", *SMALL, "--budget-seconds", "0.001")
    assert code == 1 and not results["runs"] and not results["sound"]
    assert len(results["skipped"]) == (2 + 3) + (2 + 2)
    assert results["skipped"][0]["estimated_seconds"] > results["skipped"][0]["seconds_left"]


def test_an_interruption_keeps_what_was_measured(
    tiny: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = Experiment._run_cell, []

    def interrupted(self: Experiment, *arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        original(self, *arguments)

    monkeypatch.setattr(Experiment, "_run_cell", interrupted)
    _, results = run(tiny, tmp_path / "out.json", *SMALL)
    assert len(results["runs"]) == 8 and len(results["summary"]) == 8


def test_void_runs_count_in_no_ratio(tiny: ModelConfig, tmp_path: Path) -> None:
    _, results = run(tiny, tmp_path / "out.json", *SMALL, "--dtype", "float32")
    for one in results["runs"]:
        one["void"] = one["repeat"] == 0 and one["system"] in ("cached", "baseline")
    row = next(r for r in summary(results)["summary"] if r["prompt"] == 64 and r["system"] == "diffusers")
    assert row["ratio"]["repeats"] == 1 and row["void"] == 0  # its partner in round 0 was void
    for one in results["runs"]:
        one["void"] = one["system"] == "baseline"
    spoiled = results | summary(results)
    row = next(r for r in spoiled["summary"] if r["system"] == "baseline")
    assert row["ratio"] is None and row["void"] == 2 and not spoiled["sound"]
    assert "void" in table(spoiled)


@pytest.mark.parametrize(
    ("field", "value", "check"),
    [("steps_equal", 0, "tokens_equal"), ("forwards_measured", 3, "forwards_equal")],
)
def test_a_difference_fails_the_check(tiny: ModelConfig, tmp_path: Path, field: str, value: int, check: str) -> None:
    _, results = run(tiny, tmp_path / "out.json", *SMALL, "--dtype", "float32")
    one = next(one for one in results["runs"] if one["check"] and one["system"] == "diffusers")
    one[field] = value
    spoiled = results | summary(results)
    assert not spoiled["sound"] and not spoiled["checks"][0]["passed"]
    assert spoiled["checks"][0][check] not in (True, {"diffusers": True})
    assert "differ: diffusers" in table(spoiled) or "forwards {" in table(spoiled)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompts", "33"], "multiple of the block length (32), got 33"),
        (["--new-tokens", "0"], "must be a positive integer, got 0"),
        (["--threads", "x"], "invalid positive value"),
        (["--dtype", "int8"], "int8"),
        (["--per-step", "33"], "at most the block length (32), got 33"),
        (["--budget-seconds", "-1"], "above 0, got -1"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        decoding.main(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
