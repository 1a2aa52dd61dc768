"""Epochs are complete, mixtures have exact shares, and packing loses nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.errors import ConfigError
from redraft.training.data.order import WINDOW, Epochs, Mixture, permutation
from redraft.training.data.pack import pack
from redraft.types import Pair, Sample


@given(st.integers(1, 60), st.integers(0, 2**63), st.integers(0, 5))
def test_every_epoch_has_every_row_once_in_an_order_of_its_own(rows: int, seed: int, epoch: int) -> None:
    epochs = Epochs(rows, seed)
    drawn = [epochs[epoch * rows + i] for i in range(rows)]
    assert sorted(drawn) == list(range(rows))
    assert drawn == [Epochs(rows, seed)[epoch * rows + i] for i in reversed(range(rows))][::-1]
    assert [Epochs(rows, seed, shuffle=False)[i] for i in range(2 * rows)] == [*range(rows), *range(rows)]


def test_orders_differ_between_epochs_and_seeds() -> None:
    orders = {tuple(Epochs(20, seed)[epoch * 20 + i] for i in range(20)) for seed in (0, 1) for epoch in range(3)}
    assert len(orders) == 6


def test_permutations_are_those_of_any_version_of_numpy() -> None:
    assert permutation(8, 7, 1, 0).tolist() == [1, 3, 2, 7, 4, 5, 0, 6]


def test_permutations_are_uniform() -> None:
    counts = np.zeros((4, 4))
    for seed in range(800):
        counts[np.arange(4), permutation(4, seed)] += 1
    assert abs(counts - 200).max() < 60  # five standard deviations


@given(st.lists(st.floats(0.02, 10), min_size=1, max_size=5), st.integers(0, 2**63), st.integers(0, 3))
def test_shares_are_exact_in_every_window(weights: list[float], seed: int, window: int) -> None:
    mixture = Mixture(weights, seed)
    assert int(mixture.counts.sum()) == WINDOW
    assert all(abs(mixture.counts / WINDOW - np.array(weights) / sum(weights)) < 1 / WINDOW)
    drawn = [mixture[i] for i in range(window * WINDOW, (window + 1) * WINDOW)]
    for source, count in enumerate(mixture.counts.tolist()):
        draws = [draw for chosen, draw in drawn if chosen == source]
        assert draws == list(range(window * count, (window + 1) * count))


def test_a_weight_that_would_never_be_drawn_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"weight 0\.001 of 9\.001"):
        Mixture([9, 0.001], 0)


def samples(lengths: list[int]) -> list[Sample]:
    return [Sample(np.zeros(length, np.int32), np.ones(length, bool), i) for i, length in enumerate(lengths)]


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(50, 120), st.randoms(use_true_random=False))
def test_packing_keeps_every_document_once(lengths: list[int], length: int, rng: random.Random) -> None:
    documents = samples(lengths)
    rows = pack(documents, length)
    assert sorted(document.index for row in rows for document in row) == list(range(len(lengths)))
    assert all(sum(map(len, row)) <= length for row in rows)
    if len(rows) > 1:  # no two rows would fit into one
        sizes = sorted(sum(map(len, row)) for row in rows)
        assert sizes[0] + sizes[1] > length
    shuffled = documents.copy()
    rng.shuffle(shuffled)
    again = pack(shuffled, length)
    assert [[d.index for d in row] for row in again] == [[d.index for d in row] for row in rows]


def test_packing_fills_rows() -> None:
    assert [[len(d) for d in row] for row in pack(samples([3, 5, 7, 1, 2, 6]), 8)] == [[7, 1], [6, 2], [5, 3]]


def test_pairs_are_packed_by_both_their_answers() -> None:
    a, b, c = samples([3, 4, 2])
    assert [[pair.index for pair in row] for row in pack([Pair(a, b, 0), Pair(a, c, 1), Pair(c, c, 2)], 9)] == [
        [0],
        [1, 2],
    ]


def test_a_document_that_is_too_long_for_a_row_is_named() -> None:
    with pytest.raises(ConfigError, match=r"batch\.length is 8, but document 1 has 9 positions"):
        pack(samples([3, 9]), 8)
