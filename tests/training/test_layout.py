"""The vectorised forward gives each noisy block the logits of a plain forward over (clean earlier blocks, it)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.tiny import tiny_model

from redraft.model.attention import MaskedAttention, block_causal_mask
from redraft.training.layout import VectorisedAttention, lay_out
from redraft.types import Sample

SIZES = {"vocab_size": 50, "num_hidden_layers": 3, "block_length": 4}
MODEL: dict[str, Any] = {"dtype": torch.float64, "wide": 0.3, **SIZES}


def document(rng: np.random.Generator, prompt: int, blocks: int, length: int, index: int) -> Sample:
    tokens = rng.integers(0, 50, blocks * length).astype(np.int32)
    return Sample(tokens, np.arange(blocks * length) >= prompt, index)


@pytest.mark.parametrize("block_routing", [None, 3])
@pytest.mark.parametrize("copies", [1, 2])
def test_vectorised_equals_sequential(block_routing: int | None, copies: int) -> None:
    model, length = tiny_model(**MODEL, block_routing=block_routing), 4
    rng = np.random.default_rng(1)
    samples = [
        document(rng, prompt, blocks, length, i) for i, (prompt, blocks) in enumerate([(0, 3), (5, 4), (9, 3), (8, 6)])
    ]
    layout = lay_out(samples, length, copies)
    noisy = torch.from_numpy(rng.integers(0, 50, (len(samples), copies, layout.target_BN.shape[1])))
    hidden = model(layout.tokens_BT(noisy), layout.positions_BT, VectorisedAttention(layout), layout.pools_BT)
    vectorised = model.head(layout.noisy_part(hidden))
    compared = 0
    for row, sample in enumerate(samples):
        first = int(layout.noisy_position_BN[row, 0]) // length
        for copy in range(copies):
            for block in range(first, len(sample.tokens) // length):
                here = slice((block - first) * length, (block - first + 1) * length)
                tokens = np.concatenate((sample.tokens[: block * length], noisy[row, copy, here]))
                positions = torch.arange(len(tokens))
                mask = block_causal_mask(positions, positions, length)
                plain = model(
                    torch.from_numpy(tokens).long()[None],
                    positions[None],
                    MaskedAttention(mask),
                    positions[None] // length,
                )
                torch.testing.assert_close(
                    vectorised[row, copy, here], model.head(plain)[0, -length:], rtol=0, atol=1e-10
                )
                compared += 1
    assert compared == copies * (3 + 3 + 1 + 4)


def test_only_what_a_loss_reaches_is_laid_out() -> None:
    rng = np.random.default_rng(0)
    layout = lay_out([document(rng, prompt=9, blocks=5, length=4, index=0)], 4)
    assert layout.clean_BS.shape[1] == 16 and layout.target_BN.shape[1] == 12
    assert layout.noisy_position_BN[0].tolist() == list(range(8, 20))
    assert layout.supervised_BN[0].tolist() == [False] + [True] * 11
