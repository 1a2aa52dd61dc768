"""Pages: their length, the accounts of the pool, and what the storage gives back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny import tiny_config
from torch import Tensor

from redraft.engine.batch import slots
from redraft.engine.context import run
from redraft.engine.pages import PagePool, page_length
from redraft.engine.storage import PageStorage, page_bytes
from redraft.errors import EngineError, InvalidInput
from redraft.model.attention import MaskedAttention, attention, block_causal_mask

CPU = torch.device("cpu")


@pytest.mark.parametrize("block, page", [(1, 32), (8, 32), (12, 36), (16, 32), (24, 48), (31, 62), (32, 32), (64, 64)])
def test_a_page_is_the_fewest_blocks_of_32_positions(block: int, page: int) -> None:
    assert page_length(block) == page


def test_pages_are_given_once_and_come_back() -> None:
    pool = PagePool(3)
    first, second = pool.allocate(2), pool.allocate(1)
    assert first is not None and second is not None
    assert sorted(first + second) == [0, 1, 2] and pool.free == 0
    pool.retain(first[0])
    assert pool.release(first[0]) == 1 and pool.free == 0
    assert pool.release(first[0]) == 0 and pool.allocate(1) == [first[0]]
    pool.check()


def test_out_of_pages_is_an_answer_and_takes_nothing() -> None:
    pool = PagePool(2)
    assert pool.allocate(3) is None and pool.free == 2
    assert pool.allocate(0) == []


@pytest.mark.parametrize("page", [0, -1, 5])
def test_a_page_without_a_holder_cant_be_used(page: int) -> None:
    pool = PagePool(2)
    for use in (pool.retain, pool.release, lambda page: pool.require_writable([page])):
        with pytest.raises(EngineError, match=f"page {page} must have"):
            use(page)
    pool.check()


def test_only_a_page_with_one_holder_may_be_written() -> None:
    pool = PagePool(1)
    pool.allocate(1)
    pool.require_writable([0])
    pool.retain(0)
    with pytest.raises(EngineError, match="page 0 must have one holder to be written, and it has 2"):
        pool.require_writable([0])


def test_the_check_sees_a_page_that_is_lost_or_free_twice() -> None:
    for spoil in (lambda free: free.pop(), lambda free: free.append(free[0])):
        pool = PagePool(3)
        spoil(pool._free)
        with pytest.raises(EngineError, match="free pages must be"):
            pool.check()


@pytest.mark.parametrize("count", [0, -1, True, 1.5])
def test_a_pool_has_a_positive_number_of_pages(count: Any) -> None:
    with pytest.raises(InvalidInput, match="pages must be a positive integer"):
        PagePool(count)


def test_a_pool_larger_than_memory_is_refused_with_its_size() -> None:
    with pytest.raises(InvalidInput, match=r"pages=\d+ take .* GiB on cpu; ask for fewer"):
        PageStorage(tiny_config(), 2**45, 32, device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_storage_has_the_stated_shape_and_size(dtype: torch.dtype) -> None:
    config = tiny_config()
    storage = PageStorage(config, 5, 8, device=CPU, dtype=dtype)
    assert storage.data.shape == (config.num_hidden_layers, 2, 5, 32, config.num_key_value_heads, config.head_dim)
    assert storage.data.dtype == dtype and not storage.data.any()
    assert storage.data.nbytes == 5 * page_bytes(config, 8, dtype)


@given(
    pages=st.lists(st.integers(0, 5), min_size=3, max_size=3, unique=True), span=st.tuples(*[st.integers(0, 96)] * 2)
)
def test_what_is_written_is_gathered_and_nothing_else_changes(pages: list[int], span: tuple[int, int]) -> None:
    config = tiny_config()
    start, stop = sorted(span)
    storage = PageStorage(config, 6, 32, device=CPU, dtype=torch.float32)
    storage.data.copy_(torch.arange(storage.data.numel()).view(storage.data.shape))
    before = storage.data.clone()
    k = -1 - torch.rand(stop - start, config.num_key_value_heads, config.head_dim)
    v = k - 1
    storage.write(1, torch.from_numpy(slots(pages, start, stop, 32)), k, v)
    keys, values = storage.read(1, torch.tensor(pages), stop)
    assert torch.equal(keys[start:], k) and torch.equal(values[start:], v)
    for position in range(start, stop):
        page, place = pages[position // 32], position % 32
        assert torch.equal(storage.data[1, 0, page, place], k[position - start])
        storage.data[1, :, page, place] = before[1, :, page, place]
    assert torch.equal(storage.data, before)


@pytest.mark.parametrize("block, routing", [(1, None), (8, None), (16, 4), (24, None), (32, 4)])
def test_a_shared_page_gives_what_full_recomputation_gives(tiny: Any, block: int, routing: int | None) -> None:
    """Whatever came behind the page when it was written: in float64, all blocks up to 32 share exactly by pages."""
    model = tiny(dtype=torch.float64, block_routing=routing)
    page = page_length(block)
    storage = PageStorage(model.config, 8, block, device=CPU, dtype=torch.float64)
    common, ours, theirs = (torch.randint(0, 29, (page,)) for _ in range(3))

    def forward(pages: list[int], start: int, tokens: Tensor) -> Tensor:
        stop = start + len(tokens)
        index, places = torch.tensor(pages), torch.from_numpy(slots(pages, start, stop, page))
        mask = block_causal_mask(torch.arange(start, stop), torch.arange(stop), block)

        def attend(layer: int, q_BTHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor) -> Tensor:
            storage.write(layer, places, k_BTGD[0], v_BTGD[0])
            keys, values = storage.read(layer, index, stop)
            return attention(q_BTHD, keys[None], values[None], mask)

        return run(model, tokens.numpy(), start, attend, block)[0]

    with torch.no_grad():
        forward([5, 2], 0, torch.cat([common, theirs]))
        shared = forward([5, 7], page, ours)
        positions = torch.arange(2 * page)
        whole = MaskedAttention(block_causal_mask(positions, positions, block))
        alone = run(model, torch.cat([common, ours]).numpy(), 0, whole, block)[0, page:]
    torch.testing.assert_close(shared, alone, rtol=1e-12, atol=1e-12)
