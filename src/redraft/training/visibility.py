"""Who sees whom in the vectorised forward (spec/training.md, "Vectorised block diffusion").

A clean position sees the clean blocks up to its own. A noisy one sees its own run of blocks (its own block, where
blocks aren't merged) and the clean blocks before that run. Nothing crosses a document, a span or a copy.

Shapes: S clean positions, M copies, N noisy positions of one copy, T = S + M * N; H query heads, G key-value heads,
D head width; Q queries and K keys of one product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from redraft.model.attention import Attend, attention
from redraft.training.layout import Document, Layout
from redraft.training.noise import Noisy

CHUNK = 512  # queries of a document in one product: bounds its mask, and skips keys that no query of it sees


def visibility(layout: Layout, noisy: Noisy) -> Attend:
    """The attention of a batch, by the means of its device: FlexAttention on a GPU, products per document elsewhere."""
    if layout.clean_S.device.type == "cuda":
        return FlexAttention(layout, noisy)
    return DocumentAttention(layout, noisy)


@dataclass(frozen=True)
class _Product:
    """One attention product inside a document. Queries are rows of its clean part (own None) or of each of its noisy
    copies; clean, own: the keys, from the clean part and from the same copy. All count from the document's own start.
    mask: bool [M or 1, 1, Q, K], None where all is visible."""

    queries: slice
    clean: slice
    own: slice
    mask: Tensor | None


class DocumentAttention:
    """Attention document by document, a chunk of queries at a time, with scaled_dot_product_attention.

    Documents are small next to a batch, so nothing is computed that a mask over the whole batch would throw away, and
    the largest mask is [M, CHUNK, document]."""

    def __init__(self, layout: Layout, noisy: Noisy, chunk: int = CHUNK):
        self.copies = layout.copies
        self.clean_sizes = [document.clean.stop - document.clean.start for document in layout.documents]
        self.noisy_sizes = [document.noisy.stop - document.noisy.start for document in layout.documents]
        self.products = [
            (_clean_products(layout, document, chunk), _noisy_products(layout, noisy, document, chunk))
            for document in layout.documents
        ]

    def __call__(self, layer: int, q_BTHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor) -> Tensor:
        clean, noisy = [], []
        # In the queries' dtype also under autocast: CPUs take several times longer for the backward in bfloat16.
        with torch.autocast(q_BTHD.device.type, enabled=False):
            queries, keys, values = (self._by_document(x.to(q_BTHD.dtype)) for x in (q_BTHD, k_BTGD, v_BTGD))
            for (of_clean, of_noisy), (qc, qn), (kc, kn), (vc, vn) in zip(
                self.products, queries, keys, values, strict=True
            ):
                for product in of_clean:
                    k, v = _rows(kc, product.clean), _rows(vc, product.clean)
                    clean.append(attention(_rows(qc, product.queries), k, v, product.mask))
                for product in of_noisy:
                    k, v = self._joined(kc, kn, product), self._joined(vc, vn, product)
                    noisy.append(attention(_rows(qn, product.queries), k, v, product.mask))
            out = torch.cat(noisy, dim=1).flatten(0, 1).unsqueeze(0)
            return torch.cat((*clean, out), dim=1)

    def _by_document(self, x_BTHD: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each document's clean part [1, s, ...] and noisy copies [M, n, ...] of [1, T, ...]. By splits, not slices:
        the gradient of a slice is as large as what it was cut from."""
        clean, noisy = x_BTHD.split((sum(self.clean_sizes), self.copies * sum(self.noisy_sizes)), dim=1)
        noisy = noisy[0].unflatten(0, (self.copies, -1))
        return zip(clean.split(self.clean_sizes, dim=1), noisy.split(self.noisy_sizes, dim=1), strict=True)

    def _joined(self, clean: Tensor, noisy: Tensor, product: _Product) -> Tensor:
        """Keys or values that a product of noisy queries reads."""
        own = _rows(noisy, product.own)
        if product.clean.stop == 0:
            return own
        return torch.cat((_rows(clean, product.clean).expand(self.copies, -1, -1, -1), own), dim=1)


def _rows(x_BTHD: Tensor, rows: slice) -> Tensor:
    return x_BTHD if (rows.start, rows.stop) == (0, x_BTHD.shape[1]) else x_BTHD[:, rows]


def _clean_products(layout: Layout, document: Document, chunk: int) -> list[_Product]:
    block_K = layout.clean_position_S[document.clean] // layout.block_length
    size = len(block_K)
    step = max(chunk // layout.block_length, 1) * layout.block_length
    out = []
    for first in range(0, size, step):
        last = min(first + step, size)
        mask = block_K[first:last].unsqueeze(1) >= block_K[:last]
        out.append(_Product(slice(first, last), slice(0, last), slice(0, 0), _masked(mask[None])))
    return out


def _noisy_products(layout: Layout, noisy: Noisy, document: Document, chunk: int) -> list[_Product]:
    run_MN = noisy.run_MN[:, document.noisy]
    size = run_MN.shape[1]
    starts = torch.unique_consecutive(layout.unit_N[document.noisy], return_counts=True)[1].cumsum(0)
    # Chunks end where a run of every copy ends, so that the keys of a chunk's own copy are the chunk itself.
    ends = [int(end) for end in starts if end == size or bool((run_MN[:, end] != run_MN[:, end - 1]).all())]
    out, first = [], 0
    for i, end in enumerate(ends):
        if i + 1 < len(ends) and ends[i + 1] - first <= chunk:
            continue
        run = run_MN[:, first:end]
        seen = layout.block_U[run] * layout.block_length  # clean positions before the run
        most = min(int(seen.max()), document.clean.stop - document.clean.start)
        clean = torch.arange(most, device=seen.device) < seen.unsqueeze(-1)
        own = run.unsqueeze(2) == run.unsqueeze(1)
        queries = slice(first, end)
        out.append(_Product(queries, slice(0, most), queries, _masked(torch.cat((clean, own), dim=2))))
        first = end
    return out


def _masked(mask_MQK: Tensor) -> Tensor | None:
    if bool(mask_MQK.all()):
        return None
    if mask_MQK.shape[0] > 1 and bool((mask_MQK == mask_MQK[:1]).all()):
        mask_MQK = mask_MQK[:1]
    return mask_MQK.unsqueeze(1)


def visible(layout: Layout, noisy: Noisy) -> Callable[[Tensor, Tensor], Tensor]:
    """`see(q, k)`: whether position q of T sees position k, elementwise over int64 tensors: the definition that every
    means of attention here implements."""
    length, copies, device = layout.block_length, layout.copies, layout.clean_S.device
    clean, width = layout.clean_S.numel(), layout.target_N.numel()
    copy_T = torch.cat((torch.zeros(clean, dtype=torch.int64), 1 + torch.arange(copies).repeat_interleave(width)))
    copy_T = copy_T.to(device)
    document_T = torch.cat((layout.document_S, layout.document_N.repeat(copies)))
    block_T = layout.positions_T // length
    run_T = torch.cat((torch.full((clean,), -1, device=device), noisy.run_MN.flatten()))
    before_T = torch.cat((block_T[:clean] + 1, layout.block_U[noisy.run_MN].flatten()))

    def see(q: Tensor, k: Tensor) -> Tensor:
        to_clean = (copy_T[k] == 0) & (block_T[k] < before_T[q])
        to_run = (copy_T[k] > 0) & (copy_T[k] == copy_T[q]) & (run_T[k] == run_T[q])
        return (document_T[q] == document_T[k]) & (to_clean | to_run)

    return see


class FlexAttention:
    """The same by torch's FlexAttention: a block mask made once a batch, and one compiled kernel for all layers."""

    def __init__(self, layout: Layout, noisy: Noisy):
        from torch.nn.attention.flex_attention import create_block_mask

        see, device = visible(layout, noisy), layout.clean_S.device
        self.mask = create_block_mask(
            lambda _b, _h, q, k: see(q, k), None, None, layout.positions, layout.positions, device=str(device)
        )

    def __call__(self, layer: int, q_BTHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q_BTHD, k_BTGD, v_BTGD))
        out = _flex(q.is_cuda)(q, k, v, block_mask=self.mask, enable_gqa=True)
        return out.transpose(1, 2)


def _flex(compiled: bool) -> Callable[..., Tensor]:
    """FlexAttention, compiled once a process where there is a kernel to compile."""
    from torch.nn.attention.flex_attention import flex_attention

    if not compiled:
        return flex_attention  # type: ignore[return-value]
    if not _COMPILED:
        _COMPILED.append(torch.compile(flex_attention, dynamic=True))
    return _COMPILED[0]


_COMPILED: list[Callable[..., Tensor]] = []
