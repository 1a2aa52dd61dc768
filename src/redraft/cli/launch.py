"""One command, several processes on this machine: starts itself once a rank and waits for all of them.

Over several machines `torchrun -m redraft train ...` does the same; a process that finds itself in such a group
doesn't start another.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence


def in_group() -> bool:
    """Whether this process is already one of several."""
    return "WORLD_SIZE" in os.environ


def launch(processes: int, arguments: Sequence[str]) -> int:
    """Runs `redraft <arguments>` in `processes` ranks; the exit code is that of the first rank that failed, else 0.

    Ctrl-C and SIGTERM reach every rank, which then save and leave by themselves. Only rank 0 writes to the terminal;
    another rank's errors are shown if rank 0 had none. When a rank fails the others are stopped.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    shared = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with tempfile.TemporaryFile() as others:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "redraft", *arguments],
                env={"OMP_NUM_THREADS": threads} | os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=None if rank == 0 else subprocess.DEVNULL,
                stderr=None if rank == 0 else others,
                # A group of its own: the signal is passed on once, not once by the terminal and once by us.
                start_new_session=True,
            )
            for rank in range(processes)
        ]
        code = _wait(ranks)
        if code and ranks[0].returncode in (0, -signal.SIGTERM):
            others.seek(0)
            sys.stderr.write(others.read().decode(errors="replace"))
    return code


GRACE = 3.0  # seconds that ranks get to leave by themselves once one has left with an error


def _wait(ranks: list[subprocess.Popen[bytes]]) -> int:
    def pass_on(number: int, _frame: object) -> None:
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(number)

    previous = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while True:
            codes = [rank.poll() for rank in ranks]
            failed = next((code for code in codes if code), None)
            if failed is not None:
                until = time.monotonic() + GRACE
                while time.monotonic() < until and any(rank.poll() is None for rank in ranks):
                    time.sleep(0.05)
                return failed
            if all(code == 0 for code in codes):
                return 0
            time.sleep(0.1)
    finally:
        _stop(ranks)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _stop(ranks: list[subprocess.Popen[bytes]], patience: float = 20.0) -> None:
    """Asks the ranks that still run to leave, and ends those that can't (one that waits for a lost peer)."""
    until = time.monotonic() + patience
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
    for rank in ranks:
        try:
            rank.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()
