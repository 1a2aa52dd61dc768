"""Loading, saving and forward through the Auto classes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

import redraft  # noqa: F401  (registers the classes)
from redraft.errors import CheckpointError, ConfigError, InvalidInput
from redraft.hf.configuration import LLaDA2MoeConfig
from redraft.hf.modeling import LLaDA2MoeModelLM
from redraft.model.attention import MaskedAttention, block_causal_mask
from redraft.model.checkpoint import load_model


def load(folder: Path, **arguments: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, **arguments)


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, 380, (rows, length), generator=torch.Generator().manual_seed(1))


def file_bytes(folder: Path) -> dict[str, tuple[str, bytes]]:
    files = sorted(folder.glob("*.safetensors"))
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    return {name: (str(t.dtype), t.view(torch.uint8).numpy().tobytes()) for name, t in tensors.items()}


@pytest.mark.parametrize("seed", ["seed0", "seed3"])
@pytest.mark.parametrize("block_length", [8, 32])
def test_golden_logits(golden: Path, seed: str, block_length: int) -> None:
    folder = golden.parent / seed
    cases = np.load(folder / "forward.npz")
    model = load(folder, block_length=block_length)
    with torch.no_grad():
        logits = model(torch.from_numpy(cases["input_ids"])).logits
    assert logits.dtype == torch.float32
    assert np.abs(logits.numpy() - cases[f"logits_block{block_length}"]).max() < 1e-4


@pytest.mark.parametrize(
    "arguments", [{}, {"trust_remote_code": True, "device_map": "auto"}, {"device_map": {"": "cpu"}}]
)
def test_auto_class_gives_our_class(golden: Path, arguments: dict[str, Any]) -> None:
    model = load(golden, **arguments)
    assert type(model) is LLaDA2MoeModelLM and isinstance(model, PreTrainedModel)
    assert not model.training and not model.model.training
    assert model.device == torch.device("cpu") and model.dtype == torch.float32
    assert model.config.block_length == 32 and model.config.mask_token_id == 383


@pytest.mark.parametrize("how", ["dtype", "torch_dtype", "to"])
def test_bfloat16_spoils_nothing_that_is_sensitive(golden: Path, how: str) -> None:
    model = load(golden) if how == "to" else load(golden, **{how: torch.bfloat16})
    model = model.to(torch.bfloat16)
    whole = load_model(golden)
    state = model.model.state_dict()
    for name, tensor in whole.state_dict().items():
        sensitive = name.endswith((".mlp.gate.weight", ".mlp.gate.expert_bias"))
        assert torch.equal(state[name], tensor if sensitive else tensor.to(torch.bfloat16)), name
    assert all((buffer == 0).all() for name, buffer in model.named_buffers() if name.endswith(".load"))
    ids = tokens(1, 64)
    positions = torch.arange(64).unsqueeze(0)
    attend = MaskedAttention(block_causal_mask(positions[0], positions[0], 32))
    with torch.no_grad():
        network = whole.to(torch.bfloat16)
        expected = network.head(network(ids, positions, attend))
        assert torch.equal(model(ids).logits, expected)


@pytest.mark.parametrize("shard", ["4GB", 60_000])
def test_round_trip_gives_the_same_bytes(golden: Path, tmp_path: Path, shard: int | str) -> None:
    model = load(golden)
    model.save_pretrained(tmp_path / "saved", max_shard_size=shard)
    assert file_bytes(tmp_path / "saved") == file_bytes(golden)
    again = load(tmp_path / "saved")
    assert again.config.network() == model.config.network()
    again.save_pretrained(tmp_path / "again")
    assert file_bytes(tmp_path / "again") == file_bytes(golden)


def test_round_trip_of_a_bfloat16_router(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden, tmp_path / "source")
    tensors = load_file(golden / "model.safetensors")
    save_file({n: t.to(torch.bfloat16) for n, t in tensors.items()}, tmp_path / "source" / "model.safetensors")
    load(tmp_path / "source").save_pretrained(tmp_path / "saved")
    assert file_bytes(tmp_path / "saved") == file_bytes(tmp_path / "source")


def test_config_keeps_unknown_keys_and_drops_code(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden, tmp_path / "source")
    file = tmp_path / "source" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"house": {"mark": 7}}))
    load(tmp_path / "source").save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert saved["house"] == {"mark": 7}
    assert saved["model_type"] == "llada2_moe" and saved["architectures"] == ["LLaDA2MoeModelLM"]
    assert saved["torch_dtype"] == "float32" and saved["use_cache"] is False
    assert "auto_map" not in saved and str(tmp_path) not in json.dumps(saved)


def test_stacked_variant_is_read_and_written_as_official(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden, tmp_path / "veomni")
    tensors = load_file(golden / "model.safetensors")
    for layer in (1, 2):
        for part in ("gate_proj", "up_proj", "down_proj"):
            prefix = f"model.layers.{layer}.mlp.experts"
            each = [tensors.pop(f"{prefix}.{expert}.{part}.weight") for expert in range(8)]
            tensors[f"{prefix}.{part}"] = torch.stack(each)
    save_file(tensors, tmp_path / "veomni" / "model.safetensors")
    file = tmp_path / "veomni" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": "llada2_moe_veomni"}))
    load(tmp_path / "veomni").save_pretrained(tmp_path / "saved")
    assert file_bytes(tmp_path / "saved") == file_bytes(golden)
    assert AutoConfig.from_pretrained(tmp_path / "saved").model_type == "llada2_moe"


def test_from_config_makes_a_random_model() -> None:
    config = LLaDA2MoeConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, moe_intermediate_size=8, num_experts=4, num_experts_per_tok=1, n_group=1,
        topk_group=1,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    assert type(model) is LLaDA2MoeModelLM
    assert 0 < model.model.word_embeddings.weight.std() < 0.1
    assert model(tokens(1, 4) % 40).logits.shape == (1, 4, 40)


# --- forward ----------------------------------------------------------------------------------------------------


def test_two_dimensional_mask_of_ones_is_block_causal(golden: Path) -> None:
    model, ids = load(golden), tokens(2, 80)
    with torch.no_grad():
        plain = model(ids).logits
        assert torch.equal(model(ids, attention_mask=torch.ones_like(ids)).logits, plain)
        changed = ids.clone()
        changed[:, 64:] = 5
        assert torch.allclose(model(changed).logits[:, :64], plain[:, :64], atol=1e-5)
        changed[:, 40] = 5
        assert not torch.allclose(model(changed).logits[:, 33], plain[:, 33], atol=1e-3)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pad", [1, 20, 45])
def test_padding_changes_nothing(golden: Path, side: str, pad: int) -> None:
    model, ids = load(golden), tokens(1, 50)
    filler = torch.full((1, pad), 7)
    parts = [filler, ids] if side == "left" else [ids, filler]
    mask = torch.cat([torch.zeros_like(p) if p is filler else torch.ones_like(p) for p in parts], dim=1)
    span = slice(pad, None) if side == "left" else slice(0, 50)
    with torch.no_grad():
        logits = model(torch.cat(parts, dim=1), attention_mask=mask).logits
        assert torch.isfinite(logits).all()
        assert torch.allclose(logits[:, span], model(ids).logits, atol=1e-5)


def test_exact_masks(golden: Path) -> None:
    model, ids = load(golden), tokens(1, 40)
    index = torch.arange(40)
    allowed = block_causal_mask(index, index, 8)[None, None]
    with torch.no_grad():
        expected = model(ids, block_length=8).logits
        assert torch.equal(model(ids, attention_mask=allowed).logits, expected)
        for lowest in (-torch.inf, torch.finfo(torch.float32).min):
            additive = torch.zeros(1, 1, 40, 40).masked_fill(~allowed, lowest)
            assert torch.equal(model(ids, attention_mask=additive).logits, expected)
    with pytest.raises(InvalidInput, match=r"attention_mask must be bool, or hold 0 and -inf"):
        model(ids, attention_mask=allowed.float())


def test_other_outputs_of_forward(golden: Path) -> None:
    model, ids = load(golden), tokens(1, 10)
    with torch.no_grad():
        out: Any = model(ids, use_cache=False, token_type_ids=torch.zeros_like(ids))
        assert type(out).__name__ == "CausalLMOutput" and out.loss is None
        assert torch.equal(model(ids, return_dict=False)[0], out.logits)
        assert torch.allclose(model(ids, logits_to_keep=3).logits, out.logits[:, -3:], atol=1e-5)
        assert torch.equal(model(ids, position_ids=torch.arange(10)[None]).logits, out.logits)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"labels": torch.zeros(1, 4)}, "labels"),
        ({"past_key_values": ()}, "past_key_values"),
        ({"use_cache": True}, "use_cache"),
        ({"token_type_ids": torch.ones(1, 4)}, "token_type_ids"),
        ({"output_attentions": True}, "output_attentions"),
        ({"no_such": None}, "no_such"),
        ({"attention_mask": torch.ones(1, 5)}, "attention_mask"),
        ({"attention_mask": torch.full((1, 4), 2)}, "attention_mask"),
        ({"attention_mask": torch.ones(1, 1, 4, 5)}, "attention_mask"),
        ({"attention_mask": torch.ones(3, 1, 4, 4)}, "attention_mask"),
        ({"position_ids": torch.arange(5)[None]}, "position_ids"),
        ({"position_ids": torch.zeros(1, 4)}, "position_ids"),
        ({"logits_to_keep": -1}, "logits_to_keep"),
        ({"block_length": 0}, "block_length"),
    ],
)
def test_forward_refuses_by_name(golden: Path, arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        load(golden)(tokens(1, 4), **arguments)


# --- loading and saving refuse ----------------------------------------------------------------------------------


def test_missing_and_extra_tensors_are_an_error_not_a_warning(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden, tmp_path / "bad")
    tensors = load_file(golden / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors | {"spare": torch.zeros(1)}, tmp_path / "bad" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"1 missing: model\.norm\.weight; 1 extra: spare"):
        load(tmp_path / "bad")


def test_pickles_are_refused(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden, tmp_path / "bad")
    (tmp_path / "bad" / "model.safetensors").rename(tmp_path / "bad" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        load(tmp_path / "bad")


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rope_variants(key: str) -> None:
    assert LLaDA2MoeConfig(**{key: None}).network() == LLaDA2MoeConfig().network()
    assert LLaDA2MoeConfig(**{key: {"rope_type": "default", "rope_theta": 5e3}}).rope_theta == 5e3
    for scaled in ({"type": "yarn", "factor": 4.0}, {"rope_type": "default", "factor": 2.0}, "yarn"):
        with pytest.raises(ConfigError, match=key):
            LLaDA2MoeConfig(**{key: scaled})
    with pytest.raises(ConfigError, match="rope_theta"):
        LLaDA2MoeConfig(rope_theta=1e4, **{key: {"rope_type": "default", "rope_theta": 5e3}})


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"device_map": {"model.layers.0": 0, "": "cpu"}}, "device_map"),
        ({"device_map": "nowhere"}, "device_map"),
        ({"dtype": torch.int8}, "dtype"),
        ({"output_loading_info": True}, "output_loading_info"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"use_safetensors": False}, "use_safetensors"),
        ({"no_such": 1}, "no_such"),
        ({"attn_implementation": "eager"}, "attn_implementation"),
    ],
)
def test_loading_refuses_by_name(golden: Path, arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        LLaDA2MoeModelLM.from_pretrained(golden, **arguments)


def test_saving_refuses_by_name(golden: Path, tmp_path: Path) -> None:
    model = load(golden)
    for arguments, name in (
        ({"push_to_hub": True}, "push_to_hub"),
        ({"safe_serialization": False}, "safe_serialization"),
        ({"state_dict": {}}, "state_dict"),
        ({"max_shard_size": "5 apples"}, "max_shard_size"),
    ):
        with pytest.raises(InvalidInput, match=name):
            model.save_pretrained(tmp_path / "saved", **arguments)
    model.save_pretrained(tmp_path / "other", is_main_process=False)
    assert not (tmp_path / "other").exists()
    with pytest.raises(InvalidInput, match="vocab_size"):
        model.resize_token_embeddings(400)
