"""The jump to the end of a cycle against the plain loop, over random deterministic editors."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from redraft.decoding.block import BlockRun
from redraft.decoding.candidates import Candidates
from redraft.decoding.canvas import Canvas
from redraft.decoding.m2t import Draft
from redraft.decoding.policy import DraftAndEdit
from redraft.decoding.t2t import Edit

MASK = 9


def propose(tokens: np.ndarray, seed: int, vocabulary: int) -> Candidates:
    """A model stand-in: proposals are a function of the tokens, in a space small enough to repeat itself."""
    rng = random.Random(repr((seed, tokens.tolist())))
    token = [rng.randrange(vocabulary) for _ in tokens]
    prob = [rng.choice([0.1, 0.3, 0.6, 0.8]) for _ in tokens]
    return Candidates(np.array(token), np.array(prob), np.ones(len(tokens), bool))


def plain(policy: DraftAndEdit, canvas: Canvas, seed: int, vocabulary: int) -> tuple[Canvas, int]:
    while True:
        canvas, change = policy.step(canvas, propose(canvas.tokens, seed, vocabulary))
        if policy.done(canvas, change):
            return canvas, canvas.step


@given(
    seed=st.integers(0, 10**6),
    length=st.integers(1, 4),
    vocabulary=st.integers(1, 3),
    post=st.integers(0, 60),
    threshold=st.sampled_from([0.0, 0.2, 0.5]),
)
def test_the_jump_ends_where_the_plain_loop_does(
    seed: int, length: int, vocabulary: int, post: int, threshold: float
) -> None:
    policy = DraftAndEdit(Draft(0.2), Edit(threshold), post)
    slow, forwards = plain(policy, Canvas.blank(0, length, MASK), seed, vocabulary)
    run = BlockRun(policy, Canvas.blank(0, length, MASK))
    spent = 0
    while not run.done:
        run.advance(propose(run.canvas.tokens, seed, vocabulary))
        spent += 1
    assert run.canvas.tokens.tolist() == slow.tokens.tolist()
    assert run.canvas.confidence.tolist() == slow.confidence.tolist()
    assert (run.canvas.step, run.canvas.post_steps) == (slow.step, slow.post_steps)
    # Every state without masks is forwarded once at most.
    assert spent <= min(forwards, length + vocabulary**length)


def test_a_cycle_of_two_costs_two_post_steps_whatever_the_limit() -> None:
    policy = DraftAndEdit(Draft(0.0), Edit(0.0), 10**9 + 1)
    run = BlockRun(policy, Canvas.blank(0, 1, MASK))
    changes = []
    while not run.done:
        token = 1 if run.canvas.tokens[0] != 1 else 2
        changes.append(run.advance(Candidates(np.array([token]), np.array([0.5]), np.array([True]))))
    assert len(changes) == 3
    assert run.canvas.tokens.tolist() == [2]  # an odd number of steps after token 1
    assert run.canvas.post_steps == 10**9 + 1
    assert not changes[-1].edited  # from 2 back to 2: seen from outside the last step changes nothing
