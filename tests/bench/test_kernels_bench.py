"""The kernel's benchmark with little work: what it writes, and what a busy machine makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench import floors, kernels, machine
from bench.decoding import CONFIG
from redraft.model.config import ModelConfig

TINY = ModelConfig.from_dict(CONFIG.to_dict() | kernels.TINY)
ARGUMENTS = ["--tiny", "--dtype", "float32", "--threads", "1", "--rows", "3", "--repeats", "2"]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that nobody else uses, with rates that take no time to find."""
    monkeypatch.setattr(floors, "measure", lambda dtype: floors.Rates(1e9, 2e9))
    monkeypatch.setattr(machine, "busy_seconds", lambda: None)


def test_a_cell_has_every_phase_and_ratios_of_the_same_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "kernels.json"
    assert kernels.main([*ARGUMENTS, "--out", str(out)]) == 0
    (cell,) = json.loads(out.read_text())["cells"]
    assert [row["phase"] for row in cell["summary"]] == ["routed experts", "shared expert", *kernels.DENSE]
    for row in cell["summary"]:
        assert row["void"] == 0 and row["torch_over_fused"]["repeats"] == 2
        runs = {(run["arm"], run["round"]): run for run in cell["runs"] if run["phase"] == row["phase"]}
        ratios = [runs["torch", turn]["seconds"] / runs["fused", turn]["seconds"] for turn in range(2)]
        assert row["torch_over_fused"]["max"] == max(ratios)
        assert row["fused_over_floor"]["min"] * row["floor_seconds"] == pytest.approx(row["fused_seconds"]["min"])
    assert "routed experts" in capsys.readouterr().out


def test_on_a_busy_machine_there_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.CpuShare, "void", property(lambda self: True))
    out = tmp_path / "kernels.json"
    assert kernels.main([*ARGUMENTS, "--out", str(out)]) == 1
    assert not out.exists()


def test_the_arms_compute_the_same_and_the_floor_counts_experts_that_are_used() -> None:
    for phase in kernels.phases(TINY, 3, torch.float32, torch.Generator().manual_seed(0)):
        for call in phase.calls:
            with torch.inference_mode():
                fused = call()
            with torch.no_grad():
                torch.testing.assert_close(fused, call(), rtol=1e-4, atol=1e-5)
    one = 3 * TINY.hidden_size * TINY.moe_intermediate_size
    experts = kernels.phases(TINY, 1, torch.bfloat16, torch.Generator())[0].cost
    assert experts == floors.Cost(2.0 * TINY.num_experts_per_tok * one, 2.0 * TINY.num_experts_per_tok * one)


def test_a_tiny_run_needs_a_place_of_its_own() -> None:
    with pytest.raises(SystemExit):
        kernels.main(["--tiny"])
