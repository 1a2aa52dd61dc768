"""What a sequence has committed, read as a whole by every forward: slow, and so the definition of what is right.

L is the block length, C the hidden size, V the vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from redraft.model.attention import Attend, MaskedAttention, block_causal_mask
from redraft.model.network import LLaDA2


class UncachedContext:
    """The committed blocks of one sequence, from its first on. prefill_forwards: there are none."""

    def __init__(self, model: LLaDA2, block_length: int) -> None:
        self.prefill_forwards = 0
        self._model = model
        self._block_length = block_length
        self._committed = np.empty(0, dtype=np.int64)

    def commit(self, tokens: np.ndarray) -> None:
        """Appends finished blocks: int64 [n * L]."""
        self._committed = np.concatenate((self._committed, tokens))

    def rewrite(self, tokens: np.ndarray) -> None:
        """Puts other tokens in the place of the last blocks: int64 [n * L]."""
        self._committed = np.concatenate((self._committed[: -len(tokens)], tokens))

    def forward(self, tokens: np.ndarray) -> Tensor:
        """Hidden states [L, C] of the block that follows the committed ones: int64 [L]."""
        return self._read(self._committed, tokens)

    def forward_merged(self, tokens: np.ndarray) -> Tensor:
        """Hidden states [n * L, C] of int64 [n * L] in the place of the last committed blocks, which see each other as
        one block would (multi-block editing)."""
        return self._read(self._committed[: -len(tokens)], tokens)

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., C]."""
        return self._model.head(hidden)

    @torch.inference_mode()
    def _read(self, before: np.ndarray, last: np.ndarray) -> Tensor:
        whole, start = np.concatenate((before, last)), len(before)
        positions = torch.arange(len(whole), device=self._model.device)
        mask = block_causal_mask(positions, positions, self._block_length)
        mask[start:] = True
        return run(self._model, whole, 0, MaskedAttention(mask), self._block_length)[0, start:]


def run(model: LLaDA2, tokens: np.ndarray, start: int, attend: Attend, block_length: int) -> Tensor:
    """Hidden states [1, T, C] of the tokens int64 [T] at the positions from `start` on."""
    positions = torch.arange(start, start + len(tokens), device=model.device)[None]
    pools = positions // block_length if model.config.block_routing is not None else None
    return model(torch.from_numpy(tokens).to(model.device)[None], positions, attend, pools)
