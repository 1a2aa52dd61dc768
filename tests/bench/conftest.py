"""What the tests of the benchmarks share."""

from __future__ import annotations

import pytest
from tests.tiny import tiny_config

from redraft.model.config import ModelConfig


@pytest.fixture(scope="session")
def tiny() -> ModelConfig:
    """The benchmark's model with everything small."""
    return tiny_config(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=3,
        max_position_embeddings=16384,
        block_length=32,
        eos_token_id=None,
        pad_token_id=None,
    )
