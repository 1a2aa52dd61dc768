"""Sets of processor instructions that the CPU kernel can be built for, and which of them this machine has."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from redraft.errors import ConfigError

VARIABLE = "REDRAFT_KERNEL"
OFF = "off"
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Level:
    """name: as REDRAFT_KERNEL takes it. features: as /proc/cpuinfo names them, and flags: as the compiler does."""

    name: str
    features: frozenset[str]
    flags: tuple[str, ...]


def _level(name: str, features: str, below: Level | None = None) -> Level:
    own = features.split()
    flags = tuple(f"-m{feature.replace('_', '-' if feature.startswith('amx') else '')}" for feature in own)
    return Level(name, frozenset(own) | (below.features if below else set()), (*(below.flags if below else ()), *flags))


AVX2 = _level("avx2", "avx2 fma")
AVX512 = _level("avx512", "avx512f avx512bw avx512dq avx512vl", AVX2)
AVX512_BF16 = _level("avx512_bf16", "avx512_bf16 avx512_vnni", AVX512)
AMX = _level("amx", "amx_tile amx_bf16 amx_int8", AVX512_BF16)
LEVELS = (AMX, AVX512_BF16, AVX512, AVX2)  # the best first


@cache
def supported(cpuinfo: Path = CPUINFO) -> tuple[Level, ...]:
    """The levels that this processor has, the best first; none where it is not an x86-64 under Linux."""
    if platform.machine() != "x86_64" or not cpuinfo.exists():
        return ()
    flags: frozenset[str] = frozenset()
    for line in cpuinfo.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            flags = frozenset(value.split())
            break
    return tuple(level for level in LEVELS if level.features <= flags)


def wanted() -> tuple[Level, ...]:
    """The levels to try, the best first: what the processor has, from REDRAFT_KERNEL on where that is set; none if it
    is "off". ConfigError for another value, or a level that the processor lacks."""
    found, asked = supported(), os.environ.get(VARIABLE, "")
    if asked == OFF:
        return ()
    if not asked:
        return found
    names = [level.name for level in found]
    if asked not in names:
        raise ConfigError(f"{VARIABLE} must be one of {', '.join([OFF, *names])} on this processor, got {asked!r}")
    return found[names.index(asked) :]
