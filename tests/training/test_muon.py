"""Muon orthogonalises each matrix of a stack, in the dtype that it is given, and keeps its state in the weights'."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from redraft.training import muon
from redraft.training.muon import Muon, orthogonalised
from redraft.training.parallel import Ranks
from redraft.training.pieces import copied_piece


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (3, 12, 30)])
def test_an_update_is_nearly_semi_orthogonal(shape: tuple[int, ...]) -> None:
    singular = torch.linalg.svdvals(orthogonalised(drawn(*shape)))
    assert float(singular.min()) > 0.6 and float(singular.max()) < 1.3


def test_each_matrix_of_a_stack_is_by_itself() -> None:
    stack = drawn(3, 12, 30) * torch.tensor([1.0, 100.0, 0.01]).view(3, 1, 1)
    alone = torch.stack([orthogonalised(matrix) for matrix in stack])
    torch.testing.assert_close(orthogonalised(stack), alone)


def stepped(dtype: torch.dtype | None) -> tuple[nn.Parameter, Muon]:
    """A parameter after one step, from zero, at a rate that makes the step's size that of the update."""
    parameter = nn.Parameter(torch.zeros(12, 25))
    parameter.grad = drawn(12, 25)
    pieces = {parameter: copied_piece(parameter, 1, first=True)}
    optimizer = Muon([("weight", parameter)], pieces, Ranks(), lr=1.0, dtype=dtype)
    optimizer.step()
    return parameter, optimizer


def test_the_products_have_the_dtype_and_the_state_keeps_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    multiplied: list[torch.dtype] = []

    def seen(x: Tensor) -> Tensor:
        multiplied.append(x.dtype)
        return orthogonalised(x)

    monkeypatch.setattr(muon, "orthogonalised", seen)
    exact, _ = stepped(None)
    rounded, optimizer = stepped(torch.bfloat16)
    assert multiplied == [torch.float32, torch.bfloat16]
    assert rounded.dtype == optimizer.state[rounded]["momentum"].dtype == torch.float32
    assert not torch.equal(rounded, exact)
    assert float((rounded - exact).detach().norm() / exact.detach().norm()) < 0.05
    assert float(exact.detach().square().mean().sqrt()) == pytest.approx(0.2, rel=0.2)  # AdamW's size
