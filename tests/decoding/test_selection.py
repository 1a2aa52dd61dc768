"""Candidates of many blocks at once, against one position after the other in plain Python."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from redraft.decoding.candidates import Ask, Candidates, Selection
from redraft.decoding.canvas import Canvas
from redraft.decoding.modes import policy_of
from redraft.decoding.sampling import uniforms
from redraft.decoding.selection import select
from redraft.types import SamplingParams

MASK, VOCAB = 5, 11


def blank(length: int, prompt: tuple[int, ...] = ()) -> Canvas:
    return Canvas.blank(0, length, MASK, prompt)


def one(
    logits: Tensor,
    canvas: Canvas,
    selection: Selection,
    left: int | None = None,
    counts: Mapping[int, int] | None = None,
) -> Candidates:
    """Candidates of one block, every position wanted. The hidden states are the logits."""
    return select(Tensor.clone, logits, [Ask(canvas, selection, np.arange(len(logits)), left, counts or {})])[0]


def test_greedy_takes_the_argmax_and_ties_go_to_the_lowest_id() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0, 2.0, 2.0]])
    assert one(logits, blank(2), Selection((MASK,))).token.tolist() == [1, 0]


def test_banned_ids_are_never_proposed_but_count_in_the_confidence() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0, 9.0]])
    found = one(logits, blank(1), Selection((MASK,)))
    assert found.token.tolist() == [1]
    assert found.prob[0] == pytest.approx(logits.softmax(-1)[0, 1].item(), rel=1e-6)
    assert one(logits, blank(1), Selection((MASK, 1))).token.tolist() == [0]


def test_plain_greedy_is_the_plain_formula_bit_for_bit() -> None:
    logits = torch.randn(32, 500)
    found = one(logits, blank(32), Selection((MASK,)))
    token = logits.index_fill(-1, torch.tensor([MASK]), -torch.inf).argmax(-1)
    prob = (logits.gather(-1, token[:, None])[:, 0] - logits.logsumexp(-1)).exp()
    assert found.token.tolist() == token.tolist()
    assert (found.prob.dtype, found.prob.tolist()) == (np.float32, prob.tolist())
    assert found.logprobs is None


@pytest.mark.parametrize("vocabulary", [384, 400])  # whole runs, and not
def test_the_maximum_by_runs_is_the_lowest_id_of_the_largest(vocabulary: int) -> None:
    """Logits of few values, so that the largest stands in several runs and several times in a run."""
    logits = torch.randint(-3, 4, (64, vocabulary), generator=torch.Generator().manual_seed(0)).double()
    logits[0, :] = 0.0
    logits[1, 200:] = torch.nan
    found = one(logits, blank(64), Selection((MASK,)))
    allowed = logits.index_fill(-1, torch.tensor([MASK]), -torch.inf)
    assert found.token[0] == 0 and found.token[2:].tolist() == [
        next(i for i, value in enumerate(row) if value == max(row)) for row in allowed[2:].tolist()
    ]
    assert found.finite.tolist() == [True, False] + [True] * 62


def test_sums_in_strips_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(10, 50, dtype=torch.float64)
    whole = one(logits, blank(10), Selection((MASK,)))
    monkeypatch.setattr("redraft.decoding.selection.SUM_LOGITS", 150)  # three rows at once
    assert np.array_equal(one(logits, blank(10), Selection((MASK,))).prob, whole.prob)
    monkeypatch.setattr("redraft.decoding.selection.SUM_LOGITS", 1)
    np.testing.assert_allclose(one(logits, blank(10), Selection((MASK,))).prob, whole.prob, rtol=1e-12)


def test_only_masked_positions_are_drawn() -> None:
    torch.manual_seed(2)
    logits = torch.randn(64, 6) * 0.01
    canvas = blank(64, prompt=(1,) * 32)
    found = one(logits, canvas, Selection((MASK,), temperature=5.0, seed=1))
    greedy = one(logits, canvas, Selection((MASK,)))
    assert (found.token[:32] == greedy.token[:32]).all()
    assert (found.token[32:] != greedy.token[32:]).any()


def test_positions_that_are_not_wanted_propose_what_they_hold() -> None:
    canvas = blank(4, (3, 9)).write(np.array([False, False, True, False]), np.array([0, 0, 7, 0]), np.full(4, 0.25))
    logits = torch.zeros(1, VOCAB)
    logits[0, 8] = torch.nan
    found = select(Tensor.clone, logits, [Ask(canvas, Selection((MASK,), logprobs=2), np.array([3]))])[0]
    assert found.token[:3].tolist() == [3, 9, 7]
    assert found.prob[:3].tolist() == [1, 1, 0.25]
    assert found.finite.tolist() == [True, True, True, False]


def test_nothing_wanted_asks_nothing_of_the_head() -> None:
    canvas = blank(2)
    for asks in ([], [Ask(canvas, Selection((MASK,), 1.0, logprobs=1), np.array([], dtype=np.int64))]):
        found = select(lambda hidden: pytest.fail("no rows"), torch.empty(0, 3), asks)
        assert [each.token.tolist() for each in found] == [[MASK, MASK]] * len(asks)
    with pytest.raises(ValueError, match="0 wanted positions"):
        select(Tensor.clone, torch.empty(1, 3), [])


@pytest.mark.parametrize("edit", ["off", 0.0])
def test_wanted_are_the_positions_that_a_step_may_write(edit: str | float) -> None:
    policy = policy_of(SamplingParams(edit_threshold=edit))
    canvas = blank(4, (3,))
    assert policy.wanted(canvas).tolist() == [1, 2, 3]
    canvas = canvas.write(np.arange(4) == 2, np.full(4, 7), np.ones(4))
    assert policy.wanted(canvas).tolist() == ([1, 3] if edit == "off" else [1, 2, 3])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_not_finite_are_marked_in_their_own_request_alone(bad: float, temperature: float) -> None:
    logits = torch.randn(9, VOCAB)
    selection = Selection((MASK,), temperature, top_p=0.9, seed=3, logit_bias={2: 1.0}, logprobs=2)
    settings = [selection, replace(selection, top_k=2), Selection((MASK,))]
    asks = [Ask(blank(3), each, np.arange(3)) for each in settings]
    sound = select(Tensor.clone, logits, asks)
    for row in range(9):
        broken = logits.clone()
        broken[row, 2] = bad
        found = select(Tensor.clone, broken, asks)
        assert np.concatenate([each.finite for each in found]).tolist() == [index != row for index in range(9)]
        for index, (each, expected) in enumerate(zip(found, sound, strict=True)):
            if index != row // 3:
                same(each, expected)


# Vectorised = one by one.


def plain(
    logits: list[float], ask: Ask, position: int, alternatives: int
) -> tuple[int, float, list[tuple[int, float]]]:
    """Token, log-probability and alternatives of one position, from the text of the specification."""
    canvas, selection = ask.canvas, ask.selection
    shaped = list(logits)
    for token, bias in selection.logit_bias.items():
        shaped[token] += bias
    for token, count in ask.counts.items():
        shaped[token] -= selection.frequency_penalty * count + selection.presence_penalty * (count > 0)
    left = ask.left if position == 0 else None if canvas.masked[position - 1] else int(canvas.tokens[position - 1])
    if left is not None:
        shaped[left] -= selection.stutter_penalty
    total = math.log(sum(math.exp(value) for value in shaped))
    order = sorted(set(range(len(shaped))) - set(selection.banned), key=lambda token: (-shaped[token], token))
    chosen = order[0]
    if selection.temperature > 0 and canvas.masked[position]:
        ranks = order[: selection.top_k or None]
        weights = [math.exp((shaped[token] - shaped[order[0]]) / selection.temperature) for token in ranks]
        kept = [w for i, w in enumerate(weights) if not i or sum(weights[:i]) < selection.top_p * sum(weights)]
        u = uniforms(selection.seed, selection.choice, canvas.block, canvas.step, len(canvas.tokens))[position]
        chosen = next(token for i, token in enumerate(ranks) if u * sum(kept) < sum(kept[: i + 1]))
    return chosen, shaped[chosen] - total, [(token, shaped[token] - total) for token in order[:alternatives]]


def random_ask(rng: random.Random) -> Ask:
    length = rng.choice([1, 4, 8])
    canvas = Canvas.blank(rng.randrange(9), length, MASK, [rng.randrange(VOCAB) for _ in range(rng.randrange(length))])
    written = ~canvas.prompt & np.array([rng.random() < 0.4 for _ in range(length)])
    for _ in range(rng.randrange(3)):
        canvas = canvas.write(written, np.array([rng.randrange(VOCAB) for _ in range(length)]), np.full(length, 0.5))
    policy = policy_of(SamplingParams(edit_threshold=rng.choice([0.0, "off"])))
    selection = Selection(
        banned=rng.choice([(MASK,), (MASK, 2, 3), ()]),
        temperature=rng.choice([0.0, 0.0, 0.4, 1.0, 3.0]),
        top_k=rng.choice([0, 1, 3, 7, 50]),
        top_p=rng.choice([1.0, 0.83, 0.31]),
        seed=rng.randrange(2**63),
        choice=rng.randrange(4),
        logit_bias=rng.choice([{}, {1: 4.0, 7: -30.0}, {rng.randrange(VOCAB): rng.uniform(-9, 9)}]),
        presence_penalty=rng.choice([0.0, 1.5, -2.0]),
        frequency_penalty=rng.choice([0.0, 0.7, -0.3]),
        stutter_penalty=rng.choice([0.0, 0.0, 2.5]),
        logprobs=rng.choice([None, None, 0, 1, 3, 20]),
    )
    counts = {rng.randrange(VOCAB): rng.randrange(4) for _ in range(rng.randrange(5))}
    return Ask(canvas, selection, policy.wanted(canvas), rng.choice([None, rng.randrange(VOCAB)]), counts)


def same(found: Candidates, expected: Candidates) -> None:
    for name in ("token", "prob", "finite"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()
    if expected.logprobs is None or found.logprobs is None:
        assert found.logprobs is expected.logprobs
        return
    for name in ("token", "ids", "values"):
        assert getattr(found.logprobs, name).tolist() == getattr(expected.logprobs, name).tolist()


@given(st.integers(0, 2**32), st.integers(1, 7), st.sampled_from([0.0, 1.0]))
def test_many_blocks_at_once_are_one_position_after_the_other(seed: int, requests: int, rounded: float) -> None:
    rng = random.Random(seed)
    asks = [random_ask(rng) for _ in range(requests)]
    sizes = [len(ask.wanted) for ask in asks]
    logits = torch.randn(sum(sizes), VOCAB, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2
    logits = logits.round() if rounded else logits  # with ties
    found = select(Tensor.clone, logits, asks, rows=rng.choice([1, 3, 256]))
    for each, ask, rows in zip(found, asks, logits.split(sizes), strict=True):
        same(each, select(Tensor.clone, rows, [ask])[0])
        assert each.finite.all()
        for row, position in zip(rows.tolist(), ask.wanted.tolist(), strict=True):
            token, logprob, top = plain(row, ask, position, ask.selection.logprobs or 0)
            if not rounded:  # else sums of equal weights lie on the very edge of top_p
                assert each.token[position] == token
                assert each.prob[position] == pytest.approx(math.exp(logprob), rel=1e-12)
            if each.logprobs is not None:
                listed = each.logprobs.listed(each.token)[position]
                assert listed.token == each.token[position]
                assert listed.logprob == pytest.approx(math.log(each.prob[position]), abs=1e-12)
                assert [token for token, _ in listed.top] == [token for token, _ in top]
                assert [value for _, value in listed.top] == pytest.approx([value for _, value in top], abs=1e-12)


def test_the_head_in_chunks_is_the_whole_head() -> None:
    rng = random.Random(4)
    asks = [random_ask(rng) for _ in range(12)]
    hidden = torch.randn(sum(len(ask.wanted) for ask in asks), 6, dtype=torch.float64)
    weight = torch.randn(6, VOCAB, dtype=torch.float64)
    seen: list[int] = []

    def head(part: Tensor) -> Tensor:
        seen.append(len(part))
        return part @ weight

    whole = select(head, hidden, asks)
    assert seen == [len(hidden)], "one product while it fits"
    seen.clear()
    for found, expected in zip(select(head, hidden, asks, rows=5), whole, strict=True):
        assert found.token.tolist() == expected.token.tolist()
        np.testing.assert_allclose(found.prob, expected.prob, rtol=1e-12)
    assert max(seen) == 5 and sum(seen) == len(hidden)


def test_hidden_states_stay_as_they_are() -> None:
    hidden = torch.randn(3, 6)
    before = hidden.clone()
    head = torch.nn.Linear(6, VOCAB)
    select(head, hidden, [Ask(blank(3), Selection((MASK,), 1.0, logit_bias={1: 2.0}), np.arange(3))])
    assert torch.equal(hidden, before)


# Bias and penalties, one by one.


def test_bias_moves_choice_and_confidence_and_may_not_bring_back_what_is_banned() -> None:
    logits = torch.zeros(1, VOCAB, dtype=torch.float64)
    found = one(logits, blank(1), Selection((MASK,), logit_bias={7: 3.0, MASK: 5.0, 1: -1.0}))
    assert found.token.tolist() == [7]
    weights = math.exp(3) + math.exp(5) + math.exp(-1) + 8
    assert found.prob[0] == pytest.approx(math.exp(3) / weights)


@pytest.mark.parametrize(("presence", "frequency"), [(0.5, 0.0), (0.0, 0.4), (-1.0, 0.25), (2.0, 2.0)])
def test_presence_and_frequency_count_committed_tokens(presence: float, frequency: float) -> None:
    logits = torch.randn(4, VOCAB, dtype=torch.float64)
    counts = {1: 1, 3: 5, 4: 0, 10: 2}
    expected = logits.clone()
    for token, count in counts.items():
        for _ in range(count):
            expected[:, token] -= frequency
        if count:
            expected[:, token] -= presence
    canvas = blank(4, (3, 3))  # what stands in the open block or the prompt doesn't count
    selection = Selection((MASK,), presence_penalty=presence, frequency_penalty=frequency)
    found, wanted = one(logits, canvas, selection, None, counts), one(expected, canvas, Selection((MASK,)))
    assert found.token.tolist() == wanted.token.tolist()
    np.testing.assert_allclose(found.prob, wanted.prob, rtol=1e-12)


@pytest.mark.parametrize("left", [None, 2])
def test_stutter_looks_at_the_token_to_the_left_and_never_at_a_mask(left: int | None) -> None:
    canvas = blank(6, (MASK,)).write(np.isin(np.arange(6), (1, 4)), np.full(6, 8), np.full(6, 0.5))
    logits = torch.randn(6, VOCAB, dtype=torch.float64)
    expected = logits.clone()
    for position, before in enumerate([left, MASK, 8, None, None, 8]):  # a mask id that the prompt holds is a token
        if before is not None:
            expected[position, before] -= 1.7
    found = one(logits, canvas, Selection((MASK,), stutter_penalty=1.7), left)
    wanted = one(expected, canvas, Selection((MASK,)))
    assert found.token.tolist() == wanted.token.tolist()
    np.testing.assert_allclose(found.prob, wanted.prob, rtol=1e-12)


def test_temperature_and_filters_leave_the_confidence_alone() -> None:
    logits = torch.randn(4, VOCAB, dtype=torch.float64)
    found = one(logits, blank(4), Selection((MASK,), 3.0, top_k=2, seed=3, stutter_penalty=1.0))
    expected = logits.softmax(-1).gather(-1, torch.from_numpy(found.token)[:, None])[:, 0]
    np.testing.assert_allclose(found.prob, expected.numpy(), rtol=1e-12)


@given(st.integers(0, 2**32), st.floats(0.1, 5))
def test_one_token_to_draw_from_is_greedy(seed: int, temperature: float) -> None:
    logits = torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(seed))
    greedy = one(logits, blank(8), Selection((MASK,)))
    hot = Selection((MASK,), temperature, seed=seed)
    for filtered in (replace(hot, top_k=1), replace(hot, top_p=1e-9)):
        same(one(logits, blank(8), filtered), greedy)
