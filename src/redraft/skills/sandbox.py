"""Runs one function of an untrusted Python program on several inputs, in a locked process of its own.

The child is `python -I -S` in a session of its own, with an empty environment, an empty working directory, limits
on CPU time, memory, file size and processes, and an audit hook (see `_sandbox_child.py`); as root it also drops to
an unprivileged user. Where `unshare` of util-linux may make one, it has an empty network namespace. The parent bounds
the wall clock and the output and then kills the whole process group.
It holds programs that a small model may write; against a determined attacker use a virtual machine.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

CHILD: Final = Path(__file__).with_name("_sandbox_child.py")


@dataclass(frozen=True)
class Limits:
    """What one program may use. wall_seconds covers the start of the interpreter and all calls together."""

    wall_seconds: float = 5.0
    cpu_seconds: int = 2
    memory_bytes: int = 256 * 2**20
    output_bytes: int = 64 * 2**10


@dataclass(frozen=True)
class Outcome:
    """`values` holds what each call returned (as JSON values), or is None and `error` says why."""

    values: list[Any] | None = None
    error: str | None = None


def run_function(
    source: str,
    function: str,
    calls: Sequence[Sequence[Any]],
    limits: Limits | None = None,
    modules: Sequence[str] = (),
) -> Outcome:
    """Runs `source` once and calls `function` with each list of JSON arguments; never raises on what it does.

    modules: of the standard library, that it may import besides a few that are always there.

    The first call that raises, a return value that JSON can't hold, and a limit that is hit each make the whole
    outcome an error.
    """
    limits = limits or Limits()
    job = {
        "source": source,
        "function": function,
        "calls": [list(arguments) for arguments in calls],
        "modules": list(modules),
        "limits": {"cpu_seconds": limits.cpu_seconds, "memory_bytes": limits.memory_bytes},
    }
    with tempfile.TemporaryDirectory(prefix="redraft-") as folder, tempfile.TemporaryFile() as stdin:
        # A file, not a pipe: a child that doesn't read can't block the parent.
        stdin.write(json.dumps(job).encode())
        stdin.seek(0)
        child = subprocess.Popen(
            [*network_namespace(), sys.executable, "-I", "-S", str(CHILD)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            output, error = _read(child, limits)
        finally:
            # Before the wait, while the number of the group can't have been given to another.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            if child.stdout is not None:
                child.stdout.close()
            child.wait()
    return Outcome(error=error) if error else _report(output, len(calls))


@cache
def network_namespace() -> tuple[str, ...]:
    """The command that runs another without a network; empty where this system has none that works."""
    program = shutil.which("unshare")
    if program is None:
        return ()
    for how in ((program, "--net"), (program, "--user", "--net")):
        done = subprocess.run([*how, sys.executable, "-I", "-S", "-c", ""], capture_output=True, env={}, check=False)
        if done.returncode == 0:
            return how
    return ()


def _read(child: subprocess.Popen[bytes], limits: Limits) -> tuple[bytes, str | None]:
    """What the child writes until it closes its output, and which limit it hit."""
    if child.stdout is None:
        return b"", "no output pipe"
    output, deadline, pipe = b"", time.monotonic() + limits.wall_seconds, child.stdout.fileno()
    while (left := deadline - time.monotonic()) > 0:
        if select.select([pipe], [], [], left)[0]:
            chunk = os.read(pipe, 2**16)
            if not chunk:
                return output, None
            output += chunk
            if len(output) > limits.output_bytes:
                return b"", f"more than {limits.output_bytes} bytes of output"
    return b"", f"not finished after {limits.wall_seconds:g} seconds"


def _report(output: bytes, calls: int) -> Outcome:
    """Reads the child's report; a program that got at the pipe may have written anything."""
    try:
        report = json.loads(output)
    except (ValueError, RecursionError):
        return Outcome(error="ended without a report")
    if not isinstance(report, dict):
        return Outcome(error="ended without a report")
    values = report.get("values")
    if isinstance(values, list) and len(values) == calls:
        return Outcome(values=values)
    return Outcome(error=str(report.get("error", "ended without a report")))
