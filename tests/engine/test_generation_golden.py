"""The tokens of the public LLaDA2.1 code (tests/golden), token for token, in no more denoising forwards."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from redraft.engine.batch import Span
from redraft.engine.context import UncachedContext
from redraft.engine.executor import Executor
from redraft.engine.llm import LLM
from redraft.engine.storage import PageStorage
from redraft.types import SamplingParams

GOLDEN = Path(__file__).parents[1] / "golden"
SEEDS = ("seed0", "seed3")
CASES = [
    pytest.param(seed, case, id=f"{seed}-{index}")
    for seed in SEEDS
    for index, case in enumerate(json.loads((GOLDEN / seed / "generate.json").read_text())["cases"])
]


@cache
def load(seed: str, block_length: int, use_cache: bool) -> LLM:
    return LLM(GOLDEN / seed, device="cpu", dtype="float32", block_length=block_length, use_cache=use_cache)


@pytest.mark.parametrize("use_cache", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize(("seed", "case"), CASES)
def test_tokens_and_forwards(seed: str, case: dict[str, Any], use_cache: bool) -> None:
    params = SamplingParams(
        threshold=case["threshold"],
        edit_threshold=case["editing_threshold"],
        max_post_steps=case["max_post_steps"],
        min_unmask=case["num_to_transfer"],
        max_tokens=case["gen_length"],
        stop_token_ids=[case["eos_id"]],
        ignore_eos=True,
    )
    answer = load(seed, case["block_length"], use_cache).generate(case["prompt"], params)[0]
    assert answer.token_ids == case["output"]
    assert answer.stats.forwards <= case["forwards"]
    assert answer.finish_reason == ("stop" if case["output"][-1] == case["eos_id"] else "length")


@pytest.mark.parametrize("block_length", [8, 32])
@pytest.mark.parametrize("seed", SEEDS)
def test_logits_of_the_context_and_of_the_executor(seed: str, block_length: int) -> None:
    """Every block's logits after the blocks before it, as decoding computes them."""
    golden = np.load(GOLDEN / seed / "forward.npz")
    model = load(seed, block_length, True).model
    for row, expected in zip(golden["input_ids"], golden[f"logits_block{block_length}"], strict=True):
        context = UncachedContext(model, block_length)
        storage = PageStorage(model.config, len(row) // 32 + 1, block_length, device=model.device, dtype=model.dtype)
        executor = Executor(model, storage, block_length)
        for start in range(0, len(row), block_length):
            tokens = row[start : start + block_length]
            span = Span(tokens, start, tuple(range(storage.count)), np.arange(len(tokens)))
            for hidden in (context.forward(tokens), executor.forward([span])):
                logits = executor.head(hidden)
                np.testing.assert_allclose(logits.numpy(), expected[start : start + block_length], atol=1e-4)
            context.commit(tokens)
    assert torch.isfinite(torch.from_numpy(golden[f"logits_block{block_length}"])).all()
