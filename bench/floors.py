"""What a forward must cost at least on this machine: its arithmetic, or the weights it has to read.

Both rates are measured, so a floor says how far from this machine's own limits a decoder is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch

from redraft.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Cost:
    """Floating-point operations, and bytes of weights, keys and values read."""

    operations: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Rates:
    """Operations a second of a large matrix product in one dtype, bytes a second of reading memory."""

    operations: float
    bytes: float

    def floor(self, cost: Cost) -> float:
        """Seconds, were arithmetic and reading to overlap perfectly."""
        return max(cost.operations / self.operations, cost.bytes / self.bytes)

    def estimate(self, cost: Cost) -> float:
        """Seconds, were they not to overlap at all: what to expect of a good forward."""
        return cost.operations / self.operations + cost.bytes / self.bytes


def forward_cost(
    config: ModelConfig, positions: int, keys: int, logits: int, itemsize: int, *, sequences: int = 1
) -> Cost:
    """One forward of `positions` new positions that attend to `keys` positions on average, head on `logits` of them.
    sequences: they belong to so many, each with keys of its own."""
    c = config
    attention = c.hidden_size * c.head_dim * 2 * (c.num_attention_heads + c.num_key_value_heads)
    expert = 3 * c.hidden_size * c.moe_intermediate_size
    always = c.num_hidden_layers * attention
    always += (c.num_hidden_layers - c.num_moe_layers) * 3 * c.hidden_size * c.intermediate_size
    always += c.num_moe_layers * (c.num_shared_experts * expert + c.num_experts * c.hidden_size)
    head = c.vocab_size * c.hidden_size
    routed = c.num_moe_layers * expert
    # Experts that at least one position uses, were the routing even.
    touched = c.num_experts * (1 - (1 - c.num_experts_per_tok / max(1, c.num_experts)) ** positions)
    scores = c.num_hidden_layers * 2 * c.num_attention_heads * c.head_dim * keys
    operations = 2 * (positions * (always + routed * c.num_experts_per_tok + scores) + logits * head)
    cache = sequences * c.num_hidden_layers * 2 * c.num_key_value_heads * c.head_dim * keys
    return Cost(operations, itemsize * (always + routed * touched + (head if logits else 0) + cache))


def measure(dtype: torch.dtype) -> Rates:
    """Takes about a second, more where the dtype is emulated. With the threads that torch has now."""
    memory = torch.ones(1 << 26)
    reading = _best(memory.sum)
    return Rates(product_rate(dtype), memory.nbytes / reading)


def product_rate(dtype: torch.dtype, rows: int = 256, inner: int = 1024, columns: int = 2048) -> float:
    """Operations a second of `[rows, inner] @ [inner, columns]`, with the threads that torch has now."""
    left, right = torch.randn(rows, inner).to(dtype), torch.randn(columns, inner).to(dtype)
    return 2 * left.shape[0] * right.numel() / _best(lambda: torch.nn.functional.linear(left, right))


def _best(work: Callable[[], object], seconds: float = 0.4) -> float:
    """The fastest of the runs that fit in about `seconds`, after one that warms up."""
    work()
    best, until = float("inf"), perf_counter() + seconds
    while perf_counter() < until:
        started = perf_counter()
        work()
        best = min(best, perf_counter() - started)
    return best
