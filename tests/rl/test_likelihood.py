"""The block likelihood is what block-by-block evaluation gives, and estimates the bound that enumeration gives."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny import tiny_model
from tests.training.test_layout import EOS, MASK, MODEL, conversation, some_documents

from redraft.errors import ConfigError
from redraft.model.attention import MaskedAttention, block_causal_mask
from redraft.model.network import LLaDA2
from redraft.rl.composite import Composite, LikelihoodConfig, composite, composites, response_terms
from redraft.rl.likelihood import likelihood, stored
from redraft.training.layout import lay_out
from redraft.training.objective import Draws
from redraft.types import Sample

SMALL: dict[str, Any] = MODEL | {"num_hidden_layers": 2}
DRAWS = Draws(seed=3, step=5, mask_id=MASK, eos_ids=(EOS,), block_length=4, replacements=np.arange(40))
MODES = [
    LikelihoodConfig(levels=3),
    LikelihoodConfig(levels=3, edits=True, corrupt=0.4),
    LikelihoodConfig(levels=3, edits=True, corrupt=0.4, edit_weight=0.5, keep_weight=0.25),
]


def log_p(model: LLaDA2, clean: np.ndarray, block: np.ndarray, length: int = 4) -> torch.Tensor:
    """[length, V]: a plain forward over true earlier blocks and one block as it is."""
    tokens = torch.from_numpy(np.concatenate((clean, block))).long()
    positions = torch.arange(len(tokens))
    attend = MaskedAttention(block_causal_mask(positions, positions, length))
    with torch.no_grad():
        hidden = model(tokens[None], positions[None], attend, positions[None] // length)
        return model.head(hidden[0, len(clean) :]).log_softmax(-1)


@pytest.mark.parametrize("config", MODES)
@pytest.mark.parametrize("block_routing", [None, 3])
def test_it_is_block_by_block_evaluation(config: LikelihoodConfig, block_routing: int | None) -> None:
    model, samples = tiny_model(**SMALL, block_routing=block_routing), some_documents()
    batch = composite(samples, config, DRAWS)
    layout, noisy = batch.layout, batch.noisy
    with torch.no_grad():
        ours = likelihood(model, batch).by_block
    expected = torch.zeros_like(ours)
    for unit, number in enumerate(batch.document_U.tolist()):
        here = torch.nonzero(layout.unit_N == unit).flatten()
        clean = samples[number].tokens[: int(layout.block_U[unit]) * 4]
        for copy in range(config.levels):
            seen = log_p(model, clean, noisy.tokens_MN[copy, here].numpy())
            terms = seen.gather(1, layout.target_N[here, None]).squeeze(1)
            expected[unit] += (batch.weight_MN[copy, here] * terms).sum()
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)
    assert (ours < 0).all()


def response(answered: int, said: int = 1) -> Sample:
    return conversation(np.random.default_rng(2), [(said, answered)])


def orders(model: LLaDA2, sample: Sample, block: int, places: list[int]) -> list[float]:
    """log p of a block's response tokens for every order in which they can appear; what follows the EOS is shown with
    it."""
    full = np.full((block + 1) * 4, EOS, np.int64)
    full[: len(sample.tokens)] = sample.tokens[: len(full)]
    fill = [i for i in range(block * 4, len(full)) if i >= len(sample.tokens)]
    out = []
    for order in permutations(places):
        total = 0.0
        for i, place in enumerate(order):
            hidden = set(order[i:])
            if len(sample.tokens) - 1 in hidden:
                hidden |= set(fill)
            seen = full.copy()
            seen[[*hidden]] = MASK
            total += float(log_p(model, full[: block * 4], seen[block * 4 :])[place - block * 4, full[place]])
        out.append(total)
    return out


def exact(model: LLaDA2, sample: Sample, block: int, places: list[int]) -> float:
    """Σ_k 1/k E_{|S|=k} Σ_{i in S} log p, over every S."""
    full = np.full((block + 1) * 4, EOS, np.int64)
    full[: len(sample.tokens)] = sample.tokens[: len(full)]
    total = 0.0
    for k in range(1, len(places) + 1):
        for chosen in combinations(places, k):
            hidden = [*chosen]
            if len(sample.tokens) - 1 in hidden:
                hidden += [i for i in range(block * 4, len(full)) if i >= len(sample.tokens)]
            seen = full.copy()
            seen[hidden] = MASK
            predicted = log_p(model, full[: block * 4], seen[block * 4 :])
            total += sum(float(predicted[i - block * 4, full[i]]) for i in chosen) / k / math.comb(len(places), k)
    return total


BLOCKS = {0: [1, 2, 3], 1: [4, 5, 6]}  # of `response(6)`: seven tokens, the last of them EOS, then one of filling


def test_the_bound_is_the_mean_over_orders_and_lies_below_the_likelihood_averaged_over_them() -> None:
    model = tiny_model(**SMALL)
    for block, places in BLOCKS.items():
        each = np.array(orders(model, response(6), block, places))
        bound = exact(model, response(6), block, places)
        assert bound == pytest.approx(each.mean(), rel=1e-10)
        averaged = np.log(np.exp(each).mean())
        assert bound < averaged - 1e-3


def drawn(model: LLaDA2, levels: int, rounds: int, config: LikelihoodConfig | None = None) -> np.ndarray:
    """[rounds]: independent estimates of one response."""
    config = replace(config or LikelihoodConfig(), levels=levels)
    samples = [replace(response(6), index=i) for i in range(rounds)]
    with torch.no_grad():
        return likelihood(model, composite(samples, config, DRAWS)).by_document.numpy()


def test_the_mean_of_the_estimates_is_the_bound_and_their_error_falls_with_the_levels() -> None:
    model, rounds = tiny_model(**SMALL), 250
    truth = sum(exact(model, response(6), block, places) for block, places in BLOCKS.items())
    spread = {}
    for levels in (1, 4, 12):
        estimates = drawn(model, levels, rounds)
        spread[levels] = estimates.std(ddof=1)
        assert abs(estimates.mean() - truth) < 3 * spread[levels] / rounds**0.5
    # At least as 1/sqrt(N), within the precision of a spread that is estimated from this many rounds.
    precision = 3 / (2 * rounds) ** 0.5
    assert spread[4] < spread[1] / 2 * (1 + precision)
    assert spread[12] < spread[1] / 12**0.5 * (1 + precision)


def test_shared_noise_takes_most_of_the_variance_out_of_a_log_ratio() -> None:
    old, new = tiny_model(**SMALL), tiny_model(**SMALL)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, dtype=parameter.dtype)
        config = LikelihoodConfig(levels=2)
        samples = [replace(response(6), index=i) for i in range(200)]
        batch = composite(samples, config, DRAWS)
        other = composite(samples, config, replace(DRAWS, step=6))
        before = likelihood(old, batch).by_document
        shared = likelihood(new, batch).by_document - before
        independent = likelihood(new, other).by_document - before
    assert shared.var() < 0.25 * independent.var()
    assert abs(shared.mean() - independent.mean()) < 4 * (independent.var() / 200) ** 0.5


@pytest.mark.parametrize("config", MODES[1:])
def test_edit_terms_are_the_corrupted_positions_divided_by_their_share(config: LikelihoodConfig) -> None:
    batch = composite([replace(response(6), index=i) for i in range(500)], config, DRAWS)
    terms_N = response_terms(batch.layout, (EOS,))
    visible = terms_N & ~batch.noisy.masked_MN
    wrong = visible & (batch.noisy.tokens_MN != batch.layout.target_MN)
    assert (batch.weight_MN[wrong] == config.edit_weight / 0.4 / 3).all()
    kept = batch.weight_MN[visible & ~wrong]
    torch.testing.assert_close(kept, torch.full_like(kept, config.keep_weight / 0.6 / 3))
    assert float(wrong.sum() / visible.sum()) == pytest.approx(0.4, abs=0.04)
    assert (batch.weight_MN[:, ~terms_N] == 0).all()
    assert not (wrong & (batch.noisy.tokens_MN >= 40)).any()


@given(st.integers(0, 1000), st.sampled_from([1, 2, 5]))
def test_what_follows_the_end_has_no_term_and_is_masked_where_the_end_is(seed: int, levels: int) -> None:
    layout = lay_out(some_documents(seed), 4, (EOS,))
    batch = composite(some_documents(seed), LikelihoodConfig(levels=levels, edits=True), replace(DRAWS, seed=seed))
    terms_N, masked_MN = response_terms(layout, (EOS,)), batch.noisy.masked_MN
    for unit in range(int(layout.unit_N.max()) + 1):
        here = torch.nonzero((layout.unit_N == unit) & layout.supervised_N).flatten()
        ends = [i for i in here.tolist() if layout.target_N[i] == EOS]
        expected = [i for i in here.tolist() if not ends or i <= ends[0]]
        assert [i for i in here.tolist() if terms_N[i]] == expected
        assert (masked_MN[:, expected].sum(1) > 0).all()
        if ends:
            assert (masked_MN[:, ends] == masked_MN[:, ends[:1]]).all()
            assert not batch.terms_MN[:, ends[1:]].any()


@pytest.mark.parametrize("config", MODES)
def test_neither_micro_batches_nor_other_documents_change_a_likelihood(config: LikelihoodConfig) -> None:
    model, samples = tiny_model(**SMALL), some_documents()
    together = likelihood(model, composite(samples, config, DRAWS)).by_document
    values = {}
    parts = composites(samples, config, DRAWS, length=30)
    assert len(parts) > 2
    for part in parts:
        for document, value in zip(part.layout.documents, likelihood(model, part).by_document, strict=True):
            values[document.index] = value
    torch.testing.assert_close(torch.stack([values[s.index] for s in samples]), together, rtol=1e-10, atol=1e-10)


def test_the_same_seeds_give_the_same_noise_and_stored_values_are_those_of_the_terms() -> None:
    model = tiny_model(**SMALL)
    one, two = (composite(some_documents(), MODES[2], DRAWS) for _ in range(2))
    assert torch.equal(one.noisy.tokens_MN, two.noisy.tokens_MN) and torch.equal(one.weight_MN, two.weight_MN)
    (kept,) = stored(model, [one])
    assert torch.equal(kept, likelihood(model, two, entropy=True).log_p_K.detach())
    assert not kept.requires_grad


def test_entropy_is_that_of_the_predictions() -> None:
    model = tiny_model(**SMALL)
    out = likelihood(model, composite(some_documents(), MODES[0], DRAWS), entropy=True)
    assert out.entropy_K is not None and not out.entropy_K.requires_grad
    assert (out.entropy_K > 0).all() and (out.entropy_K < math.log(50)).all()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"levels": 0}, "likelihood.levels must be at least 1, got 0"),
        ({"noise": "white"}, "likelihood.noise"),
        ({"corrupt": 0.0}, "likelihood.corrupt"),
        ({"corrupt": 1.0}, "likelihood.corrupt"),
        ({"edit_weight": -1.0}, "likelihood.edit_weight"),
        ({"keep_weight": 0.5}, "no effect without likelihood.edits"),
        ({"noise": "steps", "edits": True}, "likelihood.edits must be false"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        LikelihoodConfig(**changes)


def test_replayed_noise_needs_trajectories() -> None:
    with pytest.raises(ConfigError, match="needs the trajectories"):
        composite(some_documents(), LikelihoodConfig(noise="trajectory"), DRAWS)


def test_a_composite_moves_as_a_whole() -> None:
    moved: Composite = composite(some_documents(), MODES[0], DRAWS).to(torch.device("cpu"))
    assert moved.weight_K.device.type == "cpu"
