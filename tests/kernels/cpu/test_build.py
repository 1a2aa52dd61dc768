"""Building the CPU kernel: once for each source and compiler, by many processes at once, and what happens without."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from redraft.errors import ConfigError
from redraft.kernels import dispatch, moe
from redraft.kernels.cpu import build, levels, library
from redraft.kernels.cpu.levels import AMX, AVX2, AVX512, LEVELS

COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo fake 1; exit 0; fi
echo run >> {count}
sleep 0.3
while [ "$1" != -o ]; do shift; done
echo library > "$2"
"""


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache folder of the test's own, and no kernel remembered from before or kept for later."""
    monkeypatch.setenv("REDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(levels.VARIABLE, raising=False)
    library.library.cache_clear()
    yield
    library.library.cache_clear()


def fake_compiler(path: Path, count: Path, text: str = COMPILER) -> str:
    path.write_text(text.format(count=count))
    path.chmod(0o755)
    return str(path)


def runs(count: Path) -> int:
    return len(count.read_text().splitlines()) if count.exists() else 0


def test_many_processes_build_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = tmp_path / "count"
    monkeypatch.setenv("CXX", fake_compiler(tmp_path / "cxx", count))
    code = "from redraft.kernels.cpu.build import build; print(build(['-mavx2']))"
    command = [sys.executable, "-c", code]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate(timeout=600)[0].strip() for process in started}
    assert len(paths) == 1 and runs(count) == 1
    assert Path(paths.pop()).read_text() == "library\n"
    assert not list((tmp_path / "cache" / "kernels").glob("building-*"))


def test_another_flag_source_or_compiler_is_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = tmp_path / "count"
    monkeypatch.setenv("CXX", fake_compiler(tmp_path / "cxx", count))
    first = build.build(["-mavx2"])
    assert build.build(["-mavx2"]) == first and runs(count) == 1
    assert build.build(["-mfma"]) != first and runs(count) == 2
    changed = tmp_path / "sources"
    changed.mkdir()
    for path in build.sources():
        (changed / path.name).write_bytes(path.read_bytes() + b"\n")
    with monkeypatch.context() as patch:
        patch.setattr(build, "SOURCES", changed)
        assert build.build(["-mavx2"]) != first
    monkeypatch.setenv("CXX", fake_compiler(tmp_path / "cxx", count, COMPILER.replace("fake 1", "fake 2")))
    assert build.build(["-mavx2"]) != first and runs(count) == 4


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(build.BuildError, match="writable by nobody else"):
        build.build(["-mavx2"])


def test_a_folder_that_can_not_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REDRAFT_CACHE", str(tmp_path / "file"))
    with pytest.raises(build.BuildError, match="can't be built"):
        build.build(["-mavx2"])


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert build.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("REDRAFT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert build.cache_folder() == Path("/somewhere/redraft")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert build.cache_folder() == Path.home() / ".cache" / "redraft"


needs_level = pytest.mark.skipif(not levels.supported(), reason="this processor has no level of the kernel")


@needs_level
def test_without_a_compiler_torch_computes_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with torch.inference_mode():
                out = moe.routed_experts(*arguments())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no-such-compiler" in caplog.text and "torch computes instead" in caplog.text
    torch.testing.assert_close(out, moe.routed_experts_reference(*arguments()))
    assert set(dispatch.table().values()) == {"torch"}


@needs_level
def test_a_compiler_that_fails_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = '#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "kernel.cpp:1: error: no such thing" >&2; exit 1\n'
    monkeypatch.setenv("CXX", fake_compiler(tmp_path / "cxx", tmp_path / "count", broken))
    assert library.library() is None
    assert "error: no such thing" in caplog.text and len(caplog.records) == 1


@needs_level
def test_a_library_that_is_none_is_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", fake_compiler(tmp_path / "cxx", tmp_path / "count"))
    assert library.library() is None
    assert "can't be loaded" in caplog.text


def test_off_means_off(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(levels.VARIABLE, "off")
    assert library.library() is None and not caplog.records


def arguments() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    ids = torch.randint(0, 4, (6, 2))
    return torch.randn(6, 16), ids, torch.rand(6, 2), torch.randn(4, 16, 16), torch.randn(4, 16, 8)


def cpuinfo(path: Path, features: str) -> Path:
    path.write_text(f"processor\t: 0\nmodel name\t: one\nflags\t\t: fpu {features} sse\n\nprocessor\t: 1\n")
    return path


@pytest.mark.skipif(levels.platform.machine() != "x86_64", reason="levels are of x86-64")
def test_levels_are_those_of_the_processor(tmp_path: Path) -> None:
    avx512 = "avx2 fma avx512f avx512bw avx512dq avx512vl"
    known = {
        "": [],
        "avx2": [],  # without fma
        "avx2 fma": ["avx2"],
        "avx2 fma avx512f": ["avx2"],  # the first processors with AVX-512
        avx512: ["avx512", "avx2"],
        f"{avx512} avx512_bf16 avx512_vnni": ["avx512_bf16", "avx512", "avx2"],
        " ".join(AMX.features): ["amx", "avx512_bf16", "avx512", "avx2"],
    }
    for number, (features, names) in enumerate(known.items()):
        found = levels.supported(cpuinfo(tmp_path / str(number), features))
        assert [level.name for level in found] == names, features
    assert levels.supported(tmp_path / "not there") == ()


def test_flags_are_the_compilers_names() -> None:
    assert AVX2.flags == ("-mavx2", "-mfma")
    assert {"-mavx512bf16", "-mamx-tile", "-mavx512vl", "-mavx2"} <= set(AMX.flags)


def test_a_level_may_be_forced_down_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "supported", lambda: (AVX512, AVX2))
    assert levels.wanted() == (AVX512, AVX2)
    for asked, found in {"avx2": (AVX2,), "off": (), "avx512": (AVX512, AVX2)}.items():
        monkeypatch.setenv(levels.VARIABLE, asked)
        assert levels.wanted() == found
    for asked in ("amx", "sse"):
        monkeypatch.setenv(levels.VARIABLE, asked)
        with pytest.raises(ConfigError, match="must be one of off, avx512, avx2"):
            levels.wanted()
    assert [level.name for level in LEVELS] == ["amx", "avx512_bf16", "avx512", "avx2"]
