"""LoRA: exact at the start, small, mergeable, and the same in PEFT's own hands."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny import tiny_config, tiny_model
from torch import Tensor
from torch.nn import functional as F

from redraft.errors import CheckpointError, ConfigError
from redraft.kernels.grouped import LowRank, grouped_linear
from redraft.kernels.moe import routed_experts_reference
from redraft.model.attention import MaskedAttention
from redraft.model.checkpoint import load_model
from redraft.model.network import LLaDA2
from redraft.training.adapter_files import load_adapter, save_adapter
from redraft.training.export import export
from redraft.training.lora import (
    TARGETS,
    LoraConfig,
    add_lora,
    checkpoint_names,
    is_adapted,
    load_lora_state,
    lora_state,
    merge_lora,
)

TOKENS_BT = torch.arange(24).view(2, 12)
SMALL = LoraConfig(rank=3, alpha=6.0)


def logits(model: LLaDA2) -> Tensor:
    positions_BT = torch.arange(12).expand(2, 12)
    return model.head(model(TOKENS_BT, positions_BT, MaskedAttention()))


def experts_of(model: LLaDA2) -> Any:
    return model.get_submodule("layers.1.mlp.experts")


@torch.no_grad()
def moved(model: LLaDA2, size: float = 0.2) -> LLaDA2:
    """Random values for all that is trained: B is zero at the start, which hides mistakes."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter += torch.randn_like(parameter) * size
    return model


def adapted(config: LoraConfig = SMALL, dtype: torch.dtype = torch.float32, **changes) -> LLaDA2:
    return moved(add_lora(tiny_model(dtype=dtype, **changes), config))


# --- settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [("rank", 0), ("alpha", 0.0), ("dropout", 1.0), ("targets", ("router",)), ("targets", ()), ("dropout", 0.1)],
)
def test_a_bad_setting_is_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"lora.{field}"):
        LoraConfig(**{field: value})  # type: ignore[arg-type]


def test_dropout_needs_targets_that_have_it() -> None:
    model = add_lora(tiny_model(), LoraConfig(dropout=0.5, targets=("attention",)))
    moved(model).train()
    assert not torch.equal(logits(model), logits(model))
    model.eval()
    assert torch.equal(logits(model), logits(model))


def test_a_target_that_the_network_lacks() -> None:
    dense = LLaDA2(tiny_config(first_k_dense_replace=2))
    with pytest.raises(ConfigError, match="not in this network"):
        add_lora(dense, LoraConfig(targets=("experts",)))
    assert not is_adapted(dense)
    assert not any("experts" in name for name in lora_state(add_lora(dense, LoraConfig())))


def test_adapters_go_in_once() -> None:
    model = add_lora(tiny_model(), SMALL)
    with pytest.raises(ConfigError, match="adapters already"):
        add_lora(model, SMALL)


# --- the network with adapters ----------------------------------------------------------------------------------


@pytest.mark.parametrize("router", [False, True])
def test_nothing_changes_at_the_start(router: bool) -> None:
    plain = tiny_model()
    model = add_lora(copy.deepcopy(plain), LoraConfig(rank=4, train_router=router))
    assert torch.equal(logits(model), logits(plain))


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_adapts_its_own_matrices(target: str) -> None:
    model = add_lora(tiny_model(), LoraConfig(rank=2, targets=(target,)))
    parts = {name.partition(".lora_")[0].removesuffix(".base_layer") for name in lora_state(model)}
    proj = {"gate_proj", "up_proj", "down_proj"}
    expected = {
        "attention": {f"layers.{i}.attention.{name}" for i in (0, 1) for name in ("query_key_value", "dense")},
        "mlp": {f"layers.0.mlp.{name}" for name in proj},
        "shared_experts": {f"layers.1.mlp.shared_experts.{name}" for name in proj},
        "experts": {"layers.1.mlp.experts"},
    }
    assert parts == expected[target]


@pytest.mark.parametrize("router", [False, True])
def test_gradients_reach_the_adapters_and_nothing_else(router: bool) -> None:
    model = adapted(LoraConfig(rank=2, train_router=router)).train()
    logits(model).square().mean().backward()
    with_gradient = {name for name, p in model.named_parameters() if p.grad is not None}
    assert with_gradient == {name for name, p in model.named_parameters() if p.requires_grad}
    plain = {name for name in with_gradient if ".lora_" not in name}
    assert plain == ({"layers.1.mlp.gate.modules_to_save.default.weight"} if router else set())


@pytest.mark.parametrize("rank", [1, 3, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_low_rank_stack_is_the_sum_of_its_matrices(rank: int, dtype: torch.dtype) -> None:
    x_NI, weight_GOI = torch.randn(10, 16, dtype=dtype), torch.randn(3, 12, 16, dtype=dtype)
    factors = [torch.randn(3, rank, 16, dtype=dtype), torch.randn(3, 12, rank, dtype=dtype)]
    ends_G = torch.tensor([4, 4, 10], dtype=torch.int32)
    a_GRI, b_GOR = (factor.requires_grad_() for factor in factors)
    fast = grouped_linear(x_NI, LowRank(weight_GOI, a_GRI, b_GOR, 0.5), ends_G)
    gradients = torch.autograd.grad(fast.square().sum(), (a_GRI, b_GOR))
    summed_GOI = weight_GOI + 0.5 * b_GOR @ a_GRI
    slow = torch.cat([F.linear(x_NI[:4], summed_GOI[0]), F.linear(x_NI[4:], summed_GOI[2])])
    torch.testing.assert_close(fast, slow)
    for got, expected in zip(gradients, torch.autograd.grad(slow.square().sum(), (a_GRI, b_GOR)), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3 if dtype == torch.float32 else 1e-9)


def test_experts_against_factors_by_hand() -> None:
    """PEFT's layout: A is [experts · rank, in], expert by expert; B is [out, rank · experts], rank by rank."""
    config = tiny_config()
    model = adapted(LoraConfig(rank=3, alpha=6.0, targets=("experts",)), torch.float64)
    state, experts = lora_state(model), config.num_experts
    plain = experts_of(tiny_model(dtype=torch.float64))
    weights = {}
    for name, prefix in (("down", ""), ("gate_up", "base_layer.")):
        a = state[f"layers.1.mlp.experts.{prefix}lora_A.weight"]
        b = state[f"layers.1.mlp.experts.{prefix}lora_B.weight"]
        base = getattr(plain, name)
        if a.shape[1] != base.shape[2]:  # which of the two is outside is PEFT's choice
            pytest.fail(f"{prefix}lora_A does not belong to {name}")
        weights[name] = torch.stack([base[e] + 2.0 * b[:, e::experts] @ a[3 * e : 3 * e + 3] for e in range(experts)])
    x_NC = torch.randn(20, config.hidden_size, dtype=torch.float64)
    expert_NK = torch.stack([torch.randperm(experts)[:2] for _ in range(20)])
    weight_NK = torch.rand(20, 2, dtype=torch.float64)
    expected = routed_experts_reference(x_NC, expert_NK, weight_NK, weights["gate_up"], weights["down"])
    got = experts_of(model)(x_NC, expert_NK, weight_NK)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_no_tensor_of_the_size_of_the_experts_is_kept_for_the_backward() -> None:
    model = adapted(LoraConfig(rank=2, targets=("experts",)))
    weights = {p.data_ptr() for p in model.parameters()}
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept.append(tensor.numel())
        return tensor

    experts = experts_of(model)
    x_NC = torch.randn(2, 16)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        experts(x_NC, torch.tensor([[0, 1], [2, 3]]), torch.ones(2, 2))
    assert max(kept) < experts.get_base_layer().gate_up.numel() / 2


def test_factors_are_float32_beside_weights_in_bfloat16() -> None:
    model = add_lora(tiny_model(dtype=torch.bfloat16), SMALL)
    assert {tensor.dtype for tensor in lora_state(model).values()} == {torch.float32}
    assert model.get_parameter("layers.0.attention.dense.base_layer.weight").dtype == torch.bfloat16
    moved(model).train()
    logits(model).square().mean().backward()


def test_a_few_steps_lower_the_loss() -> None:
    model = add_lora(tiny_model(), LoraConfig(rank=4)).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    losses = []
    for _ in range(12):
        loss = F.cross_entropy(logits(model).flatten(0, 1), TOKENS_BT.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


# --- merging and files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("router", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_merged_is_the_same_and_plain(dtype: torch.dtype, tolerance: float, router: bool) -> None:
    model = adapted(LoraConfig(rank=3, train_router=router), dtype, moe_intermediate_size=16)
    before = logits(model).detach()
    merged = merge_lora(copy.deepcopy(model))
    scale = before.abs().max()
    torch.testing.assert_close(logits(merged) / scale, before / scale, rtol=0, atol=tolerance)
    plain = tiny_model(dtype=dtype, moe_intermediate_size=16)
    assert list(merged.state_dict()) == list(plain.state_dict()) and not is_adapted(merged)
    assert all(parameter.requires_grad for parameter in merged.parameters())
    assert torch.equal(logits(model), before), "the original keeps its adapters"


def test_merging_a_plain_network_does_nothing() -> None:
    model = tiny_model()
    assert merge_lora(model) is model


@pytest.mark.parametrize("router", [False, True])
def test_state_goes_round(router: bool) -> None:
    config = LoraConfig(rank=3, train_router=router)
    model = adapted(config)
    other = add_lora(tiny_model(), config, seed=1)
    load_lora_state(other, {name: tensor.clone() for name, tensor in lora_state(model).items()})
    assert torch.equal(logits(other), logits(model))


@pytest.mark.parametrize("router", [False, True])
def test_a_checkpoint_holds_all_that_changes_and_no_more(router: bool) -> None:
    model = adapted(LoraConfig(rank=3, train_router=router))
    names = checkpoint_names(model)
    assert {name for name, p in model.named_parameters() if p.requires_grad} <= names
    assert len(names) == len(lora_state(model))
    assert any("expert_bias" in name for name in names) == router
    assert checkpoint_names(tiny_model()) == set(tiny_model().state_dict())


def test_the_seed_gives_the_factors_and_leaves_the_generator_alone() -> None:
    models = [tiny_model() for _ in range(3)]
    before = torch.get_rng_state()
    first, again, other = (
        lora_state(add_lora(model, SMALL, seed=seed)) for model, seed in zip(models, (3, 3, 4), strict=True)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state.pop("layers.0.attention.dense.lora_A.weight"), "1 missing: layers.0.attention.dense"),
        (lambda state: state.update(more=torch.zeros(1)), "1 extra: more"),
        (lambda state: state.update({"layers.0.attention.dense.lora_A.weight": torch.zeros(2, 2)}), "1 mis-shaped"),
    ],
)
def test_a_foreign_state_is_refused(change: Callable[[dict[str, Tensor]], object], said: str) -> None:
    model = adapted()
    state = {name: tensor.clone() for name, tensor in lora_state(model).items()}
    change(state)
    with pytest.raises(CheckpointError, match=said):
        load_lora_state(model, state)


@pytest.mark.parametrize("router", [False, True])
def test_an_adapter_folder_goes_round(tmp_path: Path, router: bool) -> None:
    model = adapted(LoraConfig(rank=3, alpha=7.0, train_router=router))
    save_adapter(model, tmp_path, base="somewhere/base")
    assert {file.name for file in tmp_path.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] == "somewhere/base"
    other = load_adapter(tiny_model(), tmp_path)
    assert torch.equal(logits(other), logits(model))
    assert {n for n, p in other.named_parameters() if p.requires_grad} == {
        n for n, p in model.named_parameters() if p.requires_grad
    }


def test_peft_itself_reads_the_folder(tmp_path: Path) -> None:
    """Onto the transformers class, by its own code for stacked parameters."""
    from peft import PeftModel

    from redraft.hf.configuration import LLaDA2MoeConfig
    from redraft.hf.modeling import LLaDA2MoeModelLM

    model = adapted(LoraConfig(rank=3, alpha=7.0))
    save_adapter(model, tmp_path)
    config = LLaDA2MoeConfig(**{k: v for k, v in model.config.to_dict().items() if k not in ("architectures",)})
    foreign = PeftModel.from_pretrained(LLaDA2MoeModelLM(config, tiny_model()).eval(), tmp_path)
    got = foreign(input_ids=TOKENS_BT, block_length=12).logits
    torch.testing.assert_close(got, logits(model), rtol=1e-4, atol=1e-4)


def test_unreadable_adapter_folders(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a readable adapter folder"):
        load_adapter(tiny_model(), tmp_path)
    save_adapter(adapted(), tmp_path)
    with pytest.raises(CheckpointError, match="mis-shaped"):
        load_adapter(tiny_model(moe_intermediate_size=16), tmp_path)
    content = json.loads((tmp_path / "adapter_config.json").read_text())
    for change, said in (
        ({"peft_type": "IA3"}, 'must be "LORA"'),
        ({"r": 0}, "`r` should be a positive integer"),
        ({"target_modules": ["attention.dense"]}, "16 extra"),
    ):
        (tmp_path / "adapter_config.json").write_text(json.dumps(content | change))
        with pytest.raises(CheckpointError, match=said):
            load_adapter(tiny_model(), tmp_path)


def test_the_export_is_merged(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    model = adapted()
    export(model, tmp_path / "tokenizer", tmp_path / "out", torch.float32)
    loaded = load_model(tmp_path / "out")
    torch.testing.assert_close(logits(loaded), logits(model), rtol=1e-4, atol=1e-4)
    assert is_adapted(model)
