"""One forward over spans of many sequences is what each sequence alone gives by full recomputation, in float64."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiny import tiny_config, tiny_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from redraft.engine import paged_flex
from redraft.engine.batch import Batch, Span
from redraft.engine.context import UncachedContext, run
from redraft.engine.executor import Executor
from redraft.engine.paged import paged_attention
from redraft.engine.paged_flex import FlexAttention
from redraft.engine.paged_products import STRIP, ProductAttention, Products, full_attention
from redraft.engine.storage import PageStorage
from redraft.errors import EngineError
from redraft.model.attention import MaskedAttention, attention, block_causal_mask
from redraft.model.network import LLaDA2

CPU = torch.device("cpu")
EXAMPLES = max(1, settings().max_examples // 8)
NONE = np.empty(0, dtype=np.int64)


def storage_of(model: LLaDA2, count: int, block: int, filled: float = 0.0) -> PageStorage:
    storage = PageStorage(model.config, count, block, device=CPU, dtype=model.dtype)
    storage.data.fill_(filled)
    return storage


def expected(model: LLaDA2, tokens: np.ndarray, span: Span, block: int) -> Tensor:
    """Hidden states of the span's wanted places: one forward over the whole sequence under one whole mask."""
    positions = torch.arange(len(tokens))
    mask = block_causal_mask(positions, positions, block)
    if span.merged:
        mask[span.start :] = True
    with torch.no_grad():
        hidden = run(model, tokens, 0, MaskedAttention(mask), block)[0]
    return hidden[span.start + torch.from_numpy(span.wanted)]


def own_pages_only(q_BHQD: Tensor, k_BGSD: Tensor, v_BGSD: Tensor, mask: Any, page: int) -> Tensor:
    """What the GPU's kernel does: tile by tile, pages that are seen in part under the mask, then those seen whole; it
    weighs what it doesn't see by zero, and reads no other page."""
    heads, groups = q_BHQD.shape[1], k_BGSD.shape[1]
    height, out = mask.BLOCK_SIZE[0], torch.empty_like(q_BHQD)
    for tile in range(q_BHQD.shape[2] // height):
        rows = torch.arange(tile * height, (tile + 1) * height)
        scores, values = [], []
        for number, indices, partial in (
            (mask.kv_num_blocks, mask.kv_indices, True),
            (mask.full_kv_num_blocks, mask.full_kv_indices, False),
        ):
            for n in indices[0, 0, tile, : int(number[0, 0, tile])].tolist():
                keys = torch.arange(n * page, (n + 1) * page)
                k, v = (x[0, :, keys].repeat_interleave(heads // groups, dim=0) for x in (k_BGSD, v_BGSD))
                score = q_BHQD[0, :, rows] @ k.transpose(1, 2) * q_BHQD.shape[-1] ** -0.5
                seen = mask.mask_mod(0, 0, rows[:, None], keys[None])
                assert partial or seen.all()
                scores.append(score.masked_fill(~seen, -torch.inf) if partial else score)
                values.append(v)
        out[0, :, rows] = torch.cat(scores, dim=2).softmax(dim=-1) @ torch.cat(values, dim=1)
    return out


@dataclass
class World:
    """Sequences that grow by forwards of random spans on pages in random order. Every result is compared."""

    model: LLaDA2
    block: int
    executor: Executor
    storage: PageStorage
    random: random.Random
    consecutive: bool = False
    sequences: list[tuple[np.ndarray, list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = list(range(self.storage.count))
        if not self.consecutive:
            self.random.shuffle(self.free)

    def draw(self, count: int) -> np.ndarray:
        return np.array([self.random.randrange(32) for _ in range(count)], dtype=np.int64)

    def step(self) -> None:
        spans, wholes = [], []
        for i, (done, pages) in enumerate(self.sequences):
            kind = self.random.choice(["none", "prefill", "denoise", "fused", "merged"])
            if kind == "none":
                continue
            blocks = {"prefill": self.random.randint(1, 1 + 70 // self.block), "denoise": 1, "fused": 2, "merged": 3}
            whole = np.concatenate((done, self.draw(blocks[kind] * self.block)))
            merged = kind == "merged"
            held = len(done) if merged else len(whole)
            while len(pages) * self.storage.page_length < held:
                pages.append(self.free.pop(0))
            count = len(whole) - len(done)
            wanted = NONE
            if kind != "prefill":
                first = self.block if kind == "fused" else 0
                wanted = np.array([place for place in range(first, count) if self.random.random() < 0.7], dtype=int)
            spans.append(Span(whole[len(done) :], len(done), tuple(pages), wanted, merged))
            wholes.append(whole)
            # A denoising block stays open: what it wrote is written over by the next forward.
            kept = {"prefill": count, "denoise": 0, "fused": self.block, "merged": 0}[kind]
            self.sequences[i] = (whole[: len(done) + kept], pages)
        if not spans:
            return
        hidden = self.executor.forward(spans)
        want = [expected(self.model, whole, span, self.block) for whole, span in zip(wholes, spans, strict=True)]
        torch.testing.assert_close(hidden, torch.cat(want), rtol=1e-10, atol=1e-10)


KINDS = [{}, {"block_routing": 3}, {"num_experts": 0, "use_qk_norm": False}, {"head_dim": 12}]


@pytest.mark.parametrize("means", ["products", "flex"])
@pytest.mark.parametrize("block", [1, 8, 16, 24, 32])
@settings(max_examples=EXAMPLES)
@given(kind=st.sampled_from(KINDS), consecutive=st.booleans(), random_=st.randoms(use_true_random=False))
def test_any_spans_in_one_forward_are_each_sequence_alone(
    tiny: Callable[..., LLaDA2], block: int, means: str, kind: dict, consecutive: bool, random_: random.Random
) -> None:
    model = tiny(dtype=torch.float64, **kind)
    storage = storage_of(model, 60, block, torch.nan)
    attention = ProductAttention(storage) if means == "products" else FlexAttention(storage)
    executor = Executor(model, storage, block, attention)
    world = World(model, block, executor, storage, random_, consecutive, [(NONE, []) for _ in range(4)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paged_flex, "_flex", own_pages_only)
        for _ in range(3):
            world.step()


def scene(storage: PageStorage, executor: Executor, block: int) -> list[Span]:
    """A span of each sort, of four sequences whose prefixes are in the pages."""
    generator = np.random.default_rng(0)

    def tokens(blocks: int) -> np.ndarray:
        return generator.integers(0, 32, blocks * block)

    every, last = np.arange(block), np.arange(block) + block
    page = storage.page_length
    executor.forward([Span(tokens(5), 0, (7, 2, 9, 3, 4), NONE), Span(tokens(1), 0, (12,), NONE)])
    merged = Span(tokens(2), 5 * block, (7, 2, 9, 3, 4)[: -(-5 * block // page)], np.arange(2 * block), merged=True)
    return [
        Span(tokens(9), 0, tuple(range(20, 29)), NONE),
        merged,
        Span(tokens(2), block, (12, 11, 15), last),
        Span(tokens(1), 0, (1,), every[::3]),
    ]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("block", [1, 8, 32])
def test_flex_attention_agrees_with_products(
    tiny: Callable[..., LLaDA2], monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """Torch's own FlexAttention. Without its kernel it reads all pages and weighs those of others by zero, so here no
    page may hold NaN."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    model = tiny(dtype=torch.float64)
    results = []
    for means in (ProductAttention, FlexAttention):
        storage = storage_of(model, 32, block, 1e3)
        executor = Executor(model, storage, block, means(storage))
        spans = scene(storage, executor, block)
        hidden = executor.forward(spans)
        slots = Batch.of(spans, block, storage.page_length, CPU).slots
        results.append((hidden, storage.data.flatten(2, 3)[:, :, slots]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("block", [8, 32])
def test_neighbours_change_nothing(tiny: Callable[..., LLaDA2], block: int) -> None:
    model = tiny(dtype=torch.float64, block_routing=3)
    storage = storage_of(model, 32, block, torch.nan)
    executor = Executor(model, storage, block)
    spans = scene(storage, executor, block)
    together = executor.forward(spans)
    alone = torch.cat([executor.forward([span]) for span in spans])
    reversed_ = executor.forward(spans[::-1]).split([len(span.wanted) for span in spans[::-1]])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(together, torch.cat(reversed_[::-1]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("block", [8, 32])
def test_only_the_slots_of_spans_that_arent_merged_are_written(tiny: Callable[..., LLaDA2], block: int) -> None:
    model = tiny(dtype=torch.float64)
    storage = storage_of(model, 32, block)
    executor = Executor(model, storage, block)
    spans = scene(storage, executor, block)
    before = storage.data.clone()
    executor.forward([spans[1]])
    assert torch.equal(storage.data, before)
    executor.forward(spans)
    changed = (storage.data != before).flatten(4).any(dim=-1).any(dim=0).any(dim=0)  # [N, P]
    slots = Batch.of(spans, block, storage.page_length, CPU).slots
    assert sorted(changed.flatten().nonzero().flatten().tolist()) == sorted(slots.tolist())
    assert len(slots) == 12 * block


def test_hidden_states_are_those_of_the_uncached_context(tiny: Callable[..., LLaDA2]) -> None:
    model, block = tiny(dtype=torch.float64, block_routing=3), 16
    storage = storage_of(model, 8, block, torch.nan)
    executor = Executor(model, storage, block)
    prompt, canvas = np.arange(48) % 32, np.full(16, 31)
    context = UncachedContext(model, block)
    context.commit(prompt)
    hidden = executor.forward([Span(np.concatenate((prompt, canvas)), 0, (6, 1), 48 + np.arange(16))])
    torch.testing.assert_close(hidden, context.forward(canvas), rtol=1e-10, atol=1e-10)
    assert torch.equal(executor.head(hidden), context.head(hidden))


@pytest.mark.parametrize("block", [1, 8, 12, 32, 48])
def test_a_long_span_attends_in_strips(block: int) -> None:
    """No mask has more rows than a strip, and no mask is made where each strip is a block."""
    model = tiny_model(dtype=torch.float64)
    storage = storage_of(model, 40, block)
    span = Span(np.zeros(10 * 96, dtype=np.int64), 96, tuple(range(40)), NONE)
    attend = ProductAttention(storage).prepare(Batch.of([span], block, storage.page_length, CPU))
    assert isinstance(attend, Products)
    strips = attend.readings[0].strips
    assert [strip.low for strip in strips[1:]] == [strip.high for strip in strips[:-1]]
    assert (strips[0].low, strips[-1].high) == (0, 960)
    for strip in strips:
        assert strip.high - strip.low <= max(STRIP, block) and strip.seen == 96 + strip.high
        if block >= STRIP:
            assert strip.mask is None
        elif strip.mask is not None:
            rows = torch.arange(96 + strip.low, 96 + strip.high)
            assert torch.equal(strip.mask, block_causal_mask(rows, torch.arange(strip.seen), block))
    masks = {strip.mask.untyped_storage().data_ptr() for strip in strips if strip.mask is not None}
    assert len(masks) == (block < STRIP)


@pytest.mark.parametrize("heads, groups", [(4, 1), (4, 2), (4, 4)])
def test_heads_as_rows_of_one_product_are_each_its_own(heads: int, groups: int) -> None:
    shapes = (2, 5, heads, 8), (2, 21, groups, 8), (2, 21, groups, 8)
    q_BWHD, k_BSGD, v_BSGD = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    want = attention(q_BWHD, k_BSGD, v_BSGD)
    torch.testing.assert_close(full_attention(q_BWHD, k_BSGD, v_BSGD), want, rtol=1e-12, atol=1e-12)


def test_pages_one_after_another_are_not_copied(tiny: Callable[..., LLaDA2]) -> None:
    model = tiny(dtype=torch.float64)
    storage = storage_of(model, 8, 32)
    spans = [Span(np.zeros(64, dtype=np.int64), 0, pages, NONE) for pages in ((3, 4), (6, 5))]
    attend = ProductAttention(storage).prepare(Batch.of(spans, 32, 32, CPU))
    assert isinstance(attend, Products)
    views = [storage.read(1, reading.pages, 64)[0] for reading in attend.readings]
    inside = [view.untyped_storage().data_ptr() == storage.data.untyped_storage().data_ptr() for view in views]
    assert inside == [True, False]


def test_a_prompt_of_16k_tokens_needs_little_besides_its_pages() -> None:
    """Chunks of 1024 behind up to 15360 positions: the largest tensor made on the way is the copy of the pages (which
    don't lie one after another here) or a chunk's activation; a mask [T, S] would be ten times that."""
    sizes: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = tiny_model(max_position_embeddings=16384, num_experts=0, **sizes)
    block, length, chunk = 8, 16384, 1024
    storage = storage_of(model, length // 32, block)
    pages = tuple(range(length // 32))[::-1]
    executor = Executor(model, storage, block)
    tokens = np.random.default_rng(0).integers(0, 32, length)
    with Sizes() as made:
        for start in range(0, length, chunk):
            span = Span(tokens[start : start + chunk], start, pages[: (start + chunk) // 32], NONE)
            executor.forward([span])
    config = model.config
    copied = 2 * length * config.num_key_value_heads * config.head_dim * 4
    assert copied <= made.largest < 2 * copied
    assert made.largest < chunk * length / 4
    last = executor.forward([Span(tokens[-block:], length - block, pages, np.arange(block))])
    assert last.isfinite().all()


class Sizes(TorchDispatchMode):
    """The bytes of the largest tensor that an operation gave and that isn't a view."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, Tensor)}
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in known:
                self.largest = max(self.largest, tensor.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize(
    "spans, message",
    [
        ([], "at least one span"),
        ([Span(np.zeros(0, dtype=np.int64), 0, (), NONE)], "whole blocks of 8, got 0 tokens from position 0"),
        ([Span(np.zeros(9, dtype=np.int64), 0, (0,), NONE)], "whole blocks of 8, got 9 tokens"),
        ([Span(np.zeros(8, dtype=np.int64), 4, (0,), NONE)], "got 8 tokens from position 4"),
        ([Span(np.zeros(8, dtype=np.int64), -8, (0,), NONE)], "got 8 tokens from position -8"),
        ([Span(np.zeros(8, dtype=np.int64), 32, (0,), NONE)], "40 positions need 2 pages of 32, got 1"),
        ([Span(np.zeros(8, dtype=np.int64), 32, (), NONE, True)], "32 positions need 1 pages of 32, got 0"),
        ([Span(np.zeros(8, dtype=np.int64), 0, (0,), np.array([3, 8]))], "from 0 to 7 at most, got 3 .. 8"),
    ],
)
def test_spans_that_cant_be_read_are_refused(spans: Sequence[Span], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        Batch.of(spans, 8, 32, CPU)


def test_the_pools_are_the_blocks_of_the_batch() -> None:
    spans = [Span(np.zeros(16, dtype=np.int64), 8, (0,), NONE), Span(np.zeros(8, dtype=np.int64), 8, (1,), NONE, True)]
    batch = Batch.of(spans, 8, 32, CPU)
    assert batch.pools.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert batch.positions.tolist() == [*range(8, 24), *range(8, 16)]


def test_products_are_what_a_cpu_gets() -> None:
    storage = PageStorage(tiny_config(), 2, 8, device=CPU, dtype=torch.float32)
    assert isinstance(paged_attention(storage), ProductAttention)
    assert FlexAttention.fits(storage)
    assert not FlexAttention.fits(PageStorage(tiny_config(), 2, 12, device=CPU, dtype=torch.float32))
