"""When the CPU kernel computes, and that a network gives the same with it and without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.tiny import tiny_model

from redraft.kernels import dispatch, linear
from redraft.kernels.cpu import levels, library
from redraft.model.attention import MaskedAttention, block_causal_mask
from redraft.model.network import Linear, LLaDA2, SwiGLU

FAKE = object()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "library", lambda: FAKE)


@pytest.mark.usefixtures("fake")
def test_only_inference_on_plain_tensors_of_one_dtype_is_the_kernels() -> None:
    x, weight = torch.randn(4, 8), torch.randn(6, 8)
    assert dispatch.fused(x, weight) is None
    with torch.no_grad():
        assert dispatch.fused(x, weight) is None
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            assert dispatch.fused(x.to(dtype), torch.nn.Parameter(weight.to(dtype))) is FAKE
        for dtype in (torch.float16, torch.float64):
            assert dispatch.fused(x.to(dtype), weight.to(dtype)) is None
        assert dispatch.fused(x, weight.bfloat16()) is None
        assert dispatch.fused(x, weight.to("meta")) is None
        assert dispatch.fused(x, torch.randn(8, 6).T) is None
        assert dispatch.fused(x, weight.as_subclass(Other)) is None
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert dispatch.fused(x, weight) is None
        packed = dispatch.Int8.of(weight)
        assert dispatch.fused(x, packed, packed) is FAKE
        assert dispatch.fused(x, packed, weight) is None, "kernels take weights of one kind"


class Other(torch.Tensor):
    pass


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    library.library.cache_clear()
    yield
    library.library.cache_clear()


def hidden(model: LLaDA2) -> tuple[torch.Tensor, torch.Tensor]:
    positions = torch.arange(24)
    attend = MaskedAttention(block_causal_mask(positions, positions, 8))
    tokens = torch.arange(24)[None] % 30
    with torch.inference_mode():
        out = model(tokens, positions[None], attend)
        return out, model.head(out)


@pytest.mark.usefixtures("switch")
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.bfloat16, 0.2)])
def test_a_network_gives_the_same_without_the_kernel(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, bound: float
) -> None:
    model = tiny_model(dtype=dtype)
    found = hidden(model)
    monkeypatch.setenv(levels.VARIABLE, "off")
    library.library.cache_clear()
    for with_kernel, by_torch in zip(found, hidden(model), strict=True):
        assert with_kernel.dtype == by_torch.dtype
        distance = (with_kernel - by_torch).float().norm() / by_torch.float().norm()
        assert distance < bound


def test_an_adapter_in_a_projection_s_place_is_asked() -> None:
    """SwiGLU goes around its modules only while they are its own."""

    class Twice(Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    mlp, x = SwiGLU(16, 24), torch.randn(3, 16)
    with torch.inference_mode():
        before = mlp(x)
        down = Twice(24, 16)
        down.load_state_dict(mlp.down_proj.state_dict())
        mlp.down_proj = down
        torch.testing.assert_close(mlp(x), 2 * before)


def test_no_rows_and_leading_dimensions() -> None:
    weight = torch.randn(6, 8)
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            assert linear.linear(torch.randn(2, 0, 8), weight).shape == (2, 0, 6)
            assert linear.linear(torch.randn(8), weight).shape == (6,)
            assert linear.linear(torch.randn(2, 3, 8), weight, torch.float64).dtype == torch.float64
