"""Parts of responses that several routes write: usage, log-probabilities, ids."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from redraft.server.prompts import Prompts
from redraft.types import Choice, Completion, TokenLogprob


def new_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(16)}"


def figures(completions: Sequence[Completion]) -> dict[str, float]:
    """What the answers cost: forwards are steps on their blocks, prefill apart."""
    stats = [choice.stats for completion in completions for choice in completion.choices]
    forwards, generated = sum(s.forwards for s in stats), sum(s.generated_tokens for s in stats)
    return {
        "forwards": forwards,
        "tokens_per_forward": round(generated / forwards, 4) if forwards else 0.0,
        "edits": sum(s.edits for s in stats),
    }


def usage(completions: Sequence[Completion]) -> dict[str, Any]:
    """A prompt counts once, however many answers it got; its cached tokens are those of its first answer."""
    prompt = sum(len(completion.prompt_token_ids) for completion in completions)
    generated = sum(choice.stats.generated_tokens for one in completions for choice in one.choices)
    cached = sum(completion.choices[0].stats.cached_tokens for completion in completions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
        "redraft": figures(completions),
    }


def shown_logprobs(choice: Choice, prompts: Prompts) -> list[TokenLogprob]:
    """Of the tokens that are text: the one that ended the answer is none."""
    return [entry for entry in choice.logprobs or () if entry.token not in prompts.tokenizer.special_ids]


def token_logprobs(choice: Choice, prompts: Prompts, top: int) -> list[dict[str, Any]]:
    """In the shape of a chat: one object a token, with `top` alternatives."""

    def shape(token: int, logprob: float) -> dict[str, Any]:
        return {"token": prompts.text_of(token), "logprob": logprob, "bytes": prompts.bytes_of(token)}

    return [
        shape(entry.token, entry.logprob) | {"top_logprobs": [shape(*one) for one in entry.top[:top]]}
        for entry in shown_logprobs(choice, prompts)
    ]


def response_usage(completion: Completion) -> dict[str, Any]:
    """In the names of `/v1/responses`."""
    counted = usage([completion])
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": {**counted["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counted["total_tokens"],
        "redraft": counted["redraft"],
    }
