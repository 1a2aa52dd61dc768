"""The sampling fields of whole requests, through the engine and through the slow path, in float64."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import groupby, zip_longest
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft.engine.llm import LLM
from redraft.errors import InvalidInput
from redraft.eval.skills import draw_tasks
from redraft.model.attention import MaskedAttention
from redraft.types import SamplingParams

MASK, EOS, B = 31, 30, 8
EXAMPLES = max(1, settings().max_examples // 3)


def float64(
    tiny: Callable[..., Any], seed: int = 0, wide: float = 1.5, block_length: int = B, use_cache: bool = True
) -> LLM:
    return LLM.from_model(tiny(seed, torch.float64, wide), block_length=block_length, use_cache=use_cache)


def one_by_one(llm: LLM, prompt: list[int], params: SamplingParams) -> tuple[list[int], list[float]]:
    """With a block of one token, greedy decoding is the ordinary left-to-right loop: it is written here in full, with
    the log-probability of each token."""
    tokens, logprobs = list(prompt), list[float]()
    for _ in range(params.max_tokens):
        read = torch.tensor([[*tokens, MASK]])
        positions = torch.arange(read.shape[1])
        attend = MaskedAttention(positions[:, None] >= positions[None, :])
        with torch.no_grad():
            logits = llm.model.head(llm.model(read, positions[None], attend))[0, -1]
        for token, bias in (params.logit_bias or {}).items():
            logits[token] += bias
        for token, count in Counter(tokens[len(prompt) :]).items():
            logits[token] -= params.presence_penalty + count * params.frequency_penalty
        logits[tokens[-1]] -= params.stutter_penalty
        best = max((token for token in range(32) if token != MASK), key=lambda token: (logits[token].item(), -token))
        logprobs.append(logits.log_softmax(-1)[best].item())
        tokens.append(best)
    return tokens[len(prompt) :], logprobs


@settings(max_examples=EXAMPLES)
@given(
    seed=st.integers(0, 3),
    prompt=st.lists(st.integers(0, 31), min_size=1, max_size=5),
    bias=st.dictionaries(st.integers(0, 31), st.floats(-4, 4), max_size=3),
    presence=st.sampled_from([0.0, 2.0, -0.5]),
    frequency=st.sampled_from([0.0, 1.3, -0.4]),
    stutter=st.sampled_from([0.0, 5.0]),
)
def test_bias_penalties_and_logprobs_are_those_of_the_plain_loop(
    tiny: Callable[..., Any],
    seed: int,
    prompt: list[int],
    bias: dict[int, float],
    presence: float,
    frequency: float,
    stutter: float,
) -> None:
    params = SamplingParams(
        mode="draft-only",
        logit_bias=bias,
        presence_penalty=presence,
        frequency_penalty=frequency,
        stutter_penalty=stutter,
        logprobs=1,
        max_tokens=12,
        ignore_eos=True,
    )
    for use_cache in (True, False):
        llm = float64(tiny, seed, block_length=1, use_cache=use_cache)
        tokens, logprobs = one_by_one(llm, prompt, params)
        choice = llm.generate(prompt, params)[0].choices[0]
        assert choice.token_ids == tokens
        assert choice.logprobs is not None
        assert [each.logprob for each in choice.logprobs] == pytest.approx(logprobs, abs=1e-9)
        assert [each.top for each in choice.logprobs] == [((each.token, each.logprob),) for each in choice.logprobs]


FIELDS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["speed", "quality", "draft-only"]),
        "temperature": st.sampled_from([0.0, 1.0]),
        "top_k": st.sampled_from([0, 4]),
        "seed": st.integers(0, 2**63 - 1),
        "logit_bias": st.dictionaries(st.integers(0, 31), st.floats(-4, 4), max_size=2),
        "presence_penalty": st.sampled_from([0.0, 1.0]),
        "frequency_penalty": st.sampled_from([0.0, -0.5]),
        "stutter_penalty": st.sampled_from([0.0, 2.0]),
        "logprobs": st.sampled_from([None, 0, 3]),
        "max_tokens": st.integers(1, 30),
    }
)


@settings(max_examples=EXAMPLES)
@given(seed=st.integers(0, 3), requests=st.lists(FIELDS, min_size=1, max_size=4), random=st.randoms())
def test_requests_of_different_fields_get_what_each_gets_alone_on_the_slow_path(
    tiny: Callable[..., Any], seed: int, requests: list[dict[str, Any]], random: Any
) -> None:
    prompts = [[random.randrange(32) for _ in range(random.randint(1, 20))] for _ in requests]
    params = [SamplingParams(**fields) for fields in requests]
    slow = float64(tiny, seed, use_cache=False)
    for answer, prompt, own in zip(float64(tiny, seed).generate(prompts, params), prompts, params, strict=True):
        found, expected = answer.choices[0], slow.generate(prompt, own)[0].choices[0]
        assert found.token_ids == expected.token_ids
        if own.logprobs is None:
            assert found.logprobs is None
            continue
        assert found.logprobs is not None and expected.logprobs is not None
        assert [each.token for each in found.logprobs] == found.token_ids
        for each, other in zip(found.logprobs, expected.logprobs, strict=True):
            assert each.logprob == pytest.approx(other.logprob, abs=1e-9)
            assert [token for token, _ in each.top] == [token for token, _ in other.top]
            assert [value for _, value in each.top] == pytest.approx([value for _, value in other.top], abs=1e-9)


def test_log_probabilities_are_those_of_the_confidence_that_a_stream_shows(tiny: Callable[..., Any]) -> None:
    """Edits included: after each step the confidence of a position is that of its last write."""
    params = SamplingParams(mode="speed", max_tokens=30, logprobs=2, ignore_eos=True)
    events = list(float64(tiny, 2).stream([1, 2, 3], params))
    shown = [math.log(confidence) for event in events if event.frozen for confidence in event.confidence]
    completion = events[-1].completion
    assert completion is not None and completion.stats.edits
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert [each.logprob for each in logprobs] == pytest.approx(shown[3:][:30], abs=1e-9)


@pytest.mark.parametrize("edit_threshold", [0.0, 0.5, "off"])
def test_top_k_of_one_is_greedy_at_the_same_thresholds(tiny: Callable[..., Any], edit_threshold: Any) -> None:
    greedy = SamplingParams(threshold=0.4, edit_threshold=edit_threshold, max_tokens=40, ignore_eos=True)
    for seed in range(4):
        llm = float64(tiny, seed)
        found, expected = (
            llm.generate([1, 2, 3], params)[0] for params in (greedy.with_(temperature=1.0, top_k=1, seed=seed), greedy)
        )
        assert found.token_ids == expected.token_ids
        assert found.stats.forwards == expected.stats.forwards


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({"temperature": 1.0}, 4),  # edits above 0.5: a free edit would put the argmax back and undo the draw
        ({"temperature": 1.0, "edit_threshold": 0.0}, 30),
        ({"temperature": 0.0}, 29),
    ],
)
def test_how_many_blocks_use_all_post_steps_in_speed_mode(
    tiny: Callable[..., Any], settings: dict[str, Any], share: int
) -> None:
    """Of 30 blocks, pinned on fixed random networks, which are never at rest where editing is free."""
    params = SamplingParams(mode="speed", seed=7, max_tokens=5 * B, ignore_eos=True, **settings)
    used = blocks = 0
    for seed in range(2):
        llm = float64(tiny, seed, wide=0.6)
        for start in range(3):
            for _, steps in groupby(llm.stream([start] * B, params), key=lambda event: event.block):
                events = list(steps)
                filled = next(event.step for event in events if not event.masked)
                used += events[-1].step - filled == params.max_post_steps
                blocks += 1
    assert (used, blocks) == (share, 30)


def test_the_embedded_model_comes_to_rest_in_speed_mode_at_temperature_one() -> None:
    """Edits never redraw: few blocks, if any, go on until their post steps are used up."""
    llm = LLM(device="cpu")
    tasks = [task for task, _ in draw_tasks(0, 2)]
    prompts = [llm.render(task.messages, list(task.tools) or None) for task in tasks]
    params = SamplingParams(mode="speed", temperature=1.0, seed=1, max_tokens=96)
    used = blocks = 0
    together = zip_longest(*(llm.stream(prompt, params) for prompt in prompts))
    for stream in zip(*together, strict=True):
        for _, steps in groupby(filter(None, stream), key=lambda event: event.block):
            events = list(steps)
            filled = next(event.step for event in events if not event.masked)
            used += events[-1].step - filled == params.max_post_steps
            blocks += 1
    assert blocks >= 20 and used <= blocks / 8


def test_a_bias_beyond_the_vocabulary_is_refused(tiny: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInput, match="logit_bias"):
        float64(tiny).generate([1], SamplingParams(logit_bias={32: 1.0}))
