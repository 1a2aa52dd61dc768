"""Exactness 1 and 4 of the specification in float64 on random networks: cached, uncached and chunked generation give
the tokens of a plain loop that is written here from the specification's text, in no more forwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft.engine.generate import ControlIds
from redraft.engine.llm import LLM
from redraft.model.attention import MaskedAttention
from redraft.model.network import LLaDA2
from redraft.types import Completion, SamplingParams

MASK, EOS = 31, 30
EXAMPLES = max(1, settings().max_examples // 4)  # each runs a whole generation several times


@dataclass(frozen=True)
class Plain:
    """The decoder without cache, cycle arithmetic or any shared code: one full forward a step."""

    model: LLaDA2
    block: int
    threshold: float
    edit: float | None
    post: int
    unmask: int
    forwards: list[int] = field(default_factory=list)

    def step(
        self, x: list[int], masked: set[int], start: int, prompt: int, edit: float | None
    ) -> tuple[list[int], set[int]]:
        """The new tokens of what stands from `start` on, as a whole sequence, and the positions written."""
        length = len(x)
        index = torch.arange(length) // self.block
        mask = index[:, None] >= index[None, :]
        mask[start:] = True
        pools = index[None] if self.model.config.block_routing else None
        with torch.no_grad():
            hidden = self.model(torch.tensor([x]), torch.arange(length)[None], MaskedAttention(mask), pools)
            logits = self.model.head(hidden)[0, start:]
        self.forwards.append(1)
        prob = logits.softmax(-1)
        logits[:, MASK] = -torch.inf
        best = logits.argmax(-1).tolist()
        sure = {start + i: float(prob[i, token]) for i, token in enumerate(best)}
        chosen = {i for i in masked if sure[i] > self.threshold}
        if len(chosen) < self.unmask:
            chosen = set(sorted(masked, key=lambda i: (-sure[i], i))[: self.unmask])
        if edit is not None:
            for i in range(max(start, prompt), length):
                if i not in masked and best[i - start] != x[i] and sure[i] > edit:
                    chosen = chosen | {i}
        return [best[i - start] if i in chosen else token for i, token in enumerate(x)], chosen

    def draft(self, x: list[int], prompt: int) -> list[int]:
        """With one more block."""
        start = len(x) // self.block * self.block
        masked = set(range(len(x), start + self.block))
        x = x + [MASK] * len(masked)
        post = 0
        while masked or (self.edit is not None and post < self.post):
            post += not masked
            had_masks = bool(masked)
            x, chosen = self.step(x, masked, start, prompt, self.edit)
            masked = masked - chosen
            if not had_masks and not chosen:
                break
        return x

    def run(self, prompt: list[int], maximum: int, ends: set[int]) -> list[int]:
        x = list(prompt)
        while True:
            x = self.draft(x, len(prompt))
            answer = cut(x[len(prompt) :], maximum, ends)
            if answer is not None:
                return answer

    def run_with_window(
        self, prompt: list[int], maximum: int, ends: set[int], blocks: int, steps: int, edit: float
    ) -> list[int]:
        """Multi-block editing. frozen: where what is not frozen begins."""
        x, frozen = list(prompt), len(prompt) // self.block * self.block
        while True:
            x = self.draft(x, len(prompt))
            x = self.edited(x, frozen, len(prompt), steps, edit)
            frozen = max(frozen, len(x) - blocks * self.block)
            answer = cut(x[len(prompt) : frozen], maximum, ends)
            if answer is None and cut(x[len(prompt) :], maximum, ends) is not None:
                if frozen < len(x):
                    x, frozen = self.edited(x, frozen, len(prompt), steps, edit), len(x)
                answer = cut(x[len(prompt) :], maximum, ends)
            if answer is not None:
                return answer

    def edited(self, x: list[int], frozen: int, prompt: int, steps: int, edit: float) -> list[int]:
        for _ in range(steps):
            x, chosen = self.step(x, set(), frozen, prompt, edit)
            if not chosen:
                break
        return x


def cut(answer: list[int], maximum: int, ends: set[int]) -> list[int] | None:
    """None when it doesn't end here."""
    answer = answer[:maximum]
    end = next((i for i, token in enumerate(answer) if token in ends), None)
    if end is not None:
        return answer[: end + 1]
    return answer if len(answer) == maximum else None


settings_of_a_request = st.fixed_dictionaries(
    {
        "threshold": st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.5]),
        "edit": st.sampled_from([0.0, 0.3, 0.6, None]),
        "post": st.sampled_from([0, 1, 2, 5, 16]),
        "unmask": st.sampled_from([1, 3, 8]),
        "maximum": st.integers(1, 24),
        "eos": st.sampled_from([set(), {EOS}, {1, 2, 3}]),
        "stops": st.sampled_from([(), (4, 5)]),
    }
)


def run(llm: LLM, prompt: list[int], request: dict, window: tuple | None = None) -> Completion:
    params = SamplingParams(
        threshold=request["threshold"],
        edit_threshold="off" if request["edit"] is None else request["edit"],
        max_post_steps=request["post"],
        min_unmask=request["unmask"],
        max_tokens=request["maximum"],
        stop_token_ids=request["stops"],
    )
    if window is not None:
        params = params.with_(mbe_blocks=window[0], mbe_steps=window[1], mbe_edit_threshold=window[2])
    return llm.generate(prompt, params)[0]


@pytest.mark.parametrize("block", [1, 8, 16, 32])
@settings(max_examples=EXAMPLES)
@given(
    seed=st.integers(0, 3),
    kind=st.sampled_from([{}, {"block_routing": 3}, {"num_experts": 0, "use_qk_norm": False}, {"head_dim": 12}]),
    length=st.sampled_from(["short", "border", "over", "long"]),
    random=st.randoms(use_true_random=False),
    request_=settings_of_a_request,
)
def test_cached_uncached_and_chunked_are_the_plain_loop(
    tiny: Callable[..., LLaDA2], block: int, seed: int, kind: dict, length: str, random, request_: dict
) -> None:
    model = tiny(seed, **kind)
    sizes = {
        "short": random.randint(1, block),
        "border": 2 * block,
        "over": block + 1,
        "long": 4 * block + block // 2 + 1,
    }
    prompt = [random.randrange(32) for _ in range(sizes[length])]  # the mask id and EOS may be among them
    plain = Plain(model, block, request_["threshold"], request_["edit"], request_["post"], request_["unmask"])
    expected = plain.run(prompt, request_["maximum"], request_["eos"] | set(request_["stops"]))
    control = ControlIds(MASK, frozenset(request_["eos"]))
    for use_cache, chunk in ((True, 1024), (True, 1), (False, 1024)):
        llm = LLM.from_model(model, control=control, block_length=block, use_cache=use_cache, prefill_chunk=chunk)
        answer = run(llm, prompt, request_)
        assert answer.token_ids == expected
        assert answer.stats.forwards <= len(plain.forwards)


@pytest.mark.parametrize("block", [8, 32])
@settings(max_examples=EXAMPLES)
@given(
    seed=st.integers(0, 3),
    kind=st.sampled_from([{}, {"block_routing": 3}]),
    length=st.integers(1, 40),
    random=st.randoms(use_true_random=False),
    request_=settings_of_a_request,
    window=st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 3, 5]), st.sampled_from([0.0, 0.3])),
)
def test_multi_block_editing_is_the_plain_loop(
    tiny: Callable[..., LLaDA2], block: int, seed: int, kind: dict, length: int, random, request_: dict, window: tuple
) -> None:
    model = tiny(seed, **kind)
    prompt = [random.randrange(32) for _ in range(length)]
    maximum = request_["maximum"] * block // 8
    plain = Plain(model, block, request_["threshold"], request_["edit"], request_["post"], request_["unmask"])
    expected = plain.run_with_window(prompt, maximum, request_["eos"] | set(request_["stops"]), *window)
    control = ControlIds(MASK, frozenset(request_["eos"]))
    request_ = request_ | {"maximum": maximum}
    for use_cache, chunk in ((True, 1024), (True, 1), (False, 1024)):
        llm = LLM.from_model(model, control=control, block_length=block, use_cache=use_cache, prefill_chunk=chunk)
        answer = run(llm, prompt, request_, window)
        assert answer.token_ids == expected
        assert answer.stats.forwards <= len(plain.forwards)


@settings(max_examples=EXAMPLES)
@given(seed=st.integers(0, 3), random=st.randoms(use_true_random=False), key=st.integers(0, 2**63 - 1))
def test_sampled_generation_is_exact_too(tiny: Callable[..., LLaDA2], seed: int, random, key: int) -> None:
    prompt = [random.randrange(32) for _ in range(random.randint(1, 40))]
    params = SamplingParams(temperature=1.3, top_p=0.9, top_k=9, seed=key, min_unmask=2, max_tokens=20, ignore_eos=True)
    answers = [
        LLM.from_model(tiny(seed), block_length=8, use_cache=use_cache, prefill_chunk=chunk).generate(prompt, params)[0]
        for use_cache, chunk in ((True, 1024), (True, 8), (False, 8))
    ]
    assert answers[0].token_ids == answers[1].token_ids == answers[2].token_ids
