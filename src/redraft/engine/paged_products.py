"""Attention over pages by scaled_dot_product_attention, a strip of one sequence at a time.

A product of one block with its sequence costs far more than its call, so sequences are not put together: that would
copy all of their keys for little. Keys and values are copied only where the pages don't lie one after another.

Shapes: T rows of the batch, S positions of one sequence, W rows of a strip, P positions of a page, L block length,
H query heads, G key-value heads, D head width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.engine.batch import Batch
from redraft.engine.storage import PageStorage
from redraft.model.attention import Attend, attention, block_causal_mask

# Blocks shorter than this attend in strips of about this many positions under a small mask.
STRIP = 32


@dataclass(frozen=True, slots=True)
class Strip:
    """The rows low..high of the batch attend to the first `seen` keys of their span. mask: bool [W, seen], or None when
    they see all of them."""

    low: int
    high: int
    seen: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Reading:
    """One span. Its keys are `held` positions of the pages and, behind them, the rows `own` of the batch (merged).

    pages: the first page where they lie one after another, else all of them: int64 [n].
    """

    pages: int | Tensor
    held: int
    own: slice | None
    strips: tuple[Strip, ...]


class ProductAttention:
    """Runs on any device. Never holds a mask of more than STRIP rows, or L if that is more."""

    def __init__(self, storage: PageStorage) -> None:
        self._storage = storage

    def prepare(self, batch: Batch) -> Attend:
        return Products(self._storage, readings(batch, range(len(batch.spans))))


@dataclass(frozen=True, slots=True)
class Products:
    """The attention of one forward: an `Attend`."""

    storage: PageStorage
    readings: tuple[Reading, ...]

    def __call__(self, layer: int, q_BTHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor) -> Tensor:
        out_BTHD = torch.empty_like(q_BTHD)
        self.fill(out_BTHD, layer, q_BTHD, k_BTGD, v_BTGD)
        return out_BTHD

    def fill(self, out_BTHD: Tensor, layer: int, q_BTHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor) -> None:
        """Writes the rows of the readings and leaves the others."""
        for reading in self.readings:
            keys, values = self.storage.read(layer, reading.pages, reading.held)
            if reading.own is not None:
                keys, values = torch.cat((keys, k_BTGD[0, reading.own])), torch.cat((values, v_BTGD[0, reading.own]))
            for strip in reading.strips:
                q_BWHD = q_BTHD[:, strip.low : strip.high]
                k_BSGD, v_BSGD = keys[None, : strip.seen], values[None, : strip.seen]
                out_BTHD[:, strip.low : strip.high] = (
                    full_attention(q_BWHD, k_BSGD, v_BSGD)
                    if strip.mask is None
                    else attention(q_BWHD, k_BSGD, v_BSGD, strip.mask)
                )


def full_attention(q_BWHD: Tensor, k_BSGD: Tensor, v_BSGD: Tensor) -> Tensor:
    """`attention` without a mask. The query heads of one key-value head stand below each other as rows of one product,
    which reads its keys once: on a CPU the kernel would prepare them again for every query head."""
    groups, width = k_BSGD.shape[2], q_BWHD.shape[1]
    q_BGND = q_BWHD.unflatten(2, (groups, -1)).transpose(1, 2).flatten(2, 3)  # N: W rows, each with its heads
    out_BGND = F.scaled_dot_product_attention(q_BGND, k_BSGD.transpose(1, 2), v_BSGD.transpose(1, 2))
    return out_BGND.unflatten(2, (width, -1)).transpose(1, 2).flatten(2, 3)


def readings(batch: Batch, chosen: Iterable[int]) -> tuple[Reading, ...]:
    """How the chosen spans (places in the batch) are read."""
    block, device = batch.block_length, batch.tokens.device
    width = block * max(1, STRIP // block)
    chosen = tuple(chosen)
    longest = max((batch.spans[i].held for i in chosen), default=0)
    mask = _strip_mask(longest, width, block, device) if width > block else None
    out = []
    for i in chosen:
        span, first = batch.spans[i], batch.first[i]
        stop = first + len(span.tokens)
        if span.merged:
            own, strips = slice(first, stop), (Strip(first, stop, span.stop, None),)
        else:
            own, strips = None, tuple(_strips(first, stop, span.start, width, block, mask))
        out.append(Reading(_pages(batch.pages[i], device), span.held, own, strips))
    return tuple(out)


def _pages(pages_n: np.ndarray, device: torch.device) -> int | Tensor:
    if not len(pages_n) or (np.diff(pages_n) == 1).all():
        return int(pages_n[0]) if len(pages_n) else 0
    return torch.from_numpy(pages_n).to(device)


def _strips(first: int, stop: int, start: int, width: int, block: int, mask: Tensor | None) -> Iterable[Strip]:
    """The strips of the rows first..stop, whose first position is `start`."""
    for low in range(first, stop, width):
        high = min(low + width, stop)
        before = start + low - first
        seen = before + high - low
        # A single block sees all of its prefix and itself.
        if mask is None or high - low <= block:
            yield Strip(low, high, seen, None)
        else:
            left = mask.shape[1] - width - before
            yield Strip(low, high, seen, mask[: high - low, left : left + seen])


def _strip_mask(longest: int, width: int, block: int, device: torch.device) -> Tensor:
    """bool [width, longest + width]: a strip behind `longest` positions. One mask for all: that of a strip behind fewer
    is cut from it, since every strip begins at a block's border."""
    keys = torch.arange(-(-longest // block) * block + width, device=device)
    return block_causal_mask(keys[-width:], keys, block)
