"""The size of the pool, and that it takes no memory before it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.tiny import tiny_config

from redraft.engine import memory
from redraft.engine.memory import available_memory, control_group_rooms, free_memory, pool_pages
from redraft.engine.storage import PageStorage, page_bytes
from redraft.errors import InvalidInput

CPU = torch.device("cpu")
CONTEXT = 512  # tokens: 16 pages of 32


def pages(config: Any = None, block: int = 32, **changes: Any) -> int:
    settings = {"device": CPU, "dtype": torch.float32, "max_running": 4}
    return pool_pages(config or tiny_config(max_position_embeddings=CONTEXT), block, **settings | changes)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the free memory, in pages of the tiny network."""
    size = page_bytes(tiny_config(), 32, torch.float32)
    return lambda count: monkeypatch.setattr(memory, "free_memory", lambda device: int(count * size))


def test_by_default_all_running_sequences_have_room_for_the_whole_context(free: Any) -> None:
    free(1000)
    assert pages() == 4 * 16
    assert pages(max_running=1) == 16
    assert pages(tiny_config(max_position_embeddings=CONTEXT + 1)) == 4 * 17


def test_by_default_at_most_half_of_the_free_memory_is_taken(free: Any) -> None:
    free(100)
    assert pages() == 50


def test_a_fraction_is_of_the_free_memory_and_may_exceed_all_contexts(free: Any) -> None:
    free(1000)
    assert pages(memory_fraction=0.25) == 250
    assert pages(memory_fraction=1.0) == 1000
    assert pages(memory_fraction=0.5, dtype=torch.bfloat16) == 1000


@pytest.mark.parametrize("tokens, expected", [(1, 1), (32, 1), (33, 2), (320, 10)])
def test_a_number_of_tokens_is_rounded_up_to_pages_and_may_be_less_than_the_context(
    free: Any, tokens: int, expected: int
) -> None:
    free(10)
    assert pages(tokens=tokens) == expected


def test_a_context_that_does_not_fit_is_refused_with_the_tokens_that_would(free: Any) -> None:
    config = tiny_config(max_position_embeddings=32 * 2**20)
    free(2**19)
    says = (
        r"one sequence of the context's 33554432 tokens takes 8\.00 GiB of keys and values, and {} of the 4\.00 GiB "
        r"free on cpu is {}; {} tokens would fit: ask for a pool of that many"
    )
    with pytest.raises(InvalidInput, match=says.format("half", r"2\.00", 2**23)):
        pages(config)
    with pytest.raises(InvalidInput, match=says.format(r"memory_fraction=0\.25", r"1\.00", 2**22)):
        pages(config, memory_fraction=0.25)
    assert pages(config, tokens=2**22) == 2**17


def test_tokens_that_exceed_the_free_memory_are_refused_with_those_that_fit(free: Any) -> None:
    free(10)
    with pytest.raises(InvalidInput, match=r"a pool of 321 tokens takes 0\.00 GiB .* 320 tokens would fit"):
        pages(tokens=321)


@pytest.mark.parametrize("tokens", [0, -5, True, 1.5])
def test_tokens_are_a_positive_integer(tokens: Any) -> None:
    with pytest.raises(InvalidInput, match="tokens must be a positive integer"):
        pages(tokens=tokens)


@pytest.mark.parametrize("fraction", [0, -0.1, 1.01, float("nan"), True])
def test_a_fraction_is_above_zero_and_at_most_one(fraction: Any) -> None:
    with pytest.raises(InvalidInput, match="memory_fraction must be more than 0 and at most 1"):
        pages(memory_fraction=fraction)


def test_the_free_memory_of_this_machine() -> None:
    total = psutil.virtual_memory().total
    assert 0 < free_memory(CPU) <= available_memory() < total


def test_available_memory_is_what_the_system_says_else_half_of_all(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       24000000 kB\nMemFree:         1000 kB\nMemAvailable:    20000000 kB\n")
    assert available_memory(meminfo) == 20_000_000 * 1024
    half = psutil.virtual_memory().total // 2
    meminfo.write_text("MemTotal:       24000000 kB\n")
    for path in (meminfo, tmp_path / "none"):
        assert available_memory(path) == pytest.approx(half, rel=0.05)


def test_limits_of_the_control_group_and_of_those_above_it_count(tmp_path: Path) -> None:
    own, root = tmp_path / "cgroup", tmp_path / "root"
    (root / "outer" / "inner").mkdir(parents=True)

    def limit(group: Path, most: str, used: int, cached: int) -> None:
        (group / "memory.max").write_text(f"{most}\n")
        (group / "memory.current").write_text(f"{used}\n")
        (group / "memory.stat").write_text(f"anon 3\ninactive_file {cached}\n")

    assert control_group_rooms(own, root) == []
    own.write_text("1:name=systemd:/\n0::/outer/inner\n")
    assert control_group_rooms(own, root) == []  # the root has no such files outside of a container
    limit(root / "outer" / "inner", "max", 10, 0)
    assert control_group_rooms(own, root) == []
    limit(root / "outer", "1000", 300, 50)
    assert control_group_rooms(own, root) == [750]
    own.write_text("0::/\n")
    limit(root, "2000", 500, 0)
    assert control_group_rooms(own, root) == [1500]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_pool_takes_no_memory_before_it_is_written(dtype: torch.dtype) -> None:
    config = tiny_config()
    process = psutil.Process()
    before = process.memory_info().rss
    count = 2**30 // page_bytes(config, 32, dtype)
    storage = PageStorage(config, count, 32, device=CPU, dtype=dtype)
    assert storage.data.nbytes >= 2**30 - 2**20
    storage.write(0, torch.arange(64), *torch.ones(2, 64, config.num_key_value_heads, config.head_dim, dtype=dtype))
    assert process.memory_info().rss - before < 2**24
    assert not storage.data[:, :, -1].any() and storage.data[0, :, :2].all()
