"""The C library's heap, set so that a forward finds the memory that the one before it has freed.

glibc hands what is freed at the end of its heap back to the system, and takes it again, a zeroed page after the other,
for the next tensor. The activations and logits of a large batch come and go many times a forward (docs/log.md says what
that cost). The price is that up to KEPT bytes more stay with the process.
"""

from __future__ import annotations

import ctypes

# Parameters of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3

KEPT = 256 << 20  # bytes that lie free at the end of the heap before any are handed back
LARGEST = 64 << 20  # bytes of a tensor that comes from the heap; larger ones are the system's, and go back to it


def keep_freed_memory() -> bool:
    """For this whole process, from now on; whether the C library lets itself be told."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # not glibc
        return False
    return bool(mallopt(_MMAP_THRESHOLD, LARGEST) and mallopt(_TRIM_THRESHOLD, KEPT))
