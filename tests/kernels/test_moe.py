"""The packed path of the experts against the slow one that goes expert by expert."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft.kernels.grouped import grouped_linear, grouped_linear_reference
from redraft.kernels.moe import routed_experts, routed_experts_reference


def weights(experts: int, hidden: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(experts, 2 * width, hidden, dtype=dtype), torch.randn(experts, hidden, width, dtype=dtype)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40),
    experts=st.integers(1, 12),
    per_row=st.integers(1, 4),
    seed=st.integers(0, 10_000),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_packed_experts_equal_the_reference(
    rows: int, experts: int, per_row: int, seed: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(seed)
    per_row = min(per_row, experts)
    gate_up, down = weights(experts, 16, 8, dtype)
    x = torch.randn(rows, 16, dtype=dtype)
    ids = torch.stack([torch.randperm(experts)[:per_row] for _ in range(rows)])
    share = torch.rand(rows, per_row, dtype=dtype)
    bound = 1e-10 if dtype == torch.float64 else 2e-4
    packed = routed_experts(x, ids, share, gate_up, down)
    torch.testing.assert_close(packed, routed_experts_reference(x, ids, share, gate_up, down), rtol=bound, atol=bound)


def test_gradients_equal_the_reference() -> None:
    torch.manual_seed(0)
    x, ids, share = torch.randn(9, 16), torch.randint(0, 5, (9, 2)), torch.rand(9, 2)
    direction = torch.randn(9, 16)
    found = []
    for kernel in (routed_experts, routed_experts_reference):
        leaves = [t.clone().requires_grad_() for t in (x, share, *weights_of(1))]
        (kernel(leaves[0], ids, leaves[1], leaves[2], leaves[3]) * direction).sum().backward()
        found.append([leaf.grad for leaf in leaves])
    for fast, slow in zip(*found, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-4)


def weights_of(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    return weights(5, 16, 8, torch.float32)


def test_a_row_does_not_depend_on_its_neighbours_in_float64() -> None:
    torch.manual_seed(0)
    gate_up, down = weights(6, 16, 8, torch.float64)
    x, ids, share = torch.randn(20, 16, dtype=torch.float64), torch.randint(0, 6, (20, 2)), torch.rand(20, 2).double()
    together = routed_experts(x, ids, share, gate_up, down)
    for row in range(20):
        alone = routed_experts(x[row : row + 1], ids[row : row + 1], share[row : row + 1], gate_up, down)
        torch.testing.assert_close(together[row], alone[0], rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_groups_without_rows(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(7, 8, dtype=dtype), torch.randn(4, 5, 8, dtype=dtype)
    ends = torch.tensor([0, 3, 3, 7], dtype=torch.int32)
    torch.testing.assert_close(grouped_linear(x, weight, ends), grouped_linear_reference(x, weight, ends))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("widths", [(16, 8), (8, 5), (18, 16), (7, 9)])
def test_widths_of_every_kind_and_their_gradients(widths: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs, outputs = widths
    x, weight = torch.randn(7, inputs, dtype=dtype), torch.randn(3, outputs, inputs, dtype=dtype)
    ends, grads = torch.tensor([2, 3, 7], dtype=torch.int32), []
    for product in (grouped_linear, grouped_linear_reference):
        leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
        out = product(*leaves, ends)
        grads.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for fast, slow in zip(*grads, strict=True):
        torch.testing.assert_close(fast, slow)
