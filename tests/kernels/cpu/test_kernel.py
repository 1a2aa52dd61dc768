"""The CPU kernel against the reference, in every set of instructions that this processor has."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from redraft.kernels.cpu.build import BuildError, build, compiler
from redraft.kernels.cpu.levels import supported
from redraft.kernels.cpu.library import Library
from redraft.kernels.int8 import Int8
from redraft.kernels.moe import routed_experts_reference

FLOAT, BF16 = torch.float32, torch.bfloat16
# Relative, in the Frobenius norm, against float64. bfloat16: inner activations and the result are rounded once each.
BOUND = {FLOAT: 1e-6, BF16: 6e-3}

try:
    compiler()
except BuildError as error:  # test_build.py says what happens then
    pytest.skip(str(error), allow_module_level=True)
LIBRARIES = [Library(build(level.flags), level) for level in supported()]
each = pytest.mark.parametrize("kernel", LIBRARIES, ids=[library.level.name for library in LIBRARIES])
both = pytest.mark.parametrize("dtype", [FLOAT, BF16], ids=["float32", "bfloat16"])
Weights = tuple[torch.Tensor, torch.Tensor]


def weights(experts: int, hidden: int, width: int, dtype: torch.dtype) -> Weights:
    gate_up = torch.randn(experts, 2 * width, hidden) * hidden**-0.5
    return gate_up.to(dtype), (torch.randn(experts, hidden, width) * width**-0.5).to(dtype)


def routing(rows: int, experts: int, per_row: int) -> Weights:
    ids = torch.rand(rows, experts).argsort(dim=1)[:, :per_row].contiguous()
    return ids, torch.rand(rows, per_row) + 0.1


def reference(x: torch.Tensor, ids: torch.Tensor, share: torch.Tensor, pair: Weights) -> torch.Tensor:
    return routed_experts_reference(x.double(), ids, share.double(), pair[0].double(), pair[1].double())


def distance(found: torch.Tensor, right: torch.Tensor, terms: torch.Tensor | None = None) -> float:
    """Relative to what is right, or to a tenth of the sum of the terms' sizes where they cancel out."""
    size = max(right.norm().item(), 0.1 * terms.norm().item() if terms is not None else 0.0, 1e-30)
    return (found.double() - right).norm().item() / size


@each
@both
@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 70),
    experts=st.integers(1, 12),
    per_row=st.integers(1, 4),
    hidden=st.integers(1, 200),
    width=st.integers(1, 150),
    seed=st.integers(0, 10_000),
)
def test_experts_of_every_size_equal_the_reference(
    kernel: Library, dtype: torch.dtype, rows: int, experts: int, per_row: int, hidden: int, width: int, seed: int
) -> None:
    torch.manual_seed(seed)
    pair, x = weights(experts, hidden, width, dtype), torch.randn(rows, hidden).to(dtype)
    ids, share = routing(rows, experts, min(per_row, experts))
    found = kernel.routed_experts(x, ids, share, *pair)
    assert found.dtype == dtype
    terms = reference(x.abs(), ids, share, (pair[0].abs(), pair[1].abs()))
    assert distance(found, reference(x, ids, share, pair), terms) < BOUND[dtype]


@each
@both
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("rows", "experts", "per_row"), [(1, 16, 8), (4096, 8, 2), (300, 1, 1)])
def test_one_row_and_thousands(
    kernel: Library, dtype: torch.dtype, threads: int, rows: int, experts: int, per_row: int
) -> None:
    torch.set_num_threads(threads)
    pair, x = weights(experts, 96, 48, dtype), torch.randn(rows, 96).to(dtype)
    ids, share = routing(rows, experts, per_row)
    found = kernel.routed_experts(x, ids, share, *pair)
    assert distance(found, reference(x, ids, share, pair)) < BOUND[dtype]


@each
@both
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_does_not_feel_its_neighbours(kernel: Library, dtype: torch.dtype, threads: int) -> None:
    """Bit for bit, alone and in groups of every size, however many threads there are."""
    pair, x = weights(5, 300, 136, dtype), torch.randn(150, 300).to(dtype)
    ids, share = routing(150, 5, 2)
    together = kernel.routed_experts(x, ids, share, *pair)
    linear = kernel.linear(x, pair[0][0])
    torch.set_num_threads(threads)
    start = 0
    for size in [*range(1, 15), 17, 28]:
        some = slice(start, start + size)
        assert torch.equal(kernel.routed_experts(x[some], ids[some], share[some], *pair), together[some])
        assert torch.equal(kernel.linear(x[some], pair[0][0]), linear[some])
        start += size
    assert start == 150


@each
@both
def test_empty_experts_and_no_rows(kernel: Library, dtype: torch.dtype) -> None:
    pair, x = weights(9, 40, 24, dtype), torch.randn(12, 40).to(dtype)
    ids, share = torch.tensor([[3, 7]]).expand(12, 2), torch.rand(12, 2)
    assert distance(kernel.routed_experts(x, ids, share, *pair), reference(x, ids, share, pair)) < BOUND[dtype]
    assert kernel.routed_experts(x[:0], ids[:0], share[:0], *pair).shape == (0, 40)
    assert kernel.linear(x[:0], pair[0][0]).shape == (0, 48)


@each
@both
def test_an_expert_may_be_named_twice(kernel: Library, dtype: torch.dtype) -> None:
    pair, x = weights(3, 32, 16, dtype), torch.randn(5, 32).to(dtype)
    ids, share = torch.tensor([[1, 1, 2]]).expand(5, 3), torch.rand(5, 3)
    assert distance(kernel.routed_experts(x, ids, share, *pair), reference(x, ids, share, pair)) < BOUND[dtype]


@each
@both
def test_rows_and_weights_that_are_parts_of_larger_tensors(kernel: Library, dtype: torch.dtype) -> None:
    gate_up = torch.randn(6, 70, 90).to(dtype)[1:5, 3:67, 5:55]
    down = (torch.randn(6, 70, 90) * 0.2).to(dtype)[::2, 10:60, 7:39]
    gate_up = gate_up[:3]
    x = torch.randn(20, 120).to(dtype)[::2, 11:61]
    ids, share = torch.randint(0, 3, (10, 4))[:, ::2], torch.rand(10, 4)[:, ::2]
    found = kernel.routed_experts(x, ids, share, gate_up, down)
    assert distance(found, reference(x, ids, share, (gate_up, down))) < BOUND[dtype]
    right = x.double() @ gate_up[1].double().T
    assert distance(kernel.linear(x, gate_up[1], torch.float32), right) < 1e-6


@each
@pytest.mark.parametrize("expert", [-1, 3, 2**40])
def test_an_expert_that_is_not_there(kernel: Library, expert: int) -> None:
    x, ids = torch.randn(2, 32), torch.tensor([[0, 1], [2, expert]])
    with pytest.raises(ValueError, match="expert id"):
        kernel.routed_experts(x, ids, torch.rand(2, 2), *weights(3, 32, 16, FLOAT))


@each
def test_shapes_that_do_not_fit_never_reach_the_kernel(kernel: Library) -> None:
    x, (gate_up, down), (ids, share) = torch.randn(4, 32), weights(3, 32, 16, FLOAT), routing(4, 3, 2)
    packed = Int8.of(gate_up[0])
    for call in (
        lambda: kernel.linear(x, torch.randn(5, 33)),
        lambda: kernel.linear(x, Int8(packed.data, packed.scale[:, :0])),
        lambda: kernel.routed_experts(x, ids[:3], share[:3], gate_up, down),
        lambda: kernel.routed_experts(x, ids, share[:, :1], gate_up, down),
        lambda: kernel.routed_experts(x[:, :31], ids, share, gate_up, down),
        lambda: kernel.routed_experts(x, ids, share, gate_up, down[:2]),
        lambda: kernel.routed_experts(x, ids, share, gate_up[:, :31], down),
        lambda: kernel.swiglu(x, gate_up[0], gate_up[0, :5], torch.randn(9, 32)),
    ):
        with pytest.raises(ValueError, match=r"fit|need rows of"):
            call()


@each
@both
@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 140), inputs=st.integers(1, 300), outputs=st.integers(1, 300), seed=st.integers(0, 999))
def test_linear_layers(kernel: Library, dtype: torch.dtype, rows: int, inputs: int, outputs: int, seed: int) -> None:
    torch.manual_seed(seed)
    x, weight = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    right = x.double() @ weight.double().T
    wide, own = kernel.linear(x, weight, torch.float32), kernel.linear(x, weight)
    assert wide.dtype == FLOAT and own.dtype == dtype
    assert distance(wide, right, x.double().abs() @ weight.double().abs().T) < 1e-6
    torch.testing.assert_close(own, wide.to(dtype), rtol=0, atol=0)


@each
@both
def test_swiglu(kernel: Library, dtype: torch.dtype) -> None:
    gate, up, down = (torch.randn(*size).to(dtype) * 0.1 for size in [(200, 90), (200, 90), (33, 200)])
    x = torch.randn(37, 90).to(dtype)
    inner = F.silu(x.double() @ gate.double().T) * (x.double() @ up.double().T)
    assert distance(kernel.swiglu(x, gate, up, down), inner @ down.double().T) < BOUND[dtype]


@each
def test_silu_far_from_zero(kernel: Library) -> None:
    """Gates of any size, infinite and undefined ones too: what silu gives in torch."""
    gates = torch.tensor([0.0, -0.0, 1e-30, 5.0, -5.0, -30.0, -80.0, -87.5, 88.5, 1e3, -1e4, 1e4, torch.inf, torch.nan])
    x, one = gates[:, None], torch.ones(1, 1)
    found = kernel.swiglu(x, one, torch.zeros(1, 1), one)  # finite gates times 0
    assert torch.equal(found[:-2].nan_to_num(7.0), torch.zeros(12, 1))
    gate, up = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    x = torch.stack((gates, torch.ones_like(gates)), dim=1)[:-2]
    torch.testing.assert_close(kernel.swiglu(x, gate, up, one)[:, 0], F.silu(gates[:-2]), rtol=2e-6, atol=1e-33)
    assert kernel.swiglu(torch.full((1, 1), torch.nan), one, one, one).isnan().all()


@each
def test_bfloat16_is_rounded_to_the_nearest_even(kernel: Library) -> None:
    values = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-8 + 2**-16, 3.4e38, -3.4e38, torch.inf])
    one = torch.ones(1, 1)
    as_rows = kernel.linear(values[:, None], one)
    assert torch.equal(as_rows[:, 0], values)
    narrow = kernel.linear(values[:, None], one, BF16)
    assert torch.equal(narrow[:, 0], values.to(BF16))


@both
def test_torch_finds_the_tiles_as_it_left_them(dtype: torch.dtype) -> None:
    """oneDNN configures AMX tiles of its own in the same threads."""
    kernel = LIBRARIES[0]
    x, weight = torch.randn(40, 256).to(dtype), torch.randn(64, 256).to(dtype)
    before = F.linear(x, weight)
    for _ in range(3):
        kernel.linear(x, weight)
        assert torch.equal(F.linear(x, weight), before)
