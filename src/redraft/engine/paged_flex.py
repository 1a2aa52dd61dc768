"""Attention over pages by FlexAttention: the whole storage is one sequence of keys, of which every tile of queries
reads its own sequence's pages (after "PagedAttention", arXiv 2309.06180, and torch's FlexAttention, arXiv 2412.05496).

Shapes: T rows of the batch, Q rows in tiles of 32, U written rows, N pages of P positions, t tiles, n pages of a tile,
s spans, H query heads, G key-value heads, D head width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from redraft.engine.batch import Batch
from redraft.engine.paged_products import Products, readings
from redraft.engine.storage import PageStorage
from redraft.model.attention import Attend

TILE = 32  # queries of one tile, all of one span: what a block of 32 fills
_LEAST = 16  # the smallest side of a GPU's matrix product


class FlexAttention:
    """For GPUs. Merged spans, which no page holds, go through products instead; they are few.

    The kernel weighs the unseen positions of a page by zero, and zero times NaN is NaN; so what lies behind a sequence
    in its last page is cleared before the forward. Pages that a tile doesn't see are never read. With blocks shorter
    than a tile, NaN of a block reaches the earlier blocks of its sequence that stand in the same tile.
    """

    def __init__(self, storage: PageStorage) -> None:
        self._storage = storage

    @staticmethod
    def fits(storage: PageStorage) -> bool:
        return storage.page_length % _LEAST == 0

    def prepare(self, batch: Batch) -> Attend:
        merged = readings(batch, (i for i, span in enumerate(batch.spans) if span.merged))
        products = Products(self._storage, merged, batch.block_length) if merged else None
        if len(merged) == len(batch.spans):
            return Products(self._storage, merged, batch.block_length)
        device, length = self._storage.data.device, self._storage.page_length
        self._storage.clear(torch.from_numpy(_behind(batch)).to(device))
        tiling = Tiling.of(batch)
        mask = tiling.block_mask(batch, self._storage.count, length, device)
        source, place = (torch.from_numpy(x).to(device) for x in (tiling.source_Q, tiling.place_U))
        return _Tiles(self._storage, mask, source, place, batch.written, products)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The attention of one forward: an `Attend`. source_Q: the row that stands in each place of the tiles; place_U: the
    place of each written row; written_U: those rows, None for all of them."""

    storage: PageStorage
    mask: BlockMask
    source_Q: Tensor
    place_U: Tensor
    written_U: Tensor | None
    products: Products | None

    def __call__(self, layer: int, q_BTHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor) -> Tensor:
        q_BHQD = q_BTHD.index_select(1, self.source_Q).transpose(1, 2)
        keys, values = (x[None].transpose(1, 2) for x in self.storage.whole(layer))
        out_BHQD = _flex(q_BHQD, keys, values, self.mask, self.storage.page_length)
        out_BUHD = out_BHQD.transpose(1, 2).index_select(1, self.place_U)
        if self.written_U is None or self.products is None:
            return out_BUHD
        out_BTHD = torch.empty_like(q_BTHD).index_copy_(1, self.written_U, out_BUHD)
        self.products.fill(out_BTHD, layer, q_BTHD, k_BTGD, v_BTGD)
        return out_BTHD


@dataclass(frozen=True, slots=True)
class Tiling:
    """The rows of all spans that aren't merged, in tiles of one span each, the last row repeated to fill a tile.

    source_Q: the row of the batch in each place. place_U: the place of each written row. span_Q: the span of each place
    (place in the batch). limit_Q: how many positions of its sequence it sees. All int64.
    """

    source_Q: np.ndarray
    place_U: np.ndarray
    span_Q: np.ndarray
    limit_Q: np.ndarray

    @classmethod
    def of(cls, batch: Batch) -> Tiling:
        sources, places, spans, limits, filled = [], [], [], [], 0
        for i, span in enumerate(batch.spans):
            if span.merged:
                continue
            count = len(span.tokens)
            places.append(filled + np.arange(count))
            inside = np.minimum(np.arange(-(-count // TILE) * TILE), count - 1)
            sources.append(batch.first[i] + inside)
            spans.append(np.full(len(inside), i))
            limits.append(((span.start + inside) // batch.block_length + 1) * batch.block_length)
            filled += len(inside)
        return cls(*(np.concatenate(x) for x in (sources, places, spans, limits)))

    def tables(self, batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(number [t], pages [t, n]) of the pages that a tile sees in part, then of those it sees whole. int32; what
        stands behind a tile's number are pages all the same, of no meaning."""
        limit_tR = self.limit_Q.reshape(-1, TILE)
        whole_t = limit_tR[:, 0] // batch.page_length
        part_t = -(-limit_tR[:, -1] // batch.page_length) - whole_t
        span_t = self.span_Q[::TILE]
        whole_tn, part_tn = (np.zeros((len(span_t), _width(number_t)), np.int32) for number_t in (whole_t, part_t))
        for i in np.unique(span_t):
            pages, tiles = batch.pages[i], span_t == i
            count = min(len(pages), whole_tn.shape[1])
            whole_tn[tiles, :count] = pages[:count]
            places = whole_t[tiles][:, None] + np.arange(part_tn.shape[1])
            part_tn[tiles] = pages[np.minimum(places, len(pages) - 1)]
        return part_t.astype(np.int32), part_tn, whole_t.astype(np.int32), whole_tn

    def block_mask(self, batch: Batch, count: int, page_length: int, device: torch.device) -> BlockMask:
        """Over the keys of all `count` pages. Only pages that a tile sees in part are masked by position."""
        part_t, part_tn, whole_t, whole_tn = (torch.from_numpy(x).to(device)[None, None] for x in self.tables(batch))
        span_Q, limit_Q = (torch.from_numpy(x).to(device) for x in (self.span_Q, self.limit_Q))
        number_sN = _numbers(batch, count, device)

        def sees(_b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            number = number_sN[span_Q[q], k // page_length]
            return (number >= 0) & (number * page_length + k % page_length < limit_Q[q])

        return BlockMask.from_kv_blocks(
            part_t,
            part_tn,
            whole_t,
            whole_tn,
            BLOCK_SIZE=(TILE, page_length),
            mask_mod=sees,
            seq_lengths=(len(self.source_Q), count * page_length),
            compute_q_blocks=False,  # for the backward alone
        )


def _width(number_t: np.ndarray) -> int:
    """A power of two, at least 2: few different shapes, so that few kernels are compiled."""
    return 1 << max(1, (int(number_t.max()) - 1).bit_length())


def _numbers(batch: Batch, count: int, device: torch.device) -> Tensor:
    """int32 [s, N]: which page of the span's sequence a page is, -1 for none."""
    out = torch.full((len(batch.spans), count), -1, dtype=torch.int32, device=device)
    spans = np.repeat(np.arange(len(batch.spans)), [len(pages) for pages in batch.pages])
    numbers = np.concatenate([np.arange(len(pages)) for pages in batch.pages])
    index = torch.from_numpy(np.stack((spans, np.concatenate(batch.pages), numbers))).to(device)
    out[index[0], index[1]] = index[2].to(torch.int32)
    return out


def _behind(batch: Batch) -> np.ndarray:
    """Slots behind the end of every written span in its last page: int64."""
    length, out = batch.page_length, [np.empty(0, dtype=np.int64)]
    for span, pages in zip(batch.spans, batch.pages, strict=True):
        if not span.merged and span.stop % length:
            out.append(pages[-1] * length + np.arange(span.stop % length, length))
    return np.concatenate(out)


def _flex(q_BHQD: Tensor, k_BGSD: Tensor, v_BGSD: Tensor, mask: BlockMask, page_length: int) -> Tensor:
    """FlexAttention, compiled once a process where there is a kernel to compile."""
    if not q_BHQD.is_cuda:
        return flex_attention(q_BHQD, k_BGSD, v_BGSD, block_mask=mask, enable_gqa=True)  # type: ignore[return-value]
    if not _COMPILED:
        _COMPILED.append(torch.compile(flex_attention, dynamic=True))
    # The largest power of two that divides the page. The decoding kernel of short inputs knows one tile only.
    tiles = {"BLOCK_M": TILE, "BLOCK_N": min(page_length & -page_length, 128), "FORCE_USE_FLEX_ATTENTION": True}
    return _COMPILED[0](q_BHQD, k_BGSD, v_BGSD, block_mask=mask, enable_gqa=True, kernel_options=tiles)


_COMPILED: list[Callable[..., Tensor]] = []
