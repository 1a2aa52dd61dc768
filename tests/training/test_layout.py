"""The vectorised forward gives each noisy block the logits of a plain forward over (clean earlier blocks, it)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiny import tiny_model

from redraft.model.attention import MaskedAttention, block_causal_mask
from redraft.training.forward import noisy_hidden
from redraft.training.layout import Layout, lay_out, spans
from redraft.training.noise import NoiseConfig, Noisy, add_noise
from redraft.training.visibility import DocumentAttention, FlexAttention, visible
from redraft.types import Sample

EOS, MASK = 48, 49
MODEL: dict[str, Any] = {
    "dtype": torch.float64,
    "wide": 0.3,
    "vocab_size": 50,
    "num_hidden_layers": 3,
    "block_length": 4,
}


def conversation(rng: np.random.Generator, turns: list[tuple[int, int]], index: int = 0, ends: bool = True) -> Sample:
    """A document of (unsupervised, supervised) stretches; a supervised one ends with EOS."""
    tokens, supervised = [], []
    for said, answered in turns:
        tokens += [*rng.integers(0, 40, said + answered)]
        supervised += [False] * said + [True] * answered
        if ends:
            tokens[-1] = EOS
    return Sample(np.array(tokens, np.int32), np.array(supervised), index)


def some_documents(seed: int = 1) -> list[Sample]:
    rng = np.random.default_rng(seed)
    kinds = ([(0, 12)], [(5, 9)], [(9, 3), (2, 1), (1, 6)], [(8, 16)], [(1, 2)], [(3, 7), (6, 11)])
    return [conversation(rng, turns, i) for i, turns in enumerate(kinds)]


def noise(layout: Layout, seed: int = 3, **config: Any) -> Noisy:
    return add_noise(layout, NoiseConfig(**config), seed=seed, step=5, mask_id=MASK, replacements=np.arange(40))


def units(layout: Layout) -> dict[tuple[int, int], tuple[slice, int]]:
    """(document, unit of all) -> (its positions of the N, its block)."""
    out = {}
    for number in range(len(layout.documents)):
        for unit in layout.unit_N[layout.document_N == number].unique().tolist():
            where = torch.nonzero(layout.unit_N == unit).flatten()
            out[number, unit] = (slice(int(where[0]), int(where[-1]) + 1), int(layout.block_U[unit]))
    return out


@pytest.mark.parametrize("block_routing", [None, 3])
@pytest.mark.parametrize("merge", [0.0, 1.0])
@pytest.mark.parametrize("length", [1, 4, 1000])
def test_vectorised_equals_sequential(block_routing: int | None, merge: float, length: int) -> None:
    model, samples = tiny_model(**MODEL, block_routing=block_routing), some_documents()
    layout = lay_out(samples, length, (EOS,), copies=2, fill=4)
    noisy = noise(layout, merge=merge, merge_blocks=3)
    vectorised = model.head(noisy_hidden(model, layout, noisy))
    compared = 0
    for copy in range(2):
        for (number, unit), (here, block) in units(layout).items():
            run = int(noisy.run_MN[copy, here.start])
            in_run = torch.nonzero(noisy.run_MN[copy] == run).flatten()
            before = int(layout.block_U[run]) * length
            clean = torch.from_numpy(samples[number].tokens[:before]).long()
            tokens = torch.cat((clean, noisy.tokens_MN[copy, in_run]))
            positions = torch.cat((torch.arange(before), layout.noisy_position_N[in_run]))
            mask = block_causal_mask(positions, positions, length)
            mask[before:] = True  # a run sees all of itself and of what is before it
            plain = model(tokens[None], positions[None], MaskedAttention(mask), positions[None] // length)
            offset = before + here.start - int(in_run[0])
            expected = model.head(plain)[0, offset : offset + here.stop - here.start]
            torch.testing.assert_close(vectorised[copy, here], expected, rtol=0, atol=1e-10)
            compared += 1
            assert unit >= run and block * length <= int(layout.noisy_position_N[here.start])
    assert compared == 2 * len(layout.block_U)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_means_of_attention_implements_the_definition(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    stretch = st.tuples(st.integers(0, 9), st.integers(1, 14))
    turns = data.draw(st.lists(st.lists(stretch, min_size=1, max_size=3), min_size=1, max_size=4))
    samples = [conversation(rng, document, i) for i, document in enumerate(turns)]
    copies, length = data.draw(st.sampled_from([1, 2, 3])), data.draw(st.sampled_from([1, 3, 4, 8, 100]))
    layout = lay_out(samples, length, (EOS,), copies=copies)
    if data.draw(st.booleans()):
        layout, _ = layout.select(data.draw(st.permutations(range(len(samples))))[: max(1, len(samples) - 1)])
    noisy = noise(layout, merge=data.draw(st.sampled_from([0.0, 0.5, 1.0])), merge_blocks=3)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, layout.positions, heads, 8, generator=generator, dtype=torch.float64) for heads in (4, 2, 2)
    )
    see = visible(layout, noisy)
    every = torch.arange(layout.positions)
    expected = MaskedAttention(see(every.unsqueeze(1), every))(0, q, k, v)
    for chunk in (4, 512):
        torch.testing.assert_close(DocumentAttention(layout, noisy, chunk)(0, q, k, v), expected, rtol=0, atol=1e-12)


def test_attention_under_autocast_has_the_dtype_of_the_queries() -> None:
    """Autocast leaves normed, rotated queries and keys in float32 and makes values bfloat16."""
    layout = lay_out(some_documents(), 4, (EOS,), copies=2)
    noisy = noise(layout, merge=0.5)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, layout.positions, heads, 8, generator=generator) for heads in (4, 2, 2))
    values = v.bfloat16().requires_grad_()
    attend = DocumentAttention(layout, noisy)
    expected = attend(0, q, k, values.detach().float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attend(0, q, k, values)
    assert out.dtype == torch.float32 and torch.equal(out, expected)
    out.sum().backward()
    assert values.grad is not None and values.grad.dtype == torch.bfloat16


def test_flex_attention_implements_the_definition() -> None:
    layout = lay_out(some_documents(), 4, (EOS,), copies=2)
    noisy = noise(layout, merge=0.5)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, layout.positions, heads, 16, generator=generator) for heads in (4, 2, 2))
    expected = DocumentAttention(layout, noisy)(0, q, k, v)
    torch.testing.assert_close(FlexAttention(layout, noisy)(0, q, k, v), expected, rtol=0, atol=1e-5)


def test_no_mask_of_a_long_document_is_larger_than_a_chunk_of_it() -> None:
    rng = np.random.default_rng(0)
    layout = lay_out([conversation(rng, [(0, 8192)])], 32, (EOS,), copies=2)
    ((clean, noisy),) = DocumentAttention(layout, noise(layout)).products
    sizes = [product.mask.numel() for product in (*clean, *noisy) if product.mask is not None]
    assert max(sizes) <= 2 * 512 * (8192 + 512) and len(clean) == len(noisy) == 16


def test_only_what_a_loss_reaches_is_laid_out() -> None:
    rng = np.random.default_rng(0)
    layout = lay_out([conversation(rng, [(9, 10)])], 4, (EOS,))
    assert layout.clean_S.numel() == 16 and layout.target_N.numel() == 12
    assert layout.noisy_position_N.tolist() == list(range(8, 20))
    assert layout.supervised_N.tolist() == [False] + [True] * 11
    assert layout.target_N[-2:].tolist() == [EOS, EOS]


def test_two_turns_in_one_block_are_two_units_that_do_not_see_each_other() -> None:
    """Turns of tokens 0..: [. . a E | . b b b | b E]; the first turn's block is filled with EOS behind it."""
    tokens = np.array([1, 2, 3, EOS, 5, 6, 7, 8, 9, EOS, 11, 12], np.int32)
    supervised = np.array([0, 0, 1, 1, 0, 1, 1, 1, 1, 1, 0, 0], bool)
    layout = lay_out([Sample(tokens, supervised)], 8, (EOS,))
    assert layout.target_N.tolist() == [1, 2, 3, EOS, *[EOS] * 4, *tokens[:8], 9, EOS, *[EOS] * 6]
    assert layout.supervised_N.tolist() == [False] * 2 + [True] * 6 + [False] * 5 + [True] * 3 + [True] * 8
    assert layout.unit_N.tolist() == [0] * 8 + [1] * 8 + [2] * 8 and layout.block_U.tolist() == [0, 0, 1]
    assert layout.clean_S.tolist() == tokens[:8].tolist()  # the clean half keeps the true tokens


def test_a_piece_of_a_longer_text_is_cut_off_and_not_ended() -> None:
    rng = np.random.default_rng(0)
    layout = lay_out([conversation(rng, [(0, 10)], ends=False)], 4, (EOS,))
    assert layout.target_N.numel() == 10 and EOS not in layout.target_N.tolist()


def test_a_block_as_long_as_the_document_needs_no_clean_half() -> None:
    rng = np.random.default_rng(0)
    layout = lay_out([conversation(rng, [(5, 9)])], 10**6, (EOS,), fill=4)
    assert layout.clean_S.numel() == 0 and layout.target_N.numel() == 16


def test_spans() -> None:
    assert spans(np.array([0, 1, 1, 0, 1], bool)).tolist() == [[1, 3], [4, 5]]
    assert spans(np.array([1, 1], bool)).tolist() == [[0, 2]]
    assert spans(np.zeros(3, bool)).tolist() == []
