"""What one forward reads: spans of sequences, and the ragged batch made of them.

The batch is one row of all positions, span after span: nothing is padded to the longest sequence. A span is whole
blocks, so row t lies in block t // L of the batch.

Shapes: T rows of a span or of the batch, U rows that are written, N rows that are wanted, P positions of a page,
L block length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from redraft.errors import EngineError


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """What one forward reads of one sequence: whole blocks, at consecutive positions.

    tokens: int64 [T], T a positive multiple of L. start: position of the first token, a multiple of L; what stands
    before it lies in the pages. pages: the sequence's pages that hold the positions 0 .. start + T (0 .. start when
    merged; more do no harm). wanted: int64, places in this span (0 .. T-1, rising) whose hidden states come back;
    empty when the span is read for its keys and values alone. merged (multi-block editing): all positions of the span
    see each other, and nothing is written to the pages.
    """

    tokens: np.ndarray
    start: int
    pages: tuple[int, ...]
    wanted: np.ndarray
    merged: bool = False

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)

    @property
    def held(self) -> int:
        """Positions of the sequence that its pages hold once this span is read."""
        return self.start if self.merged else self.stop


@dataclass(frozen=True, eq=False)
class Batch:
    """The spans of one forward, and where everything lies; index tensors are int64, on the device of the forward.

    pages: int64 [n] of each span, those that hold its `held` positions and no more. first: the row of each span's first
    position. tokens, positions: [T]. written: [U], the rows whose keys and values go to `slots` [U] (page * P + place
    in it), which are those of the spans that aren't merged; None when that is all rows. wanted: [N], the rows whose
    hidden states come back.
    """

    spans: tuple[Span, ...]
    block_length: int
    page_length: int
    pages: tuple[np.ndarray, ...]
    first: tuple[int, ...]
    tokens: Tensor
    positions: Tensor
    written: Tensor | None
    slots: Tensor
    wanted: Tensor

    @classmethod
    def of(cls, spans: Sequence[Span], block_length: int, page_length: int, device: torch.device) -> Batch:
        """EngineError for a span that isn't whole blocks, whose pages don't hold it, or that wants what it hasn't."""
        if not spans:
            raise EngineError("a forward needs at least one span, got none")
        for span in spans:
            _check(span, block_length, page_length)
        pages = tuple(np.asarray(span.pages[: -(-span.held // page_length)], dtype=np.int64) for span in spans)
        first = tuple(accumulate((len(span.tokens) for span in spans[:-1]), initial=0))
        writing = [(span, own, low) for span, own, low in zip(spans, pages, first, strict=True) if not span.merged]
        parts = [
            np.concatenate([span.tokens for span in spans]),
            np.concatenate([np.arange(span.start, span.stop) for span in spans]),
            _joined([slots(own, span.start, span.stop, page_length) for span, own, _ in writing]),
            _joined([np.arange(low, low + len(span.tokens)) for span, _, low in writing]),
            _joined([low + span.wanted for span, low in zip(spans, first, strict=True)]),
        ]
        # One array, so that one copy carries everything to the device.
        moved = torch.from_numpy(np.concatenate(parts, dtype=np.int64)).to(device, non_blocking=True)
        tokens, positions, slots_U, written, wanted = moved.split([len(part) for part in parts])
        return cls(
            spans=tuple(spans),
            block_length=block_length,
            page_length=page_length,
            pages=pages,
            first=first,
            tokens=tokens,
            positions=positions,
            written=written if len(written) < len(tokens) else None,
            slots=slots_U,
            wanted=wanted,
        )

    @cached_property
    def pools(self) -> Tensor:
        """The routing pool of each row, int64 [T]: one for each block of each span."""
        return torch.arange(len(self.tokens), device=self.tokens.device) // self.block_length


def slots(pages: Sequence[int] | np.ndarray, start: int, stop: int, page_length: int) -> np.ndarray:
    """Where the positions start..stop of a sequence with these pages lie in the storage: int64 [T]."""
    page, place = np.divmod(np.arange(start, stop), page_length)
    return np.asarray(pages, dtype=np.int64)[page] * page_length + place


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _check(span: Span, block_length: int, page_length: int) -> None:
    count = len(span.tokens)
    if not count or count % block_length or span.start % block_length or span.start < 0:
        raise EngineError(
            f"a span must be whole blocks of {block_length}, got {count} tokens from position {span.start} on"
        )
    if len(span.pages) * page_length < span.held:
        raise EngineError(
            f"{span.held} positions need {-(-span.held // page_length)} pages of {page_length}, got {len(span.pages)}"
        )
    if len(span.wanted) and not 0 <= span.wanted[0] <= span.wanted[-1] < count:
        raise EngineError(
            f"wanted places must rise from 0 to {count - 1} at most, got {span.wanted[0]} .. {span.wanted[-1]}"
        )
