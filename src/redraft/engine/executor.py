"""The forward of the batching engine: spans of many sequences in, hidden states of the wanted positions out.

Shapes: T rows of the batch, N wanted rows, C hidden, V vocabulary, H query heads, G key-value heads, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from redraft.engine.batch import Batch, Span
from redraft.engine.heap import keep_freed_memory
from redraft.engine.paged import PagedAttention, paged_attention
from redraft.engine.storage import PageStorage
from redraft.model.attention import Attend
from redraft.model.network import LLaDA2


class Executor:
    """Runs the network over ragged batches, on the pages of `storage`.

    attention: how rows attend to pages, by default what suits the storage's device. A row's result depends on its own
    sequence alone; its neighbours can change the rounding only.
    """

    def __init__(
        self, model: LLaDA2, storage: PageStorage, block_length: int, attention: PagedAttention | None = None
    ) -> None:
        self._model = model
        self._storage = storage
        self._block_length = block_length
        self._attention = attention or paged_attention(storage)
        if storage.data.device.type == "cpu":
            keep_freed_memory()

    @torch.inference_mode()
    def forward(self, spans: Sequence[Span]) -> Tensor:
        """Hidden states [N, C] of the wanted positions, in the order of the spans; one forward for all of them.

        Keys and values of every span that isn't merged are written to its pages, which the caller must have made sure
        are the sequence's own from the span's start on (`PagePool.require_writable`).
        """
        batch = Batch.of(spans, self._block_length, self._storage.page_length, self._storage.data.device)
        pools = batch.pools[None] if self._model.config.block_routing is not None else None
        attend = _Writing(self._storage, batch, self._attention.prepare(batch))
        hidden = self._model(batch.tokens[None], batch.positions[None], attend, pools)
        return hidden[0].index_select(0, batch.wanted)

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """Logits [N, V] of hidden states [N, C], in float32 (float64 in a float64 model)."""
        return self._model.head(hidden)


@dataclass(frozen=True, slots=True)
class _Writing:
    """An `Attend`: the keys and values of all written rows go to their pages before any row attends to them."""

    storage: PageStorage
    batch: Batch
    attend: Attend

    def __call__(self, layer: int, q_BTHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor) -> Tensor:
        k_TGD, v_TGD, written = k_BTGD[0], v_BTGD[0], self.batch.written
        if written is not None:
            k_TGD, v_TGD = k_TGD[written], v_TGD[written]
        self.storage.write(layer, self.batch.slots, k_TGD, v_TGD)
        return self.attend(layer, q_BTHD, k_BTGD, v_BTGD)
