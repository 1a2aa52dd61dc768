"""Cross-entropy chunk by chunk: the same numbers and gradients, and never all logits at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from redraft.kernels.cross_entropy import head_cross_entropy

N, C, V = 23, 5, 11


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, C, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(V, C, generator=generator, dtype=dtype, requires_grad=True)
    return hidden, weight, torch.randint(V, (N,), generator=generator)


class Head:
    """A linear head that counts the rows of each of its calls."""

    def __init__(self, weight: Tensor):
        self.weight, self.rows = weight, list[int]()

    def __call__(self, hidden: Tensor) -> Tensor:
        self.rows.append(len(hidden))
        return F.linear(hidden, self.weight)


class Largest(TorchDispatchMode):
    """The most numbers in any tensor that an operation makes."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return out


@pytest.mark.parametrize("rows", [1, 4, 22, 23, 100])
@pytest.mark.parametrize("entropy", [False, True])
def test_chunks_give_the_numbers_and_gradients_of_the_whole(rows: int, entropy: bool) -> None:
    hidden, weight, target = inputs()
    logits = F.linear(hidden, weight)
    p = logits.softmax(-1)
    expected_loss = -p.log().gather(1, target[:, None])[:, 0]
    expected_entropy = -(p * p.log()).sum(-1)
    scale_N = torch.linspace(-1, 2, N, dtype=torch.float64)
    total = (scale_N * (expected_loss + entropy * expected_entropy)).sum()
    expected = torch.autograd.grad(total, (hidden, weight))

    head = Head(weight)
    out = head_cross_entropy(head, hidden, target, vocabulary=V, entropy=entropy, logits=rows * V + V - 1)
    torch.testing.assert_close(out.loss_N, expected_loss, rtol=0, atol=1e-12)
    assert torch.equal(out.right_N, logits.argmax(-1) == target)
    value = out.loss_N
    if entropy:
        assert out.entropy_N is not None
        torch.testing.assert_close(out.entropy_N, expected_entropy, rtol=0, atol=1e-12)
        value = value + out.entropy_N
    else:
        assert out.entropy_N is None
    gradients = torch.autograd.grad((scale_N * value).sum(), (hidden, weight))
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_the_head_sees_a_chunk_at_a_time_forward_and_backward() -> None:
    hidden, weight, target = inputs()
    head = Head(weight)
    with Largest() as largest:
        out = head_cross_entropy(head, hidden, target, vocabulary=V, entropy=True, logits=4 * V)
        assert head.rows == [4] * 5 + [3]
        out.loss_N.sum().backward()
    assert sorted(head.rows) == sorted(2 * ([4] * 5 + [3]))
    # The largest tensor is the hidden states themselves; all logits would be more than twice that.
    assert largest.numbers == hidden.numel()
    assert 2 * largest.numbers < N * V


def test_one_chunk_runs_the_head_once() -> None:
    hidden, weight, target = inputs()
    head = Head(weight)
    head_cross_entropy(head, hidden, target, vocabulary=V).loss_N.sum().backward()
    assert head.rows == [N]


def test_no_positions_give_no_loss() -> None:
    hidden, weight, target = inputs()
    out = head_cross_entropy(Head(weight), hidden[:0], target[:0], vocabulary=V, entropy=True)
    assert out.loss_N.shape == (0,) and float(out.loss_N.sum().detach()) == 0
    out.loss_N.sum().backward()


def test_a_chunk_is_one_position_at_least() -> None:
    hidden, weight, target = inputs()
    head = Head(weight)
    head_cross_entropy(head, hidden, target, vocabulary=V, logits=1)
    assert head.rows == [1] * N
