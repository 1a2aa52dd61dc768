"""The kernel under the address and undefined-behaviour sanitizers, on memory that ends at a page without rights."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from redraft.kernels.cpu import build
from redraft.kernels.cpu.levels import Level, supported

DRIVER = Path(__file__).with_name("driver.cpp")
SANITIZE = "-O1 -g -std=c++17 -pthread -fsanitize=address,undefined -fno-sanitize-recover=all".split()
MINUTES = 20


@pytest.mark.slow
@pytest.mark.parametrize("level", supported(), ids=lambda level: level.name)
def test_no_access_out_of_bounds_and_nothing_undefined(level: Level, tmp_path: Path) -> None:
    try:
        compiler = build.compiler()
    except build.BuildError as error:
        pytest.skip(str(error))
    flags = [flag for flag in build.FLAGS if flag not in ("-O3", "-shared")]
    program = tmp_path / "driver"
    files = [str(build.SOURCES / "kernel.cpp"), str(DRIVER), "-I", str(build.SOURCES), "-o", str(program)]
    made = subprocess.run(
        [compiler, *flags, *SANITIZE, *level.flags, *files], capture_output=True, text=True, timeout=MINUTES * 60
    )
    if made.returncode and "sanitize" in made.stderr:
        pytest.skip("this compiler has no sanitizers")
    assert made.returncode == 0, made.stderr
    done = subprocess.run(
        [str(program)], capture_output=True, text=True, timeout=MINUTES * 60, env={**os.environ, "ASAN_OPTIONS": ""}
    )
    assert done.returncode == 0 and done.stdout == "all done\n", f"{done.returncode} {done.stdout}{done.stderr}"
