"""The vectorised input `[x_0 ; x_t]`: one forward trains every block of every document (spec/training.md).

Documents lie one after another in one row without padding: first their clean blocks, then `copies` times their noisy
blocks. Only what a loss can reach is laid out: blocks without a supervised position get no noisy version, and clean
blocks that no noisy block sees are left out.

A *unit* is one noisy block. It belongs to one supervised span (one assistant turn): a block that holds the end of one
turn and the start of the next gives two units. Behind the end of its span a unit is filled with supervised EOS, as the
model will see it when it writes that turn, so that a later turn can't leak into it (LLaDA2.2 report, section 3.2).

Shapes: S clean positions, M noisy copies, N noisy positions of one copy, T = S + M * N, U units of one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from redraft.types import Sample


@dataclass(frozen=True)
class Document:
    """Where a document lies. index keys its noise; clean, noisy: its part of the S clean positions and of the N noisy
    ones; span_U: the supervised span that each of its units belongs to, block_U: its block in the document."""

    index: int
    clean: slice
    noisy: slice
    span_U: np.ndarray
    block_U: np.ndarray


@dataclass(frozen=True)
class Layout:
    """Documents laid out for one forward.

    clean_S, clean_position_S, target_N, noisy_position_N: int64, true tokens and their positions in the document.
    supervised_N: bool. unit_N: int64, the noisy block that a position lies in.
    """

    block_length: int
    copies: int
    documents: tuple[Document, ...]
    clean_S: Tensor
    clean_position_S: Tensor
    target_N: Tensor
    noisy_position_N: Tensor
    supervised_N: Tensor
    unit_N: Tensor

    @property
    def supervised_MN(self) -> Tensor:
        return self.supervised_N.expand(self.copies, -1)

    @property
    def target_MN(self) -> Tensor:
        return self.target_N.expand(self.copies, -1)

    @property
    def positions(self) -> int:
        """T, the positions of the forward."""
        return self.clean_S.numel() + self.copies * self.target_N.numel()

    @property
    def positions_T(self) -> Tensor:
        return torch.cat((self.clean_position_S, self.noisy_position_N.repeat(self.copies)))

    @cached_property
    def document_S(self) -> Tensor:
        """int64: the document of each clean position."""
        return _numbered([document.clean for document in self.documents]).to(self.clean_S.device)

    @cached_property
    def document_N(self) -> Tensor:
        """int64: the document of each noisy position of one copy."""
        return _numbered([document.noisy for document in self.documents]).to(self.clean_S.device)

    @cached_property
    def block_U(self) -> Tensor:
        """int64: the block that each unit is a version of."""
        return torch.from_numpy(np.concatenate([d.block_U for d in self.documents])).to(self.clean_S.device)

    @cached_property
    def pools_T(self) -> Tensor:
        """int64: the routing pool of each position, one for each block of each document and copy."""
        clean = torch.stack((self.document_S, self.clean_position_S // self.block_length))
        clean = torch.unique(clean, dim=1, return_inverse=True)[1] if clean.numel() else clean[0]
        units = int(self.unit_N.max()) + 1
        start = int(clean.max()) + 1 if clean.numel() else 0
        return torch.cat((clean, *(start + copy * units + self.unit_N for copy in range(self.copies))))

    def tokens_T(self, noisy_MN: Tensor) -> Tensor:
        """The network's input: the clean part, then every noisy copy."""
        return torch.cat((self.clean_S, noisy_MN.flatten()))

    def noisy_part(self, x_TC: Tensor) -> Tensor:
        """[M, N, C] of [T, C]."""
        return x_TC[self.clean_S.numel() :].unflatten(0, (self.copies, -1))

    def to(self, device: torch.device) -> Layout:
        """The layout on another device."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{k: v.to(device) for k, v in values.items() if isinstance(v, Tensor)})

    def select(self, documents: Sequence[int]) -> tuple[Layout, Tensor]:
        """The layout of some of the documents, and the noisy positions [N] that they take here."""
        chosen = [self.documents[i] for i in documents]
        clean_S = _indices([document.clean for document in chosen])
        noisy_N = _indices([document.noisy for document in chosen])
        layout = Layout(
            self.block_length,
            self.copies,
            _placed([(d.index, d.span_U, d.block_U, _size(d.clean), _size(d.noisy)) for d in chosen]),
            self.clean_S[clean_S],
            self.clean_position_S[clean_S],
            self.target_N[noisy_N],
            self.noisy_position_N[noisy_N],
            self.supervised_N[noisy_N],
            torch.unique_consecutive(self.unit_N[noisy_N], return_inverse=True)[1],
        )
        return layout, noisy_N


def lay_out(
    samples: Sequence[Sample], block_length: int, eos: Sequence[int], *, copies: int = 1, fill: int = 0
) -> Layout:
    """Lays out documents that each hold a supervised position.

    block_length: positions of a block; at a document's length or more the document is one block without a clean part:
    plain masked diffusion. eos: the ids that end a span; behind such an end the first of them fills the unit (a piece
    of a longer text doesn't end, and its last unit is cut off there). fill: units are filled up to a multiple of this
    at most, the model's block length where `block_length` is that of a curriculum; 0: up to the end of the block.
    """
    parts = [_units(sample, block_length, eos, fill or block_length) for sample in samples]
    placed = _placed(
        [
            (sample.index, units.span, units.block, units.block[-1] * block_length, len(units.target))
            for sample, units in zip(samples, parts, strict=True)
        ]
    )
    before = np.cumsum([0] + [len(units.block) for units in parts])
    clean = [sample.tokens[: _size(document.clean)] for sample, document in zip(samples, placed, strict=True)]
    return Layout(
        block_length,
        copies,
        placed,
        _joined(clean),
        _joined([np.arange(len(tokens)) for tokens in clean]),
        _joined([units.target for units in parts]),
        _joined([units.position for units in parts]),
        _joined([units.supervised for units in parts], bool),
        _joined([units.unit + first for units, first in zip(parts, before, strict=False)]),
    )


def spans(supervised: np.ndarray) -> np.ndarray:
    """[spans, 2]: start and end of each run of supervised positions."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], supervised, [False])).astype(np.int8)))
    return edges.reshape(-1, 2)


@dataclass(frozen=True)
class _Units:
    """The units of one document: target, position, supervised and unit of each noisy position, span and block of
    each unit."""

    target: np.ndarray
    position: np.ndarray
    supervised: np.ndarray
    unit: np.ndarray
    span: np.ndarray
    block: np.ndarray


def _units(sample: Sample, length: int, eos: Sequence[int], fill: int) -> _Units:
    position, target, supervised, span, blocks = [], [], [], [], []
    for number, (start, end) in enumerate(spans(sample.supervised)):
        filled = -(-end // fill) * fill if sample.tokens[end - 1] in eos else end
        for block in range(start // length, (end - 1) // length + 1):
            here = np.arange(block * length, min((block + 1) * length, max(filled, end)))
            true = np.full(len(here), eos[0], np.int64)
            true[here < end] = sample.tokens[here[here < end]]
            position.append(here)
            target.append(true)
            supervised.append(here >= start)
            span.append(number)
            blocks.append(block)
    unit = np.repeat(np.arange(len(blocks)), [len(here) for here in position])
    joined = (np.concatenate(target), np.concatenate(position), np.concatenate(supervised))
    return _Units(*joined, unit, np.array(span), np.array(blocks))


def _placed(parts: Sequence[tuple[int, np.ndarray, np.ndarray, int, int]]) -> tuple[Document, ...]:
    """Documents of (index, span_U, block_U, clean positions, noisy positions), one after another."""
    out, clean, noisy = [], 0, 0
    for index, span_U, block_U, clean_size, noisy_size in parts:
        here = slice(clean, clean + clean_size), slice(noisy, noisy + noisy_size)
        out.append(Document(index, *here, span_U, block_U))
        clean, noisy = clean + clean_size, noisy + noisy_size
    return tuple(out)


def _joined(arrays: Sequence[np.ndarray], kind: type = np.int64) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays).astype(kind))


def _indices(slices: Sequence[slice]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.arange(s.start, s.stop) for s in slices]))


def _numbered(slices: Sequence[slice]) -> Tensor:
    return torch.from_numpy(np.repeat(np.arange(len(slices)), [_size(s) for s in slices]))


def _size(part: slice) -> int:
    return part.stop - part.start
