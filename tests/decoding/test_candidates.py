from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from redraft.decoding.candidates import Selection, draw, select, uniforms
from redraft.decoding.canvas import Canvas

MASK = 5


def blank(length: int, prompt: tuple[int, ...] = ()) -> Canvas:
    return Canvas.blank(0, length, MASK, prompt)


def test_greedy_takes_the_argmax_and_ties_go_to_the_lowest_id() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0, 2.0, 2.0]])
    assert select(logits, blank(2), Selection((MASK,))).token.tolist() == [1, 0]


def test_banned_ids_are_never_proposed_but_count_in_the_confidence() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0, 9.0]])
    found = select(logits, blank(1), Selection((MASK,)))
    assert found.token.tolist() == [1]
    assert found.prob[0] == pytest.approx(logits.softmax(-1)[0, 1].item(), rel=1e-6)
    both = select(logits, blank(1), Selection((MASK, 1)))
    assert both.token.tolist() == [0]


def test_select_leaves_its_logits_alone() -> None:
    logits = torch.randn(3, 6)
    before = logits.clone()
    select(logits, blank(3), Selection((MASK,), temperature=1.0))
    assert torch.equal(logits, before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_positions_with_logits_that_are_not_finite_are_marked(bad: float) -> None:
    logits = torch.zeros(3, 6)
    logits[1, 2] = bad
    assert select(logits, blank(3), Selection((MASK,))).finite.tolist() == [True, False, True]


def test_confidence_of_a_draw_is_unfiltered_and_at_temperature_one() -> None:
    torch.manual_seed(1)
    logits = torch.randn(4, 6, dtype=torch.float64)
    found = select(logits, blank(4), Selection((MASK,), temperature=3.0, top_k=2, seed=3))
    expected = logits.softmax(-1).gather(-1, torch.from_numpy(found.token)[:, None])[:, 0]
    np.testing.assert_allclose(found.prob, expected.numpy(), rtol=1e-12)


def test_only_masked_positions_are_drawn() -> None:
    torch.manual_seed(2)
    logits = torch.randn(64, 6) * 0.01
    canvas = blank(64, prompt=(1,) * 32)
    found = select(logits, canvas, Selection((MASK,), temperature=5.0, seed=1))
    greedy = select(logits, canvas, Selection((MASK,)))
    assert (found.token[:32] == greedy.token[:32]).all()
    assert (found.token[32:] != greedy.token[32:]).any()


def test_draws_are_keyed_by_seed_choice_block_step_and_position() -> None:
    base = uniforms(7, 0, 3, 2, 32)
    assert ((base >= 0) & (base < 1)).all()
    assert len(set(base.tolist())) == 32
    assert (uniforms(7, 0, 3, 2, 8) == base[:8]).all()
    for key in [(8, 0, 3, 2), (7, 1, 3, 2), (7, 0, 4, 2), (7, 0, 3, 3), (7, 0, 2, 3)]:
        assert not (uniforms(*key, 32) == base).any()
    assert (uniforms(2**63 - 1, 0, 0, 0, 4) < 1).all()


def test_draw_values_are_pinned() -> None:
    """A seed must give the same text in every release."""
    assert uniforms(0, 0, 0, 0, 2).tolist() == [0.011546754286331562, 0.24154919656271812]
    assert uniforms(123456789, 1, 4, 2, 2).tolist() == [0.6067301281992104, 0.3264855037792026]


@example([1.0, -1e-271, 0.0], 0.75, 1.0, 2, 1.0)  # apart as they stand, equal once the maximum is subtracted
@given(
    st.lists(st.floats(-8, 8), min_size=2, max_size=12),
    st.floats(0, 1, exclude_max=True),
    st.floats(0.05, 5),
    st.integers(0, 6),
    st.floats(0.05, 1),
)
def test_draw_is_the_inverse_cdf_of_the_filtered_distribution(
    logits: list[float], uniform: float, temperature: float, top_k: int, top_p: float
) -> None:
    order = sorted(range(len(logits)), key=lambda index: (-logits[index], index))[: top_k or None]
    weight = [np.exp((logits[index] - max(logits)) / temperature) for index in order]
    prob = np.array(weight) / sum(weight)
    kept = [float(p) if prob[:rank].sum() < top_p else 0.0 for rank, p in enumerate(prob)]
    mass = np.cumsum(kept)
    target = uniform * mass[-1]
    drawn = draw(
        torch.tensor([logits], dtype=torch.float64),
        torch.tensor([uniform], dtype=torch.float64),
        Selection((), temperature, top_k, top_p),
    ).item()
    rank = order.index(int(drawn))
    assert kept[rank] > 0 or prob[:rank].sum() == pytest.approx(top_p)
    below = mass[rank - 1] if rank else 0.0
    assert below - 1e-9 <= target <= mass[rank] + 1e-9 or prob[:rank].sum() == pytest.approx(top_p)


def test_frequencies_follow_the_distribution() -> None:
    prob = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    draws = draw(prob.log().expand(4000, 4), torch.from_numpy(uniforms(1, 0, 0, 0, 4000)), Selection((), 1.0))
    counts = torch.bincount(draws, minlength=4) / 4000
    assert (counts - prob).abs().max() < 0.03


@pytest.mark.parametrize(
    ("selection", "allowed"),
    [
        (Selection((), 1.0, top_k=1), {2}),
        (Selection((), 1.0, top_p=1e-9), {2}),
        (Selection((), 1e-300), {2, 3}),
        (Selection((), 100.0), {0, 2, 3}),
    ],
)
def test_filters_and_cold_draws_end_in_the_argmax(selection: Selection, allowed: set[int]) -> None:
    logits = torch.tensor([[0.0, -torch.inf, 2.0, 2.0]]).expand(50, 4)
    draws = draw(logits, torch.from_numpy(uniforms(0, 0, 0, 0, 50)), selection)
    assert set(draws.tolist()) == allowed
