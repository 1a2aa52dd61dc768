"""The network: precision of the sensitive parts, routing, and the variants that a configuration may ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.tiny import tiny_config, tiny_model

from redraft.errors import ConfigError
from redraft.model.attention import MaskedAttention, block_causal_mask
from redraft.model.config import ModelConfig
from redraft.model.network import LLaDA2
from redraft.model.router import Router

SIZES: dict[str, Any] = {"vocab_size": 60, "num_hidden_layers": 3, "block_length": 4}
CONFIG = tiny_config(**SIZES)


def build(dtype: torch.dtype = torch.float32, **changes: Any) -> LLaDA2:
    return tiny_model(dtype=dtype, **SIZES, **changes)


def logits(model: LLaDA2, tokens: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    mask = block_causal_mask(positions[0], positions[0], model.config.block_length)
    pools = positions // model.config.block_length + 100 * torch.arange(len(tokens)).unsqueeze(1)
    with torch.no_grad():
        return model.head(model(tokens, positions, MaskedAttention(mask), pools))


TOKENS = torch.randint(0, 60, (2, 14), generator=torch.Generator().manual_seed(0))


def routers(model: LLaDA2) -> list[Router]:
    return [module for module in model.modules() if isinstance(module, Router)]


@pytest.mark.parametrize("cast", [lambda m: m.to(torch.bfloat16), lambda m: m.bfloat16(), lambda m: m.half()])
def test_the_router_keeps_its_precision_when_the_model_is_cast(cast) -> None:
    model = build()
    before = [(r.weight.clone(), r.expert_bias.clone()) for r in routers(model)]
    cast(model)
    assert model.dtype in (torch.bfloat16, torch.float16)
    for router, (weight, bias) in zip(routers(model), before, strict=True):
        assert router.weight.dtype == router.expert_bias.dtype == torch.float32
        assert torch.equal(router.weight, weight) and torch.equal(router.expert_bias, bias)
    assert logits(model, TOKENS).dtype == torch.float32


def test_a_float64_model_is_float64_throughout() -> None:
    model = build().double()
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    out = logits(model, TOKENS)
    assert out.dtype == torch.float64
    torch.testing.assert_close(out.float(), logits(build(), TOKENS), rtol=1e-4, atol=1e-4)


def test_bfloat16_rope_is_that_of_float32() -> None:
    from redraft.model.rotary import rotation

    positions = torch.tensor([[0, 1, 1000, 30_000]])
    for half, full in zip(
        rotation(CONFIG, positions, torch.bfloat16), rotation(CONFIG, positions, torch.float32), strict=True
    ):
        assert half.dtype == torch.float32 and torch.equal(half, full)


def test_a_later_block_never_changes_an_earlier_one() -> None:
    model, changed = build(torch.float64), TOKENS.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 60
    a, b = logits(model, TOKENS), logits(model, changed)
    torch.testing.assert_close(a[:, :8], b[:, :8], rtol=0, atol=1e-12)
    assert (a[:, 8] != b[:, 8]).any()  # position 8 shares a block with 9, and stands before it


def test_a_pool_of_all_experts_is_token_routing() -> None:
    token, block = build(torch.float64), build(torch.float64, block_routing=8)
    torch.testing.assert_close(logits(token, TOKENS), logits(block, TOKENS), rtol=0, atol=0)


def test_block_routing_stays_inside_the_pool() -> None:
    torch.manual_seed(0)
    router = Router(replace(CONFIG, block_routing=3), dtype=torch.float64)
    torch.nn.init.normal_(router.weight)
    router.expert_bias.normal_(std=0.1)
    x, pools = torch.randn(24, CONFIG.hidden_size, dtype=torch.float64), torch.arange(24) // 4
    ids, weight = router(x, pools)
    scores = torch.sigmoid(x @ router.weight.T) + router.expert_bias
    for pool in range(6):
        mine = pools == pool
        admitted = set(scores[mine].amax(0).topk(3).indices.tolist())
        assert set(ids[mine].flatten().tolist()) <= admitted
    torch.testing.assert_close(weight.sum(1), torch.full((24,), 2.5, dtype=torch.float64))


def test_router_limits_the_groups_and_weighs_without_the_bias() -> None:
    torch.manual_seed(0)
    router = Router(CONFIG, dtype=torch.float64)
    torch.nn.init.normal_(router.weight)
    router.expert_bias.normal_()
    x = torch.randn(50, CONFIG.hidden_size, dtype=torch.float64)
    ids, weight = router(x)
    score = torch.sigmoid(x @ router.weight.T)
    for row in range(50):
        biased = score[row] + router.expert_bias
        best_groups = biased.view(4, 2).sum(1).topk(2).indices.tolist()
        allowed = [e for e in range(8) if e // 2 in best_groups]
        expected = sorted(allowed, key=lambda e: -biased[e])[:2]
        assert ids[row].tolist() == expected
        plain = score[row][expected]
        torch.testing.assert_close(weight[row], plain / plain.sum() * 2.5)


def test_loads_are_counted_once_and_in_training_only() -> None:
    model = build()
    logits(model, TOKENS)
    assert all(router.load.sum() == 0 for router in routers(model))
    model.train()
    positions = torch.arange(14).expand_as(TOKENS)
    model(TOKENS, positions, MaskedAttention(None))
    assert [router.load.sum().item() for router in routers(model)] == [2 * 14 * 2] * 2


@pytest.mark.parametrize("change", [{"use_qk_norm": False}, {"tie_word_embeddings": True}, {"num_shared_experts": 0}])
def test_variants_run_and_differ(change: dict) -> None:
    model = build(torch.float64, **change)
    names = set(dict(model.named_parameters()))
    assert ("lm_head.weight" in names) != change.get("tie_word_embeddings", False)
    assert any("query_layernorm" in name for name in names) == change.get("use_qk_norm", True)
    assert any("shared_experts" in name for name in names) == bool(change.get("num_shared_experts", 1))
    assert torch.isfinite(logits(model, TOKENS)).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", 0),
        ("num_key_value_heads", 3),
        ("topk_group", 5),
        ("num_experts_per_tok", 9),
        ("block_routing", 1),
        ("partial_rotary_factor", 1.5),
    ],
)
def test_a_wrong_size_is_named(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        replace(CONFIG, **{field: value})


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_plain_rope_is_read_under_each_name(key: str) -> None:
    raw = {name: value for name, value in CONFIG.to_dict().items() if name not in ("rope_theta", "rope_scaling")}
    plain = ModelConfig.from_dict(raw)
    for rope in (None, {}, {"type": "default"}, {"rope_type": "default"}, {"rope_type": "default", "factor": None}):
        assert ModelConfig.from_dict(raw | {key: rope}) == plain
    stated = {"rope_type": "default", "rope_theta": 5e3}
    assert ModelConfig.from_dict(raw | {key: stated}) == replace(plain, rope_theta=5e3)
    assert ModelConfig.from_dict(raw | {key: stated, "rope_theta": 5e3}) == replace(plain, rope_theta=5e3)
    with pytest.raises(ConfigError, match=rf"{key}.* contradicts rope_theta=10000"):
        ModelConfig.from_dict(raw | {key: stated, "rope_theta": 1e4})


@pytest.mark.parametrize(
    "rope", [{"type": "yarn", "factor": 4.0}, {"type": "default", "rope_type": "linear"}, {"factor": 2.0}, "yarn", 0]
)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_other_rope_is_refused_by_name(key: str, rope: object) -> None:
    with pytest.raises(ConfigError, match=rf"{key}=.* is not supported"):
        ModelConfig.from_dict(CONFIG.to_dict() | {key: rope})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_scaling", {"type": "yarn", "factor": 2}),
        ("use_bias", True),
        ("hidden_act", "gelu"),
        ("model_type", "llama"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        ModelConfig.from_dict(CONFIG.to_dict() | {key: value})
