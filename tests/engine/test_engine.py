"""The engine on small random networks in float64: every request gets exactly the tokens that it gets alone, from a loop
that reads the whole sequence at every step, whatever else is running."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.catalogue import MASK, POISON, some_params
from tests.engine.oracle import CONTROL, World, drain, require_as_alone
from tests.tiny import tiny_model

from redraft.engine.engine import Engine, EngineSettings, Request
from redraft.engine.pages import page_length
from redraft.errors import ContextLengthError, InvalidInput, NumericalError
from redraft.model.attention import attention, block_causal_mask
from redraft.types import SamplingParams

KINDS: tuple[tuple[tuple[str, Any], ...], ...] = (
    (),
    (("block_routing", 3),),
    (("num_experts", 0), ("use_qk_norm", False)),
)
EXAMPLES = max(1, settings().max_examples // 20)  # each runs some ten answers twice
W = World(8)


def run_schedule(draw: random.Random, block_length: int) -> None:
    """Some requests, come and aborted between steps, over a pool that can be too small for those that could run, on
    pages of 32."""
    world = World(block_length, draw.choice(KINDS))
    pages = -(-(70 + 24) // page_length(block_length)) + draw.choice([0, 1, 3, 12])
    chosen = EngineSettings(
        max_running=draw.randint(1, 5),
        forward_tokens=draw.choice([1, 40, 1024]),
        pages=pages,
        prefix_cache=draw.random() < 0.8,
    )
    engine = world.engine(chosen)
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
        require_as_alone(world, request, completions[id], aborted=id in aborted)


@pytest.mark.parametrize("block_length", [1, 8, 16, 32])
@settings(max_examples=EXAMPLES)
@given(seed=st.integers(0, 2**32))
def test_on_whole_pages_as_alone(block_length: int, seed: int) -> None:
    run_schedule(random.Random(seed), block_length)


@pytest.mark.slow
def test_hundreds_of_schedules() -> None:
    for seed in range(300):
        run_schedule(random.Random(seed), (1, 8, 16, 32)[seed % 4])


def test_preempted_requests_draw_the_same_tokens() -> None:
    params = SamplingParams(
        temperature=1.2, max_tokens=60, ignore_eos=True, edit_threshold=0.9, max_post_steps=1, min_unmask=6
    )
    engine = W.engine(EngineSettings(max_running=3, pages=5))
    requests = [Request((id + 1,) * 30, params.with_(seed=id), id) for id in range(3)]
    for request in requests:
        engine.submit(request)
    completions, _ = drain(engine)
    assert engine.statistics().preempted
    for request in requests:
        require_as_alone(W, request, completions[request.id])


def test_a_hit_gives_the_tokens_of_a_miss_and_a_long_prompt_those_of_one_piece() -> None:
    prompt = tuple(at * at % 29 for at in range(200))
    params = SamplingParams(max_tokens=20, max_post_steps=2)
    engine = W.engine(EngineSettings(forward_tokens=48))
    for id in range(2):
        engine.submit(Request(prompt, params, id))
        completions, _ = drain(engine)
        assert completions[id].stats.cached_tokens == 192 * id
        assert completions[id].stats.prefill_forwards == (4 if id == 0 else 0)
        require_as_alone(W, Request(prompt, params), completions[id])


def test_a_sequence_whose_logits_are_not_finite_fails_alone() -> None:
    world = World(8, poisoned=True)
    engine = world.engine(EngineSettings(pages=12))
    params = SamplingParams(max_tokens=30, max_post_steps=2, min_unmask=4)
    clean, broken = tuple(token for token in range(40) if token < POISON), (POISON, *range(20))
    prompts = [clean[:3], broken, clean[:20], (POISON,), (*clean[:20], 3), (*clean[:16], *broken)]
    for id, prompt in enumerate(prompts):
        engine.submit(Request(prompt, params.with_(n=1 + id % 2, seed=id), id))
    completions, failures = drain(engine)
    assert failures.keys() == {1, 3, 5} and completions.keys() == {0, 2, 4}
    assert all(isinstance(failure.error, NumericalError) for failure in failures.values())
    for id, completion in completions.items():
        require_as_alone(world, Request(prompts[id], params.with_(seed=id)), completion)


def test_what_is_not_finite_stays_out_of_the_pages_before_it() -> None:
    """The second chunk holds the end of the first page and the poison; the next request shares that page."""
    world = World(8, poisoned=True)
    engine = world.engine(EngineSettings(forward_tokens=24, pages=12))
    params = SamplingParams(max_tokens=20, max_post_steps=2, min_unmask=4, ignore_eos=True)
    clean = tuple(at * at % 28 for at in range(40))
    engine.submit(Request((*clean, POISON), params, 0))
    engine.submit(Request((*clean, *[POISON] * 8), params, 1))
    completions, failures = drain(engine)
    assert failures.keys() == {0, 1} and not completions
    request = Request((*clean[:36], 3), params, 2)
    engine.submit(request)
    completions, _ = drain(engine)
    assert completions[2].stats.cached_tokens == 32
    require_as_alone(world, request, completions[2])


def test_an_error_of_the_forward_is_everyones_and_leaves_all_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = W.engine(EngineSettings(pages=12))
    requests = [Request(tuple(range(29 + id)), SamplingParams(max_tokens=12, max_post_steps=1), id) for id in range(2)]
    for request in requests:
        engine.submit(request)
    engine.step()
    with monkeypatch.context() as patched:
        patched.setattr(engine._executor, "forward", _out_of_memory)
        for _ in range(2):
            with pytest.raises(MemoryError):
                engine.step()
    engine.check()
    completions, _ = drain(engine)
    for request in requests:
        require_as_alone(W, request, completions[request.id])


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
    engine = Engine(W.network, CONTROL, EngineSettings(pages=3), block_length=8)
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
    engine = W.engine(EngineSettings(pages=40))
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


def test_prompts_of_16k_tokens() -> None:
    """In pieces, from the cache and in one piece, against a forward of the network alone."""
    length, block = 16 * 1024, 32
    small = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "num_experts": 0}
    model = tiny_model(0, torch.float64, max_position_embeddings=length + block, **small)
    draw = random.Random(0)
    prompt = tuple(draw.randrange(30) for _ in range(length))
    one_step = SamplingParams(mode="draft-only", min_unmask=block, max_tokens=block, logprobs=0, ignore_eos=True)

    positions = torch.arange(length + block)

    def in_strips(layer: int, q_BTHD: torch.Tensor, k_BTGD: torch.Tensor, v_BTGD: torch.Tensor) -> torch.Tensor:
        strips = []
        for rows in positions.split(512):  # a mask of all positions would take gigabytes
            stop = int(rows[-1]) + 1
            mask = block_causal_mask(rows, positions[:stop], block)
            strips.append(attention(q_BTHD[:, rows], k_BTGD[:, :stop], v_BTGD[:, :stop], mask))
        return torch.cat(strips, dim=1)

    with torch.inference_mode():
        hidden = model(torch.tensor([[*prompt, *[MASK] * block]]), positions[None], in_strips)
        logits = model.head(hidden[0, -block:])
        expected = logits.log_softmax(-1)
        logits[:, MASK] = -torch.inf
        tokens = logits.argmax(-1)

    for forward_tokens, requests in ((1024, 2), (length, 1)):
        chosen = EngineSettings(forward_tokens=forward_tokens, cache_tokens=length + block)
        engine = Engine(model, CONTROL, chosen, block_length=block)
        for id in range(requests):
            engine.submit(Request(prompt, one_step, id))
            choice = drain(engine)[0][id].choices[0]
            assert choice.token_ids == tokens.tolist()
            found = [each.logprob for each in choice.logprobs or ()]
            assert found == pytest.approx(expected[range(block), tokens].tolist(), abs=1e-9)
            assert choice.stats.cached_tokens == length * id
            assert choice.stats.prefill_forwards == (15 if forward_tokens == 1024 and id == 0 else 0)
