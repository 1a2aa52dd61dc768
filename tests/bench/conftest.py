"""The benchmarks are no part of the package; they are imported from the root of the repository."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from redraft.model.config import ModelConfig


@pytest.fixture(scope="session")
def tiny() -> ModelConfig:
    """The benchmark's model with everything small."""
    return ModelConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        moe_intermediate_size=16,
        num_experts=8,
        num_experts_per_tok=2,
        n_group=4,
        topk_group=2,
        block_length=32,
        mask_token_id=63,
        eos_token_id=None,
        pad_token_id=None,
        initializer_range=0.2,
    )
