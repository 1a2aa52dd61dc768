"""What has been freed is found again, without the system's zeroed pages."""

from __future__ import annotations

import ctypes
import platform
import resource
from types import SimpleNamespace

import pytest
import torch

from redraft.engine import heap

PAGE = resource.getpagesize()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_a_tensor_takes_no_new_pages_once_enough_have_been_freed() -> None:
    """Alignment leaves a hole behind the first few; what is kept is the sum of them."""
    assert heap.keep_freed_memory()
    size = 48 << 20  # more than glibc would keep by itself, less than LARGEST
    faults = []
    for _ in range(4 * heap.KEPT // size):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.empty(size, dtype=torch.uint8).fill_(1)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    later = faults[len(faults) // 2 :]
    assert sum(later) < len(later) * size / PAGE / 10


@pytest.mark.parametrize("library", [SimpleNamespace(), SimpleNamespace(mallopt=lambda name, value: 0)])
def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch, library: object) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert not heap.keep_freed_memory()
