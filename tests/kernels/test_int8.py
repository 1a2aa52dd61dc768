"""8-bit weights: their rounding, and the kernel's integer products against the same in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.cpu.test_kernel import BF16, FLOAT, distance, each, reference, routing, weights
from torch.nn import functional as F

from redraft.kernels.cpu.library import Library
from redraft.kernels.int8 import BLOCK, LARGEST, Int8
from redraft.kernels.linear import linear, swiglu
from redraft.kernels.moe import routed_experts

# Relative, in the Frobenius norm, for normally distributed weights and activations.
EXACT, ROUNDED = 1e-6, 0.03


def rounded_rows(x: torch.Tensor) -> torch.Tensor:
    """Rows of float32 as the kernel rounds them: blocks of integers, and what 1 is worth; float64."""
    blocks = F.pad(x, (0, -x.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    largest = blocks.abs().amax(dim=-1, keepdim=True)
    whole = (blocks * torch.div(torch.full_like(largest, LARGEST), largest.clamp_min(1e-30))).round()
    return (whole.double() * (largest / LARGEST).double()).flatten(-2)[..., : x.shape[-1]]


def wide(weight: Int8) -> torch.Tensor:
    scale = weight.scale.double().repeat_interleave(BLOCK, dim=-1)[..., : weight.shape[-1]]
    return weight.data.double() * scale


@settings(max_examples=30, deadline=None)
@given(outputs=st.integers(1, 9), inputs=st.integers(1, 400), seed=st.integers(0, 999))
def test_the_largest_weight_of_a_block_is_kept_and_no_other_moves_far(outputs: int, inputs: int, seed: int) -> None:
    torch.manual_seed(seed)
    weight = torch.randn(2, outputs, inputs)
    weight[0, 0, :BLOCK] = 0
    packed = Int8.of(weight)
    assert packed.shape == weight.shape and packed.data.dtype == torch.int8 and packed.scale.isfinite().all()
    assert packed.scale.shape == (2, outputs, -(-inputs // BLOCK))
    steps = packed.scale.repeat_interleave(BLOCK, dim=-1)[..., :inputs]
    assert ((packed.widened(FLOAT) - weight).abs() <= steps * 0.5001).all()
    for block, worth in zip(weight.split(BLOCK, dim=-1), packed.scale.unbind(-1), strict=True):
        torch.testing.assert_close(worth * LARGEST, block.abs().amax(dim=-1))


@each
@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 40), inputs=st.integers(1, 400), outputs=st.integers(1, 80), seed=st.integers(0, 999))
def test_integer_products_are_exact(kernel: Library, rows: int, inputs: int, outputs: int, seed: int) -> None:
    torch.manual_seed(seed)
    x, weight = torch.randn(rows, inputs), Int8.of(torch.randn(outputs, inputs))
    rows8, weight8 = rounded_rows(x), wide(weight)
    assert distance(kernel.linear(x, weight), rows8 @ weight8.T, rows8.abs() @ weight8.abs().T) < EXACT


@each
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_does_not_feel_its_neighbours(kernel: Library, threads: int) -> None:
    pair, x = weights(5, 300, 136, FLOAT), torch.randn(150, 300)
    packed, (ids, share) = [Int8.of(weight) for weight in pair], routing(150, 5, 2)
    together, lines = kernel.routed_experts(x, ids, share, *packed), kernel.linear(x, packed[0][0])
    torch.set_num_threads(threads)
    start = 0
    for size in [*range(1, 15), 17, 28]:
        some = slice(start, start + size)
        assert torch.equal(kernel.routed_experts(x[some], ids[some], share[some], *packed), together[some])
        assert torch.equal(kernel.linear(x[some], packed[0][0]), lines[some])
        start += size


@each
@pytest.mark.parametrize("dtype", [FLOAT, BF16])
@pytest.mark.parametrize(("rows", "hidden", "width"), [(1, 128, 256), (4096, 96, 48), (37, 200, 130)])
def test_experts_stay_within_the_bound(kernel: Library, dtype: torch.dtype, rows: int, hidden: int, width: int) -> None:
    pair, x = weights(6, hidden, width, FLOAT), torch.randn(rows, hidden).to(dtype)
    ids, share = routing(rows, 6, 2)
    found = kernel.routed_experts(x, ids, share, *map(Int8.of, pair))
    assert found.dtype == dtype and distance(found, reference(x, ids, share, pair)) < ROUNDED


@each
def test_what_is_not_finite_stays_so_in_its_row(kernel: Library) -> None:
    x, weight = torch.randn(5, 300), Int8.of(torch.randn(20, 300))
    right = kernel.linear(x, weight)
    x[1, 7], x[3, 290], x[4] = torch.inf, torch.nan, 0
    found = kernel.linear(x, weight)
    assert found[[1, 3]].isnan().all()
    assert torch.equal(found[[0, 2]], right[[0, 2]]) and not found[4].any()


def test_with_the_kernel_and_without_it_layers_agree() -> None:
    pair, x = weights(4, 256, 128, FLOAT), torch.randn(9, 256)
    gate_up, down, (ids, share) = Int8.of(pair[0]), Int8.of(pair[1]), routing(9, 4, 2)
    gate, up = gate_up[0].chunk(2, dim=0)
    calls = [
        lambda: routed_experts(x, ids, share, gate_up, down),
        lambda: linear(x[None], gate_up[0])[0],
        lambda: swiglu(x[None], gate, up, down[0])[0],
    ]
    for call in calls:
        with torch.inference_mode():
            found = call()
        assert distance(found, call().double()) < ROUNDED
