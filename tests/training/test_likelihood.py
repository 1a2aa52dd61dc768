"""The bound drawn at random agrees with the sum over all masks, which is that of every order of unmasking."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations, permutations
from math import comb
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny import tiny_model
from tests.training.test_layout import EOS, MASK, MODEL, conversation, some_documents

from redraft.errors import InvalidInput
from redraft.model.attention import MaskedAttention, block_causal_mask
from redraft.model.network import LLaDA2
from redraft.training.layout import Layout, lay_out
from redraft.training.likelihood import (
    Estimator,
    all_masks,
    document_elbo,
    elbo_masks,
    estimate,
    masks_of,
)
from redraft.training.noise import NoiseConfig, add_noise
from redraft.types import Sample

SMALL: dict[str, Any] = MODEL | {"num_hidden_layers": 2}


def exact(model: LLaDA2, documents: list[Sample], length: int = 4) -> torch.Tensor:
    layout = lay_out(documents, length, (EOS,), copies=masks_of(length))
    with torch.no_grad():
        return document_elbo(model, layout, all_masks(layout, MASK))


def log_p(model: LLaDA2, sample: Sample, hidden: set[int], block: int, length: int) -> torch.Tensor:
    """[length, V] of the last block of a plain sequence with some of its positions masked."""
    tokens = torch.from_numpy(sample.tokens[: (block + 1) * length]).long()
    tokens[[*hidden]] = MASK
    positions = torch.arange(len(tokens))
    attend = MaskedAttention(block_causal_mask(positions, positions, length))
    out = model(tokens[None], positions[None], attend, positions[None] // length)
    return model.head(out[0, -length:]).log_softmax(-1)


def test_all_masks_sum_to_the_mean_over_all_orders() -> None:
    """By the definition: the log-likelihood of a block, averaged over the orders in which its tokens appear."""
    model, length = tiny_model(**SMALL), 3
    sample = conversation(np.random.default_rng(2), [(1, 5)])
    expected = 0.0
    with torch.no_grad():
        for block, places in ((0, [1, 2]), (1, [3, 4, 5])):
            orders = list(permutations(places))
            for order in orders:
                for i, place in enumerate(order):
                    predicted = log_p(model, sample, set(order[i:]), block, length)
                    expected += float(predicted[place - block * length, sample.tokens[place]]) / len(orders)
    assert float(exact(model, [sample], length)) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(("seed", "block_routing"), [(0, None), (1, None), (2, None), (3, 3)])
def test_the_estimate_agrees_with_enumeration(seed: int, block_routing: int | None) -> None:
    """Within three standard errors for all documents together, and the standard errors are of the right size."""
    model = tiny_model(seed=seed, **SMALL, block_routing=block_routing)
    documents = [replace(sample, index=10 * copy + i) for copy in range(3) for i, sample in enumerate(some_documents())]
    truth = exact(model, documents).numpy()
    drawn = estimate(model, documents, Estimator(block_length=4, mask_id=MASK, eos_ids=(EOS,), samples=16, seed=seed))
    elbo, error = (np.array([getattr(one, name) for one in drawn]) for name in ("elbo", "error"))
    total_error = np.sqrt((error**2).sum())
    assert 0 < total_error < 0.1 * abs(truth.sum())
    assert abs(elbo.sum() - truth.sum()) < 3 * total_error
    scaled = ((elbo - truth) ** 2).sum() / (error**2).sum()
    assert 0.3 < scaled < 3


def test_the_estimator_estimates_enumeration_and_its_spread_is_smaller_than_that_of_one_over_t() -> None:
    model, rounds = tiny_model(**SMALL), 30
    documents = [conversation(np.random.default_rng(i), [(3, 9)], i) for i in range(2)]
    layout = lay_out(documents, 4, (EOS,), copies=4)
    plain = NoiseConfig(ratio_min=0.0, full=0.0, replace_max=0.0, levels="stratified")
    with torch.no_grad():
        ours = torch.stack(
            [document_elbo(model, layout, elbo_masks(layout, seed=1, step=i, mask_id=MASK)) for i in range(rounds)]
        )
        theirs = torch.stack(
            [
                document_elbo(
                    model, layout, add_noise(layout, plain, seed=1, step=i, mask_id=MASK, replacements=np.arange(9))
                )
                for i in range(rounds)
            ]
        )
    truth = exact(model, documents)
    for drawn in (ours, theirs):  # 1/t over the whole range estimates the same
        assert ((drawn.mean(0) - truth).abs() < 3.5 * drawn.std(0) / rounds**0.5).all()
    assert (ours.var(0) < 0.5 * theirs.var(0)).all()


def expected_masks(layout: Layout) -> np.ndarray:
    return np.bincount(layout.unit_N[layout.supervised_N].numpy())


@given(st.integers(0, 10_000), st.sampled_from([1, 2, 4, 7]), st.sampled_from([1, 3, 4, 100]))
def test_masks_are_exact_in_number_and_stratified(seed: int, copies: int, length: int) -> None:
    layout = lay_out(some_documents(seed), length, (EOS,), copies=copies, fill=4)
    noisy, size_U = elbo_masks(layout, seed=seed, step=2, mask_id=MASK), expected_masks(layout)
    assert not (noisy.masked_MN & ~layout.supervised_N).any()
    assert torch.equal(noisy.tokens_MN == MASK, noisy.masked_MN)
    assert torch.equal(noisy.tokens_MN[~noisy.masked_MN], layout.target_MN[~noisy.masked_MN])
    k_MU = np.stack([np.bincount(layout.unit_N[row].numpy(), minlength=len(size_U)) for row in noisy.masked_MN])
    assert (k_MU >= 1).all() and (k_MU <= size_U).all()
    ratio = (k_MU / size_U)[:, layout.unit_N.numpy()]
    np.testing.assert_array_equal(noisy.ratio_MN[:, layout.supervised_N], ratio[:, layout.supervised_N.numpy()])
    # One level in each Mth of the range: with the k of a unit in order, the i-th lies between the ends of that part.
    part = np.arange(copies)[:, None]
    ordered = np.sort(k_MU, axis=0)
    assert (ordered >= 1 + np.floor(part * size_U / copies) - 1e-9).all()
    assert (ordered <= np.ceil((part + 1) * size_U / copies)).all()


def test_every_number_of_masks_and_every_set_of_one_size_is_equally_likely() -> None:
    sample = conversation(np.random.default_rng(0), [(0, 4)])
    layout = lay_out([replace(sample, index=i) for i in range(1500)], 4, (EOS,), copies=3)
    masked = elbo_masks(layout, seed=0, step=0, mask_id=MASK).masked_MN.unflatten(1, (-1, 4))
    counts = Counter(tuple(torch.nonzero(row).flatten().tolist()) for row in masked.flatten(0, 1))
    for k in range(1, 5):
        for subset in combinations(range(4), k):
            assert counts[subset] == pytest.approx(4500 / 4 / comb(4, k), rel=0.25)


def test_masks_do_not_depend_on_the_forward() -> None:
    documents = some_documents()
    whole = lay_out(documents, 4, (EOS,), copies=3)
    together = elbo_masks(whole, seed=1, step=2, mask_id=MASK)
    for document, sample in zip(whole.documents, documents, strict=True):
        alone = elbo_masks(lay_out([sample], 4, (EOS,), copies=3), seed=1, step=2, mask_id=MASK)
        assert torch.equal(together.masked_MN[:, document.noisy], alone.masked_MN)
    other = elbo_masks(whole, seed=1, step=2, mask_id=MASK, use=1)
    assert not torch.equal(other.masked_MN, together.masked_MN)


def test_all_masks_are_every_set_once() -> None:
    layout = lay_out(some_documents(), 4, (EOS,), copies=15)
    masked = all_masks(layout, MASK).masked_MN
    for unit, size in enumerate(expected_masks(layout)):
        here = (layout.unit_N == unit) & layout.supervised_N
        sets = {tuple(row.tolist()) for row in masked[:, here] if row.any()}
        assert len(sets) == masks_of(int(size)) == int(masked[:, here].any(dim=1).sum())


def test_estimates_do_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, documents = tiny_model(**SMALL), some_documents()
    estimator = Estimator(block_length=4, mask_id=MASK, eos_ids=(EOS,))
    done: list[tuple[int, int]] = []
    together = estimate(model, documents, estimator, lambda *progress: done.append(progress))
    monkeypatch.setattr("redraft.training.likelihood.POSITIONS", 150)
    apart = estimate(model, documents, estimator, lambda *progress: done.append(progress))
    assert done[0] == done[-1] == (6, 6) and len(done) > 4
    np.testing.assert_allclose([one.elbo for one in apart], [one.elbo for one in together], rtol=1e-10)
    np.testing.assert_allclose([one.error for one in apart], [one.error for one in together], rtol=1e-7)


def test_the_exact_estimate_is_enumeration_without_an_error() -> None:
    model, documents = tiny_model(**SMALL), some_documents()
    out = estimate(model, documents, Estimator(block_length=4, mask_id=MASK, eos_ids=(EOS,), samples=0))
    np.testing.assert_allclose([one.elbo for one in out], exact(model, documents).numpy(), rtol=1e-10)
    assert all(one.error == 0 for one in out)
    short = [conversation(np.random.default_rng(0), [(2, 2)])]  # no unit needs all 15 copies
    one = estimate(model, short, Estimator(block_length=4, mask_id=MASK, eos_ids=(EOS,), samples=0))
    assert one[0].elbo < 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"samples": 4}, "samples must be a multiple of 4, at least 8, got 4"),
        ({"samples": 10}, "samples"),
        ({"samples": -8}, "samples"),
        ({"samples": 0, "block_length": 5}, "1 to 4 supervised positions, got 5"),
        ({"block_length": 0}, "block_length"),
        ({"seed": -1}, "seed"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, int], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Estimator(**{"block_length": 4, "mask_id": MASK, "eos_ids": (EOS,)} | changes)  # type: ignore[arg-type]


def test_all_masks_need_their_number_of_copies() -> None:
    layout = lay_out(some_documents(), 4, (EOS,), copies=14)
    with pytest.raises(InvalidInput, match="15 copies, got 14"):
        all_masks(layout, MASK)
