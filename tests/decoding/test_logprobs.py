"""Log-probabilities are those of a token's last write, also where a cycle is jumped."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from redraft.decoding.block import BlockRun
from redraft.decoding.candidates import Ask, Candidates, Selection
from redraft.decoding.canvas import Canvas
from redraft.decoding.m2t import Draft
from redraft.decoding.policy import DraftAndEdit
from redraft.decoding.selection import select
from redraft.decoding.t2t import Edit
from redraft.types import TokenLogprob

MASK, VOCAB = 4, 5


def propose(canvas: Canvas, policy: DraftAndEdit, seed: int, count: int) -> Candidates:
    """A model stand-in whose logits are a function of the tokens."""
    generator = torch.Generator().manual_seed(hash((seed, *canvas.tokens.tolist())) % 2**32)
    logits = torch.randn(len(canvas.tokens), VOCAB, dtype=torch.float64, generator=generator) * 2
    wanted = policy.wanted(canvas)
    return select(Tensor.clone, logits[wanted], [Ask(canvas, Selection((MASK,), logprobs=count), wanted)])[0]


@given(
    seed=st.integers(0, 10**6),
    length=st.integers(1, 4),
    count=st.integers(0, 6),
    post=st.integers(0, 40),
    prompt=st.integers(0, 2),
)
def test_each_write_brings_its_own_and_a_jump_ends_with_those_of_the_plain_loop(
    seed: int, length: int, count: int, post: int, prompt: int
) -> None:
    policy = DraftAndEdit(Draft(0.4), Edit(0.2), post)
    start = Canvas.blank(0, length, MASK, (1,) * min(prompt, length - 1), logprobs=count)
    canvas, expected = start, dict[int, TokenLogprob]()
    while True:
        found = propose(canvas, policy, seed, count)
        assert found.logprobs is not None
        canvas, change = policy.step(canvas, found)
        listed = found.logprobs.listed(found.token)
        expected |= {position: listed[position] for position in (*change.drafted, *change.edited)}
        if policy.done(canvas, change):
            break
    assert canvas.token_logprobs == [expected[position] for position in sorted(expected)]
    for position, own in expected.items():
        assert own.token == canvas.tokens[position]
        assert np.isclose(np.exp(own.logprob), canvas.confidence[position])
        assert len(own.top) == min(count, VOCAB - 1)

    run = BlockRun(policy, start)
    while not run.done:
        run.advance(propose(run.canvas, policy, seed, count))
    assert run.canvas.token_logprobs == canvas.token_logprobs


def test_nothing_is_kept_for_a_request_that_asks_for_nothing() -> None:
    canvas = Canvas.blank(0, 2, MASK)
    after = canvas.write(np.ones(2, bool), np.array([1, 2]), np.ones(2))
    assert after.logprobs is None and after.token_logprobs == []
