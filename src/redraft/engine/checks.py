"""What a request must be to be answered, said before anything is computed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from redraft.errors import ContextLengthError, InvalidInput
from redraft.model.config import ModelConfig
from redraft.types import SamplingParams


def require_answerable(
    name: str, prompt: Sequence[int], params: SamplingParams, config: ModelConfig, *, text: bool
) -> None:
    """name: of the prompt, in messages. text: whether there is a tokenizer."""
    if not len(prompt):
        raise InvalidInput(f"{name} is empty; it must hold at least one token, got {prompt!r}")
    low, high, size = min(prompt), max(prompt), config.vocab_size
    if low < 0 or high >= size:
        raise InvalidInput(f"{name} holds the token id {low if low < 0 else high}; ids must be from 0 to {size - 1}")
    if params.stop and not text:
        raise InvalidInput("stop needs a tokenizer, and this checkpoint has no tokenizer.json; use stop_token_ids")
    for token in params.stop_token_ids:
        if token >= size:
            raise InvalidInput(f"stop_token_ids must be below {size}, got {token}")
    for token in params.logit_bias or ():
        if token >= size:
            raise InvalidInput(f"logit_bias must name ids below {size}, got {token}")
    context = config.max_position_embeddings
    if len(prompt) + params.max_tokens > context:
        raise ContextLengthError(
            f"{name} of {len(prompt)} tokens and max_tokens {params.max_tokens} exceed the context of {context}; "
            f"max_tokens can be at most {max(0, context - len(prompt))}"
        )


def token_ids(name: str, prompt: Sequence[Any]) -> tuple[int, ...]:
    """A prompt of token ids as plain integers; InvalidInput names the first item that is none."""
    for token in prompt:
        if isinstance(token, bool) or not hasattr(token, "__index__"):
            raise InvalidInput(f"{name} must be text or token ids, got an item {token!r}")
    return tuple(map(operator.index, prompt))


def require_positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{name} must be a positive integer, got {value!r}")
    return value
