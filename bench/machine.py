"""What a measurement ran on, and how much of the CPU others took while it ran."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any

VOID_ABOVE = 0.15
STAT = Path("/proc/stat")
ROOT = Path(__file__).parents[1]


def describe() -> dict[str, Any]:
    """CPU, memory, versions and commit, ready for JSON."""
    import torch

    return {
        "cpu": _field(Path("/proc/cpuinfo"), "model name") or platform.processor(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "cores": len(cpus()),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("redraft", "torch", "transformers", "diffusers", "numpy")},
        "commit": _commit(),
        "environment": {
            name: os.environ.get(name) for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
        },
    }


def cpus() -> set[int]:
    """The CPUs that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def multiplies_bfloat16() -> bool:
    """Whether a matrix product in bfloat16 is faster here than one in float32: "auto" precision takes it then."""
    from redraft.training.precision import compute_dtype

    return compute_dtype("auto", "cpu") is not None


class CpuShare:
    """`with CpuShare() as share:`, then `share.others`: the share of this process's CPUs, 0 to 1, that was busy with
    something else (the hypervisor's theft included); None where the system doesn't tell."""

    others: float | None = None

    def __enter__(self) -> CpuShare:
        self._started, self._busy, self._own = perf_counter(), busy_seconds(), _own_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        elapsed, busy = perf_counter() - self._started, busy_seconds()
        if busy is not None and self._busy is not None and elapsed:
            others = (busy - self._busy) - (_own_seconds() - self._own)
            # Both clocks tick, so that the difference of a quiet run can fall a tick below 0.
            self.others = max(0.0, others / (elapsed * len(cpus())))

    @property
    def void(self) -> bool:
        """Others took so much that the measurement says nothing."""
        return self.others is not None and self.others > VOID_ABOVE


def busy_seconds(stat: Path = STAT) -> float | None:
    """Seconds that the CPUs of this process have worked since boot, for anyone (proc(5), /proc/stat)."""
    if not stat.exists():
        return None
    mine = {f"cpu{index}" for index in cpus()}
    ticks = 0
    for line in stat.read_text().splitlines():
        name, *values = line.split()
        if name in mine:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, values[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _field(path: Path, name: str) -> str | None:
    if not path.exists():
        return None
    lines = (line.partition(":") for line in path.read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), None)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of this tree, with "+" when files differ from it; None outside a repository."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)

    try:
        head = git("rev-parse", "HEAD")
    except FileNotFoundError:
        return None
    if head.returncode:
        return None
    return head.stdout.strip() + ("+" if git("status", "--porcelain").stdout.strip() else "")
