"""`redraft train` in two processes: the same losses as in one, and it stops as one."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.training.test_loop import NANO, TINY

from redraft.training.metrics import read_lines
from redraft.training.state import states


def command(folder: Path, processes: int, *overrides: str) -> list[str]:
    options = [f"run.output={folder}", "objective.mtf=0", *overrides, f"run.processes={processes}"]
    return [sys.executable, "-m", "redraft", "train", str(NANO), *TINY, *options]


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    found = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        subprocess.run(command(folder, processes, "schedule.steps=3"), check=True, capture_output=True, timeout=240)
        assert (folder / "export" / "model.safetensors").exists()
        found.append(read_lines(folder / "metrics.jsonl"))
    one, two = found
    assert [line["step"] for line in one] == [line["step"] for line in two] == [1, 2, 3]
    for key in ("draft_loss", "edit_loss"):
        assert [line[key] for line in one] == pytest.approx([line[key] for line in two], rel=2e-3)


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
