"""The plan of a run: its sizes against a real network's, and what it prints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny import tiny_config

from redraft.cli.plan import show_plan
from redraft.errors import ConfigError
from redraft.model.attention import MaskedAttention
from redraft.model.config import ModelConfig
from redraft.model.network import LLaDA2
from redraft.training.lora import LoraConfig, add_lora
from redraft.training.objective import ObjectiveConfig
from redraft.training.parallel import ParallelConfig, recompute
from redraft.training.plan import GB, activations, both, model_config, plan
from redraft.training.recipe import Recipe, load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "head_dim": 32,
    "moe_intermediate_size": 48,
    "num_experts_per_tok": 3,
}


def kept_bytes(model: LLaDA2, positions: int) -> int:
    """Bytes of all tensors that a forward keeps for its backward pass, besides the weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return x

    tokens = torch.arange(positions).unsqueeze(0) % model.config.vocab_size
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = model(tokens, torch.arange(positions).unsqueeze(0), MaskedAttention())
    assert out.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("changes", [{}, {"num_shared_experts": 2, "use_qk_norm": False, "moe_intermediate_size": 96}])
def test_activations_are_those_that_the_network_keeps(dtype: torch.dtype, changes: dict[str, Any]) -> None:
    config = tiny_config(**SIZES | changes)
    model = LLaDA2(config, dtype=dtype).train()
    expected = activations(config, 512, dtype.itemsize, recompute=False)
    kept = kept_bytes(model, 512)
    # A little more: torch's attention on CPU repeats the keys and values of a group, that on GPU doesn't.
    assert expected < kept < 1.1 * expected
    recompute(model)
    # The backward then has one layer at a time, here the largest.
    one = replace(config, num_hidden_layers=1, first_k_dense_replace=0)
    layer = activations(one, 512, dtype.itemsize, recompute=False)
    found = kept_bytes(model, 512) + layer
    assert found == pytest.approx(activations(config, 512, dtype.itemsize, recompute=True), rel=0.15)


def test_the_official_models(capsys: pytest.CaptureFixture[str]) -> None:
    mini, flash = (load_recipe(RECIPES / f"{name}-cpt.yaml") for name in ("mini", "flash"))
    found = plan(mini, 8, 80 * GB)
    assert found.parameters / 1e9 == pytest.approx(16.26, abs=0.01)
    assert found.active / 1e9 == pytest.approx(1.43, abs=0.01)
    assert found.weights * 8 == 4 * found.parameters  # all is cut over all GPUs
    assert found.fits and not plan(replace(mini, parallel=ParallelConfig()), 1, 80 * GB).fits
    kept, again = both(flash, 64, 80 * GB)
    assert kept.parameters / 1e9 == pytest.approx(102.9, abs=0.1)
    assert again.fits and not kept.fits and again.activations < kept.activations / 5
    show_plan(mini, 8, 80, as_json=False)
    assert "16.26 billion, 1.43 billion active" in capsys.readouterr().out
    show_plan(mini, 8, 80, as_json=True)
    first, second = json.loads(capsys.readouterr().out)["bytes_a_gpu"]
    assert first["fits"] and second["total"] < first["total"]


def test_the_layout_counts() -> None:
    recipe = Recipe(model={k: v for k, v in vars(tiny_config(**SIZES)).items() if k in SIZES | {"num_experts": 8}})
    alone, shard, experts = (
        plan(replace(recipe, parallel=layout), 4, GB)
        for layout in (ParallelConfig(), ParallelConfig(data="shard"), ParallelConfig(experts=4))
    )
    assert shard.weights == pytest.approx(alone.weights / 4)
    assert shard.weights < experts.weights < alone.weights
    assert shard.optimizer == 2 * shard.gradients
    muon = replace(recipe, optimizer=replace(recipe.optimizer, kind="muon"))
    assert plan(muon, 4, GB).optimizer < alone.optimizer
    with pytest.raises(ConfigError, match=r"4 processes are not a multiple of parallel\.experts \(3\)"):
        plan(replace(recipe, parallel=ParallelConfig(experts=3)), 4, GB)
    with pytest.raises(ConfigError, match="at least 1 GPU"):
        plan(recipe, 0, GB)


def test_adapters_are_little() -> None:
    recipe = Recipe(
        model={k: v for k, v in vars(tiny_config(**SIZES)).items() if k in SIZES | {"num_experts": 8}}, start="none"
    )
    whole = plan(recipe, 2, GB)
    adapted = replace(recipe, lora=LoraConfig(rank=2))
    found = plan(adapted, 2, GB)
    factors = sum(
        p.numel()
        for p in add_lora(LLaDA2(model_config(recipe), device="meta"), LoraConfig(rank=2)).parameters()
        if p.requires_grad
    )
    assert found.gradients == 4 * factors and found.optimizer == 8 * factors and found.update == 4 * factors
    assert found.weights == whole.weights + 4 * factors


def test_the_checkpoint_s_own_sizes_count(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config().to_dict()))
    config = ModelConfig.from_json(tmp_path)
    found = plan(Recipe(start=str(tmp_path)), 1, GB)
    assert found.parameters == sum(p.numel() for p in LLaDA2(config, device="meta").parameters())


def test_preference_training_holds_a_second_network_unless_it_has_adapters() -> None:
    start = str(RECIPES.parent / "src" / "redraft" / "assets" / "redraft-nano")
    plain = Recipe(start=start)
    pairs = Recipe(start=start, objective=ObjectiveConfig(kind="preference"))
    sizes = plan(plain, 2, GB)
    assert plan(pairs, 2, GB).weights == sizes.weights + 4 * sizes.parameters
    adapted = [plan(replace(recipe, lora=LoraConfig()), 2, GB).weights for recipe in (plain, pairs)]
    assert adapted[0] == adapted[1]
    cut = replace(pairs, parallel=ParallelConfig(data="shard"))
    assert plan(cut, 2, GB).weights == pytest.approx(4 * sizes.parameters, rel=0.01)  # two networks, half of each
