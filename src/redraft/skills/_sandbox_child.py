"""The child side of `sandbox.py`: locks itself in, runs one foreign program, reports what its function returned.

Started as a script by `python -I -S`, so it must not import anything of Redraft. Reads one JSON job from standard
input and writes one JSON report to standard output. It never learns which values are expected, so a program that
forges the report gains nothing.
"""

# The modules that short programs like to use are loaded before the doors close: afterwards the standard library
# may be out of the reach of the unprivileged user.
import collections  # noqa: F401
import functools  # noqa: F401
import importlib
import itertools  # noqa: F401
import json
import math  # noqa: F401
import operator  # noqa: F401
import os
import re  # noqa: F401
import resource
import string  # noqa: F401
import sys
from typing import Any

NOBODY = 65534
DENIED = (
    "_thread.start_new_thread", "ctypes.", "fcntl.", "ftplib.", "http.", "mmap.", "os.chmod", "os.chown", "os.exec",
    "os.fork", "os.kill", "os.link", "os.mkdir", "os.posix_spawn", "os.remove", "os.rename", "os.rmdir", "os.setxattr",
    "os.spawn", "os.symlink", "os.system", "os.truncate", "os.utime", "pty.", "resource.", "shutil.", "signal.",
    "socket.", "subprocess.", "urllib.",
)  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC


def deny(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook (it can't be removed): no processes, threads, sockets, signals or written files.

    Defence in depth beside the limits, since the kernel does not hold the superuser to RLIMIT_NPROC.
    """
    if event.startswith(DENIED) or (event == "open" and arguments[2] & WRITING):
        raise PermissionError(f"{event} is not allowed in the sandbox")


def lock_in(limits: dict[str, int]) -> None:
    for kind, value in (
        (resource.RLIMIT_CPU, limits["cpu_seconds"]),
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    if os.geteuid() == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        except OSError:
            # A container may not map that user. What remains is the hook, the other limits and the process group.
            pass
    sys.addaudithook(deny)


def run(job: dict[str, Any]) -> dict[str, Any]:
    try:
        namespace: dict[str, Any] = {"__name__": "answer"}
        exec(compile(job["source"], "answer", "exec"), namespace)
        function = namespace[job["function"]]
        return {"values": [function(*arguments) for arguments in job["calls"]]}
    except BaseException as error:  # noqa: BLE001 - SystemExit too: whatever the program raised is its report
        return {"error": f"{type(error).__name__}: {error}"[:200]}


def main() -> None:
    job = json.loads(sys.stdin.buffer.read())
    report = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    for module in job["modules"]:
        importlib.import_module(module)
    lock_in(job["limits"])
    outcome = run(job)
    try:
        text = json.dumps(outcome, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        text = json.dumps({"error": f"{type(error).__name__}: {error}"[:200]})
    os.write(report, text.encode())


if __name__ == "__main__":
    main()
