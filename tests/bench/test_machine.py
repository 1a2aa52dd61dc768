"""The record of the machine, and the share of the CPU that others take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest

from bench import machine

TICKS = 100


def test_the_description_is_json_and_complete() -> None:
    described = json.loads(json.dumps(machine.describe()))
    assert {"cpu", "cores", "torch", "diffusers", "transformers", "commit", "memory_bytes"} <= described.keys()
    assert described["cores"] >= 1 and described["torch"] and described["cpu"]


def stat(path: Path, busy: int) -> Path:
    lines = ["cpu  999999 0 0 0 0 0 0 0 0 0"]
    lines += [f"cpu{index} {busy} 1 2 88888 77777 3 4 5 6 7" for index in sorted(machine.cpus())]
    lines += ["cpu9999 555555 0 0 0 0 0 0 0 0 0", "intr 1 2 3"]
    path.write_text("\n".join(lines))
    return path


def test_busy_time_counts_work_and_theft_on_our_cpus_only(tmp_path: Path) -> None:
    per_cpu = (TICKS + 1 + 2 + 3 + 4 + 5) / machine.os.sysconf("SC_CLK_TCK")
    assert machine.busy_seconds(stat(tmp_path / "stat", TICKS)) == pytest.approx(per_cpu * len(machine.cpus()))
    assert machine.busy_seconds(tmp_path / "absent") is None


@pytest.mark.parametrize(
    ("busy", "own", "others", "void"),
    [(2.0, 2.0, 0.0, False), (2.0, 0.5, 0.75, True), (1.0, 1.01, 0.0, False), (0.3, 0.02, 0.14, False)],
)
def test_others_are_what_is_busy_without_us(
    monkeypatch: pytest.MonkeyPatch, busy: float, own: float, others: float, void: bool
) -> None:
    """One second on two CPUs."""
    clocks = {"busy_seconds": iter([10.0, 10.0 + busy]), "_own_seconds": iter([5.0, 5.0 + own])}
    for name, values in clocks.items():
        monkeypatch.setattr(machine, name, lambda values=values: next(values))
    monkeypatch.setattr(machine, "perf_counter", iter([0.0, 1.0]).__next__)
    monkeypatch.setattr(machine, "cpus", lambda: {0, 1})
    with machine.CpuShare() as share:
        pass
    assert share.others == pytest.approx(others) and share.void is void


def test_nothing_is_void_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "busy_seconds", lambda: None)
    with machine.CpuShare() as share:
        pass
    assert share.others is None and not share.void


def test_our_own_work_is_not_taken_for_others() -> None:
    if machine.busy_seconds() is None:
        pytest.fail("this test needs /proc/stat; the suite runs on Linux")
    with machine.CpuShare() as share:
        until = perf_counter() + 0.3
        while perf_counter() < until:
            pass
    with machine.CpuShare() as busy:
        subprocess.run(
            [sys.executable, "-c", "from time import *\nend = time() + 0.4\nwhile time() < end: pass"], check=True
        )
    assert share.others is not None and busy.others is not None
    assert 0 <= share.others <= 1 and busy.others > 0
