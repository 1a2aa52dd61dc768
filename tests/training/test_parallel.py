"""Losses don't depend on how a run is laid over processes; `redraft train` in two is as in one, and stops as one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.tiny import tiny_model
from tests.training.cluster import Case, in_processes, trained
from tests.training.test_layout import MODEL
from tests.training.test_loop import NANO, TINY

from redraft.errors import ConfigError
from redraft.model.checkpoint import load_model
from redraft.training.metrics import read_lines
from redraft.training.parallel import Distributed, ParallelConfig, Ranks
from redraft.training.state import states

SHARD, EXPERTS = ParallelConfig(data="shard"), ParallelConfig(experts=2)
BOTH = ParallelConfig(data="shard", experts=2)
ALONE = {
    "two forwards": Case(length=60),
    "several forwards": Case(),
    "recompute": Case(parallel=ParallelConfig(recompute=True)),
}
IN_TWO = {
    "replicate": Case(),
    "replicate, one forward": Case(length=200),
    "shard": Case(parallel=SHARD),
    "shard, one forward": Case(parallel=SHARD, length=200),
    "experts": Case(parallel=EXPERTS),
    "both": Case(parallel=BOTH),
    "both, recompute": Case(parallel=ParallelConfig(data="shard", experts=2, recompute=True)),
}
OTHERS = {
    # Two processes draft on different numbers of documents, and one of them on none at times.
    "drafts": Case(parallel=BOTH, share=0.3, model=(("block_routing", 3),)),
    "adamw": Case(parallel=BOTH, kind="adamw"),
    "balance loss": Case(
        parallel=ParallelConfig(data="shard", experts=2, recompute=True), share=0.3, balance_weight=0.5
    ),
    # Rows that the processes can't share evenly, and a tied head.
    "uneven": Case(
        parallel=SHARD, model=(("hidden_size", 18), ("intermediate_size", 7), ("tie_word_embeddings", True))
    ),
}


def one_forward(case: Case) -> list[dict[str, float]]:
    """The metrics of the same training in one process and one forward a step."""
    return trained(replace(case, parallel=ParallelConfig(), length=200))


def write_lines(folder: str) -> None:
    for name, case in (IN_TWO | OTHERS).items():
        lines = trained(case)
        if Ranks().first:
            (Path(folder) / f"{name}.json").write_text(json.dumps(lines))


@pytest.fixture(scope="module")
def in_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in_two")
    in_processes(2, write_lines, str(folder))
    return folder


@pytest.fixture(scope="module")
def reference() -> list[dict[str, float]]:
    return one_forward(Case())


def assert_same(lines: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    for key in ("loss", "draft_loss", "edit_loss", "draft_accuracy", "gradient_norm", "worst_load", "positions"):
        assert [line[key] for line in lines] == pytest.approx([line[key] for line in expected], rel=1e-9), key


@pytest.mark.parametrize("name", ALONE)
def test_the_split_into_forwards_changes_nothing(name: str, reference: list[dict[str, float]]) -> None:
    assert_same(trained(ALONE[name]), reference)


@pytest.mark.parametrize("name", IN_TWO)
def test_the_layout_over_processes_changes_nothing(name: str, in_two: Path, reference: list[dict[str, float]]) -> None:
    assert_same(json.loads((in_two / f"{name}.json").read_text()), reference)


@pytest.mark.parametrize("name", OTHERS)
def test_nor_with_another_model_or_objective(name: str, in_two: Path) -> None:
    assert_same(json.loads((in_two / f"{name}.json").read_text()), one_forward(OTHERS[name]))


def test_a_layout_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'parallel\.data must be "replicate" or "shard", got \'halve\''):
        ParallelConfig(data="halve")
    with pytest.raises(ConfigError, match=r"1 processes are not a multiple of parallel\.experts \(2\)"):
        Distributed(tiny_model(**MODEL), EXPERTS, Ranks())
    with pytest.raises(ConfigError, match=r"parallel\.experts must divide num_experts \(8\), got 3"):
        ParallelConfig(experts=3).check(6, 8)


def command(folder: Path, processes: int, *overrides: str) -> list[str]:
    options = [f"run.output={folder}", "objective.mtf.share=0", *overrides, f"run.processes={processes}"]
    return [sys.executable, "-m", "redraft", "train", str(NANO), *TINY, *options]


def test_two_processes_train_and_export_as_one(tmp_path: Path) -> None:
    lines, exports = [], []
    in_parts = ("parallel.data=shard", "parallel.experts=2", "parallel.recompute=true")
    for processes, layout in ((1, ()), (2, in_parts)):
        folder = tmp_path / str(processes)
        arguments = command(folder, processes, "schedule.steps=3", "run.precision=float32", *layout)
        subprocess.run(arguments, check=True, capture_output=True, timeout=240)
        lines.append(read_lines(folder / "metrics.jsonl"))
        exports.append(load_model(folder / "export").state_dict())
    one, two = lines
    assert [line["step"] for line in one] == [line["step"] for line in two] == [1, 2, 3]
    for key in ("draft_loss", "edit_loss"):
        assert [line[key] for line in one] == pytest.approx([line[key] for line in two], rel=1e-4)
    for name, tensor in exports[0].items():
        torch.testing.assert_close(tensor, exports[1][name], rtol=0.02, atol=2e-3)  # bfloat16 after Muon


def test_a_signal_stops_all_processes_with_one_checkpoint(tmp_path: Path) -> None:
    run = subprocess.Popen(command(tmp_path, 2, "schedule.steps=100000"), stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while len(read_lines(tmp_path / "metrics.jsonl")) < 3 and time.monotonic() < until:
        time.sleep(0.2)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 130
    assert errors.count("resumes from") == 1 and "Traceback" not in errors
    assert len(states(tmp_path)) >= 1
