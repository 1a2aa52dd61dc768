from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from redraft.decoding.sampling import draw, ranked, uniforms


def draws(
    logits: Tensor, uniform: np.ndarray | list[float], temperature: float, top_k: int = 0, top_p: float = 1.0
) -> list[int]:
    """`draw` with the same settings for every row."""
    count = len(logits)
    heat, share = (torch.full((count,), value, dtype=torch.float64) for value in (temperature, top_p))
    limits = torch.full((count,), top_k) if top_k else None
    return draw(logits, torch.as_tensor(uniform, dtype=torch.float64), heat, share, limits).tolist()


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
    drawn = draws(torch.tensor([logits], dtype=torch.float64), [uniform], temperature, top_k, top_p)[0]
    rank = order.index(drawn)
    assert kept[rank] > 0 or prob[:rank].sum() == pytest.approx(top_p)
    below = mass[rank - 1] if rank else 0.0
    assert below - 1e-9 <= target <= mass[rank] + 1e-9 or prob[:rank].sum() == pytest.approx(top_p)


def test_frequencies_follow_the_distribution() -> None:
    prob = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    drawn = draws(prob.log().expand(4000, 4), uniforms(1, 0, 0, 0, 4000), 1.0)
    assert (torch.bincount(torch.tensor(drawn), minlength=4) / 4000 - prob).abs().max() < 0.03


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"temperature": 1.0, "top_k": 1}, {2}),
        ({"temperature": 1.0, "top_p": 1e-9}, {2}),
        ({"temperature": 1e-300}, {2, 3}),
        ({"temperature": 100.0}, {0, 2, 3}),
    ],
)
def test_filters_and_cold_draws_end_in_the_argmax(settings: dict, allowed: set[int]) -> None:
    logits = torch.tensor([[0.0, -torch.inf, 2.0, 2.0]]).expand(50, 4)
    assert set(draws(logits, uniforms(0, 0, 0, 0, 50), **settings)) == allowed


@given(st.integers(0, 2**32), st.integers(1, 9), st.sampled_from([torch.float32, torch.float64]))
def test_ranks_are_those_of_a_stable_sort(seed: int, count: int, dtype: torch.dtype) -> None:
    """Few different values, so that ties lie on both sides of the last rank."""
    logits = torch.randint(0, 4, (5, 7), generator=torch.Generator().manual_seed(seed)).to(dtype)
    logits[0, ::2], logits[1, 1:] = -torch.inf, -torch.inf
    values, ids = ranked(logits, count)
    expected, order = logits.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(values, expected[:, :count])
    assert torch.equal(ids, order[:, :count])
