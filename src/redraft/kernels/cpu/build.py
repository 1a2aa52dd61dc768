"""Building the CPU kernel with the system's C++ compiler, once for each source, compiler and set of flags.

The library is built aside and renamed into a folder of the user's own, under a lock, so that processes that start at
the same time build it once and none ever sees half of it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from redraft.errors import RedraftError

SOURCES = Path(__file__).parent
FLAGS = (
    *"-O3 -std=c++17 -fPIC -shared -fvisibility=default".split(),
    "-ffp-contract=off",  # the same operations in every tile, so that a row's bits don't depend on its place
    *"-Wno-psabi -Wno-uninitialized -Wno-maybe-uninitialized".split(),  # the last two: gcc's own intrinsics
)
COMPILERS = ("g++", "c++", "clang++")
SECONDS = 600  # that a compiler may take on a busy machine


class BuildError(RedraftError, RuntimeError):
    """The kernel can't be built here."""


def cache_folder() -> Path:
    """REDRAFT_CACHE, else `redraft` in the user's cache folder."""
    if own := os.environ.get("REDRAFT_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "redraft"


def compiler() -> str:
    """The path of the first C++ compiler there is: CXX, or a usual name. BuildError without one."""
    own = os.environ.get("CXX")
    for name in (own,) if own else COMPILERS:
        if found := shutil.which(name):
            return found
    raise BuildError(f"no C++ compiler found ({own or ', '.join(COMPILERS)})")


def build(flags: Sequence[str]) -> Path:
    """The library for these machine flags, from the cache folder or made now. BuildError if that fails."""
    command = [compiler(), *FLAGS, *flags]
    try:
        folder = cache_folder() / "kernels"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _require_private(folder)
        library = folder / f"cpu-{_key(command)}.so"
        if library.exists():
            return library
        with (folder / f"{library.stem}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not library.exists():
                _compile(command, library)
    except OSError as error:
        raise BuildError(f"the kernel can't be built: {error}") from None
    return library


def sources() -> list[Path]:
    """The C++ files, in a fixed order."""
    return sorted(path for path in SOURCES.iterdir() if path.suffix in (".cpp", ".h"))


def _require_private(folder: Path) -> None:
    """What is loaded from here runs with the user's rights: nobody else may be able to put it there."""
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise BuildError(f"{folder} must belong to this user and be writable by nobody else; set REDRAFT_CACHE")


def _key(command: Sequence[str]) -> str:
    version = subprocess.run([command[0], "--version"], capture_output=True, text=True, timeout=SECONDS, check=False)
    digest = hashlib.sha256("\0".join([*command, version.stdout]).encode())
    for path in sources():
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:24]


def _compile(command: Sequence[str], library: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="building-", dir=library.parent) as aside:
        out = Path(aside) / library.name
        whole = [*command, str(SOURCES / "kernel.cpp"), "-o", str(out)]
        try:
            done = subprocess.run(whole, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise BuildError(f"{command[0]} took more than {SECONDS} seconds") from None
        if done.returncode:
            said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[-200:])
            raise BuildError(f"{command[0]} failed: {said}")
        os.replace(out, library)
