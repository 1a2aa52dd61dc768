"""How many pages a pool gets: from a number of tokens, from a share of the free memory, or by default.

"Free" is what a process could still take once the model is loaded: of the GPU, or of the machine and the memory limits
that the process runs under.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from redraft.engine.pages import page_length
from redraft.engine.storage import page_bytes
from redraft.errors import InvalidInput
from redraft.model.config import ModelConfig

DEFAULT_SHARE = 0.5  # the rest is for activations, and for others
GIB = 2**30


def pool_pages(
    config: ModelConfig,
    block_length: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    max_running: int,
    tokens: int | None = None,
    memory_fraction: float | None = None,
) -> int:
    """Pages of the pool; call it after the model is loaded.

    tokens: positions that the pool holds, as the caller says; they may be fewer than the context. memory_fraction: of
    the free memory, more than 0 and at most 1. Neither: `max_running` sequences of the whole context, but at most half
    of the free memory. InvalidInput, with the figures, when `tokens` exceed the free memory or when in the other cases
    not even one sequence of the whole context fits.
    """
    length, size = page_length(block_length), page_bytes(config, block_length, dtype)
    free = free_memory(device)
    whole = -(-config.max_position_embeddings // length)
    if tokens is not None:
        return _of_tokens(tokens, length, size, free)
    if memory_fraction is None:
        pages, share, said = min(max_running * whole, int(free * DEFAULT_SHARE) // size), DEFAULT_SHARE, "half"
    else:
        if isinstance(memory_fraction, bool) or not 0 < memory_fraction <= 1:
            raise InvalidInput(f"memory_fraction must be more than 0 and at most 1, got {memory_fraction!r}")
        pages, share, said = int(free * memory_fraction) // size, memory_fraction, f"memory_fraction={memory_fraction}"
    if pages < whole:
        raise InvalidInput(
            f"one sequence of the context's {config.max_position_embeddings} tokens takes {whole * size / GIB:.2f} GiB "
            f"of keys and values, and {said} of the {free / GIB:.2f} GiB free on {device} is {free * share / GIB:.2f}; "
            f"{pages * length} tokens would fit: ask for a pool of that many"
        )
    return pages


def _of_tokens(tokens: int, length: int, size: int, free: int) -> int:
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise InvalidInput(f"the pool's tokens must be a positive integer, got {tokens!r}")
    pages = -(-tokens // length)
    if pages * size > free:
        raise InvalidInput(
            f"a pool of {tokens} tokens takes {pages * size / GIB:.2f} GiB of keys and values, and "
            f"{free / GIB:.2f} GiB are free; {free // size * length} tokens would fit"
        )
    return pages


def free_memory(device: torch.device) -> int:
    """Bytes that this process could still take on the device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What torch has freed but not given back is ours as well.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(0, min([available_memory(), *control_group_rooms()]))


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes of the machine's memory that a program could take without swapping; half of all where the system doesn't
    say."""
    try:
        fields = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def control_group_rooms(own: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Bytes left below each memory limit of this process's control group and of those above it (version 2): where the
    limit of a container stands. Empty where nothing limits."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    folders = [root / line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    rooms = (_room(folder) for own in folders for folder in (own, *own.parents) if folder.is_relative_to(root))
    return [room for room in rooms if room is not None]


def _room(group: Path) -> int | None:
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = int((group / "memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
    except OSError:
        return None
    # Cached files count as used, and give way.
    return None if limit == "max" else int(limit) - used + int(stat.get("inactive_file", 0))
