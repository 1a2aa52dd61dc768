"""The engine on small random networks in float64: every request gets exactly the tokens that it gets alone, from a loop
that reads the whole sequence at every step, whatever else is running."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiny import tiny_model

from redraft.engine.engine import Engine, EngineSettings, Failure, Request
from redraft.engine.generate import ControlIds
from redraft.engine.llm import LLM
from redraft.engine.pages import page_length
from redraft.errors import ContextLengthError, InvalidInput, NumericalError
from redraft.model.network import LLaDA2
from redraft.types import Choice, Completion, SamplingParams

MASK, EOS = 31, 30
CONTROL = ControlIds(MASK, frozenset({EOS}))
KINDS = ({}, {"block_routing": 3}, {"num_experts": 0, "use_qk_norm": False})
EXAMPLES = max(2, settings().max_examples // 8)  # each runs some ten answers twice


@cache
def network(kind: int) -> LLaDA2:
    return tiny_model(kind, torch.float64, **KINDS[kind])


@cache
def alone(kind: int, block_length: int, prompt: tuple[int, ...], params: SamplingParams) -> list[Choice]:
    """The slow path: one answer at a time, no cache."""
    llm = LLM.from_model(network(kind), control=CONTROL, block_length=block_length, use_cache=False)
    return llm.generate(list(prompt), params)[0].choices


def drain(engine: Engine) -> tuple[dict[int, Completion], dict[int, Failure]]:
    """Completions and failures by request."""
    completions, failures = {}, {}
    while engine.busy:
        for output in engine.step():
            if isinstance(output, Failure):
                failures[output.request] = output
            elif output.completion is not None:
                completions[output.request] = output.completion
    engine.check(idle=True)
    return completions, failures


def require_equal(found: Completion, expected: list[Choice], *, aborted: bool = False) -> None:
    assert len(found.choices) == len(expected)
    for own, other in zip(found.choices, expected, strict=True):
        if own.finish_reason == "abort":
            assert aborted and own.token_ids == other.token_ids[: len(own.token_ids)]
            continue
        assert (own.token_ids, own.finish_reason) == (other.token_ids, other.finish_reason)
        ours, theirs = own.stats, other.stats
        assert (ours.forwards, ours.drafted, ours.edits) == (theirs.forwards, theirs.drafted, theirs.edits)
        assert (own.logprobs is None) == (other.logprobs is None)
        for mine, its in zip(own.logprobs or (), other.logprobs or (), strict=True):
            assert mine.token == its.token and mine.logprob == pytest.approx(its.logprob, abs=1e-9)


def some_params(draw: random.Random) -> SamplingParams:
    """Any setting; post steps are few, so that a run is short."""
    return SamplingParams(
        threshold=draw.choice([0.2, 0.5, 0.9, 1.5]),
        edit_threshold=draw.choice([0.0, 0.3, 0.6, "off"]),
        max_post_steps=draw.choice([0, 1, 3]),
        min_unmask=draw.choice([2, 4]),
        temperature=draw.choice([0.0, 0.0, 1.3]),
        top_p=draw.choice([1.0, 0.9]),
        top_k=draw.choice([0, 9]),
        seed=draw.randrange(1000),
        max_tokens=draw.randint(1, 24),
        n=draw.choice([1, 1, 1, 3]),
        presence_penalty=draw.choice([0.0, 0.0, 1.5]),
        stutter_penalty=draw.choice([0.0, 0.0, 2.0]),
        logprobs=draw.choice([None, None, 2]),
    )


def run_schedule(draw: random.Random, block_length: int) -> None:
    """Some requests, come and aborted between steps, over a pool that can be too small for those that could run."""
    kind = draw.randrange(len(KINDS))
    pages = -(-(70 + 24) // page_length(block_length)) + draw.choice([0, 1, 3, 12])
    chosen = EngineSettings(
        max_running=draw.randint(1, 5),
        forward_tokens=draw.choice([1, 40, 1024]),
        pages=pages,
        prefix_cache=draw.random() < 0.8,
    )
    engine = Engine(network(kind), CONTROL, chosen, block_length=block_length)
    stems = [[draw.randrange(32) for _ in range(70)] for _ in range(2)]
    requests: dict[int, Request] = {}
    aborted: set[int] = set()
    outputs = []
    for id in range(draw.randint(3, 7)):
        stem, length = draw.choice(stems), draw.randint(1, 70)
        own = draw.randint(0, length)
        prompt = (*stem[: length - own], *(draw.randrange(32) for _ in range(own)))
        requests[id] = Request(prompt, some_params(draw), id, events=draw.random() < 0.5)
        engine.submit(requests[id])
        if draw.random() < 0.15:
            aborted.add(gone := draw.randrange(id + 1))
            engine.abort(gone)
        for _ in range(draw.choice([0, 0, 3, 10])):
            outputs += engine.step()
            engine.check()
    completions, failures = drain(engine)
    completions |= {event.request: event.completion for event in outputs if getattr(event, "completion", None)}
    assert not failures and completions.keys() == requests.keys()
    for id, request in requests.items():
        expected = alone(kind, block_length, request.prompt, request.params)
        require_equal(completions[id], expected, aborted=id in aborted)


@pytest.mark.parametrize("block_length", [1, 8, 16, 32])
@settings(max_examples=EXAMPLES)
@given(seed=st.integers(0, 2**32))
def test_in_any_company_as_alone(block_length: int, seed: int) -> None:
    run_schedule(random.Random(seed), block_length)


@pytest.mark.slow
def test_hundreds_of_schedules() -> None:
    for seed in range(300):
        run_schedule(random.Random(seed), (1, 8, 16, 32)[seed % 4])


def test_preempted_requests_draw_the_same_tokens() -> None:
    params = SamplingParams(
        temperature=1.2, max_tokens=60, ignore_eos=True, edit_threshold=0.9, max_post_steps=1, min_unmask=6
    )
    engine = Engine(network(0), CONTROL, EngineSettings(max_running=3, pages=5), block_length=8)
    requests = [Request((id + 1,) * 30, params.with_(seed=id), id) for id in range(3)]
    for request in requests:
        engine.submit(request)
    completions, _ = drain(engine)
    assert engine.statistics().preempted
    for request in requests:
        require_equal(completions[request.id], alone(0, 8, request.prompt, request.params))


def test_a_hit_gives_the_tokens_of_a_miss_and_a_long_prompt_those_of_one_piece() -> None:
    prompt = tuple(at * at % 29 for at in range(200))
    params = SamplingParams(max_tokens=20, max_post_steps=2)
    engine = Engine(network(0), CONTROL, EngineSettings(forward_tokens=48), block_length=8)
    for id in range(2):
        engine.submit(Request(prompt, params, id))
        completions, _ = drain(engine)
        assert completions[id].stats.cached_tokens == 192 * id
        assert completions[id].stats.prefill_forwards == (4 if id == 0 else 0)
        require_equal(completions[id], alone(0, 8, prompt, params))


def test_a_sequence_whose_logits_are_not_finite_fails_alone() -> None:
    broken = tiny_model(0, torch.float64)
    broken.word_embeddings.weight.data[29] = torch.nan
    engine = Engine(broken, CONTROL, EngineSettings(pages=12), block_length=8)
    params = SamplingParams(max_tokens=30, max_post_steps=2, min_unmask=4)
    prompts = {0: (1, 2, 3), 1: (29, *range(40)), 2: tuple(range(20)), 3: (29,), 4: (*range(20), 3)}
    for id, prompt in prompts.items():
        engine.submit(Request(tuple(token % 29 if id % 2 == 0 else token % 30 for token in prompt), params, id))
    completions, failures = drain(engine)
    assert failures.keys() >= {1, 3} and completions.keys() | failures.keys() == set(range(5))
    assert all(isinstance(failure.error, NumericalError) for failure in failures.values())
    for id in completions:
        require_equal(completions[id], alone(0, 8, tuple(token % 29 for token in prompts[id]), params))


def test_an_error_of_the_forward_is_everyones_and_leaves_all_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(network(0), CONTROL, EngineSettings(pages=12), block_length=8)
    params = SamplingParams(max_tokens=12, max_post_steps=1)
    for id in range(2):
        engine.submit(Request(tuple(range(30 + id)), params, id))
    engine.step()
    forward = engine._executor.forward
    with monkeypatch.context() as patched:
        patched.setattr(engine._executor, "forward", _out_of_memory)
        with pytest.raises(MemoryError):
            engine.step()
    engine.check()
    assert engine._executor.forward == forward
    completions, _ = drain(engine)
    for id in range(2):
        require_equal(completions[id], alone(0, 8, tuple(range(30 + id)), params))


def _out_of_memory(*_: object) -> Any:
    raise MemoryError


@pytest.mark.parametrize(
    ("request_", "error", "named"),
    [
        (Request((), SamplingParams()), InvalidInput, "the prompt is empty"),
        (Request((1, 32), SamplingParams()), InvalidInput, "token id 32; ids must be from 0 to 31"),
        (Request((1, -1), SamplingParams()), InvalidInput, "token id -1"),
        (Request((1,), SamplingParams(stop="x")), InvalidInput, "stop needs a tokenizer"),
        (Request((1,), SamplingParams(stop_token_ids=[32])), InvalidInput, "stop_token_ids must be below 32, got 32"),
        (
            Request((1,), SamplingParams(logit_bias={40: 1.0})),
            InvalidInput,
            "logit_bias must name ids below 32, got 40",
        ),
        (Request((1,), SamplingParams(max_tokens=512)), ContextLengthError, "max_tokens can be at most 511"),
        (Request((1,) * 80, SamplingParams(max_tokens=80)), InvalidInput, "need 5 pages, and there are 3"),
    ],
)
def test_what_cant_be_answered_is_refused(request_: Request, error: type[Exception], named: str) -> None:
    engine = Engine(network(0), CONTROL, EngineSettings(pages=3), block_length=8)
    with pytest.raises(error) as caught:
        engine.submit(request_)
    assert named in str(caught.value) and "\n" not in str(caught.value)
    assert not engine.busy


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        ({"max_running": 0}, "max_running must be an integer of at least 1, got 0"),
        ({"forward_tokens": True}, "forward_tokens"),
        ({"pages": 0}, "pages"),
        ({"cache_tokens": "many"}, "cache_tokens"),
        ({"memory_fraction": 1.5}, "memory_fraction"),
        ({"pages": 3, "cache_tokens": 99}, "cache_tokens and pages"),
        ({"queue_limit": -1}, "queue_limit must be an integer of at least 0, got -1"),
        ({"prefix_cache": 1}, "prefix_cache must be true or false, got 1"),
    ],
)
def test_bad_settings_are_refused_by_name(chosen: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        EngineSettings(**chosen)


def test_statistics_say_what_was_done() -> None:
    engine = Engine(network(0), CONTROL, EngineSettings(pages=40), block_length=8)
    params = SamplingParams(max_tokens=16, max_post_steps=1, ignore_eos=True)
    for id in range(2):
        engine.submit(Request((*range(29), *range(29)), params, id))
    assert engine.statistics().waiting == 2
    engine.step()
    assert (engine.statistics().running, engine.statistics().waiting) == (1, 1), (
        "the second waits for the first's pages"
    )
    completions, _ = drain(engine)
    found = engine.statistics()
    stats = [completion.stats for completion in completions.values()]
    assert found.denoising_forwards == sum(one.forwards for one in stats) >= found.forwards
    assert found.generated_tokens == 32 and found.cached_tokens == stats[1].cached_tokens == 32
    assert found.edits == sum(one.edits for one in stats) and found.drafted == sum(one.drafted for one in stats)
    assert (found.finished, found.aborted, found.failed, found.preempted) == (2, 0, 0, 0)
    assert found.pages.held == 0 and found.pages.free + found.pages.cached == 40
    assert 0 < found.hit_rate < 1 and found.seconds > found.prefill_seconds > 0
    assert found.prefill_tokens_per_second > 0 and found.tokens_per_second > 0 and found.tokens_per_forward > 0


def test_new_weights_are_seen_by_the_next_request() -> None:
    model, other = tiny_model(5, torch.float64), tiny_model(6, torch.float64)
    engine = Engine(model, CONTROL, block_length=8)
    request = Request(tuple(range(30)) * 2, SamplingParams(max_tokens=16, max_post_steps=1))
    engine.submit(request)
    before, _ = drain(engine)
    model.load_state_dict(other.state_dict())
    engine.weights_changed()
    engine.submit(replace(request, id=1))
    after, _ = drain(engine)
    fresh = Engine(other, CONTROL, block_length=8)
    fresh.submit(request)
    expected, _ = drain(fresh)
    assert after[1].token_ids == expected[0].token_ids != before[0].token_ids
    assert after[1].stats.cached_tokens == 0
