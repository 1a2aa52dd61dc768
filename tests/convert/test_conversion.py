"""A converted network says what its source says, and what it can't say is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.convert import sources
from tests.tiny import tiny_model

from redraft.convert.conversion import convert
from redraft.errors import CheckpointError, ConfigError, InvalidInput, RedraftError
from redraft.model.checkpoint import load_model, save_model
from redraft.model.config import ModelConfig
from redraft.text.tokenizer import Tokenizer

TOKENS = torch.randint(0, len(sources.TOKENS), (2, 24), generator=torch.Generator().manual_seed(5))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return sources.save(sources.tiny("llama"), tmp_path / "source")


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_next_token_logits_are_those_of_the_source(
    tmp_path: Path, kind: str, tied: bool, dtype: torch.dtype, tolerance: float
) -> None:
    reference = sources.tiny(kind, dtype=dtype, tie_word_embeddings=tied)
    convert(sources.save(reference, tmp_path / "source"), tmp_path / "out")
    if dtype == torch.float64:
        reference = sources.exact(reference)
    converted = load_model(tmp_path / "out")
    assert converted.dtype == dtype and converted.config.tie_word_embeddings is tied
    found = sources.causal_logits(converted, TOKENS)[..., : len(sources.TOKENS)]
    expected = sources.reference_logits(reference, TOKENS)
    assert expected.std() > 0.3
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


def test_longer_blocks_look_ahead(tmp_path: Path, source: Path) -> None:
    """The oracle above could not pass by accident of a mask that hides everything."""
    convert(source, tmp_path / "out", block_length=4)
    model = load_model(tmp_path / "out")
    assert model.config.block_length == 4
    changed = TOKENS.clone()
    changed[:, -1] = (changed[:, -1] + 1) % len(sources.TOKENS)
    same = sources.causal_logits(model, TOKENS) == sources.causal_logits(model, changed)
    assert same[:, :-1].all() and not same[:, -1].all()


def test_shards_hold_what_one_file_holds(tmp_path: Path, source: Path) -> None:
    convert(source, tmp_path / "one")
    convert(source, tmp_path / "many", shard_bytes=20_000)
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    one, many = (load_model(tmp_path / name).state_dict() for name in ("one", "many"))
    assert all(torch.equal(tensor, many[name]) for name, tensor in one.items())


def test_a_source_in_shards(tmp_path: Path) -> None:
    model = sources.tiny("qwen3")
    model.save_pretrained(tmp_path / "source", max_shard_size="20KB")
    sources.write_tokenizer(tmp_path / "source")
    assert (tmp_path / "source" / "model.safetensors.index.json").exists()
    convert(tmp_path / "source", tmp_path / "out")
    found = sources.causal_logits(load_model(tmp_path / "out"), TOKENS)[..., : len(sources.TOKENS)]
    torch.testing.assert_close(found, sources.reference_logits(model, TOKENS), rtol=0, atol=1e-4)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_dtype(tmp_path: Path, stored: torch.dtype) -> None:
    folder = sources.save(sources.tiny(dtype=stored), tmp_path / "source")
    convert(folder, tmp_path / "kept")
    convert(folder, tmp_path / "half", dtype="float16")
    assert load_model(tmp_path / "kept").dtype == stored
    half = json.loads((tmp_path / "half" / "config.json").read_text())
    assert half["torch_dtype"] == "float16"
    assert {tensor.dtype for tensor in load_file(tmp_path / "half" / "model.safetensors").values()} == {torch.float16}
    with pytest.raises(InvalidInput, match="dtype must be one of"):
        convert(folder, tmp_path / "no", dtype="int8")


def test_ling_keeps_every_byte(tmp_path: Path) -> None:
    """Ling-2.0 has LLaDA2's own layout; no class of transformers reads it."""
    vocabulary = len(sources.TOKENS) + 3
    model = tiny_model(vocab_size=vocabulary)
    folder = tmp_path / "source"
    save_model(model, folder)
    sources.write_tokenizer(folder, [*sources.CONTROLS, "<|reserved_token_0|>"])
    ling = {"architectures": ["BailingMoeV2ForCausalLM"], "model_type": "bailing_moe", "num_nextn_predict_layers": 0}
    edit = ling | {"mask_token_id": ..., "block_length": ..., "eos_token_id": sources.END, "pad_token_id": sources.END}
    sources.edit_json(folder / "config.json", **edit)
    done = convert(folder, tmp_path / "out", dtype="float32")
    assert (done.mask.token, done.mask.new) == ("<|reserved_token_0|>", False)
    assert done.config.vocab_size == vocabulary
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in before)
    sources.edit_json(folder / "config.json", routed_scaling_factor=...)
    with pytest.raises(ConfigError, match="lacks routed_scaling_factor"):
        convert(folder, tmp_path / "again")


def test_half_precision_spares_the_router(tmp_path: Path) -> None:
    model = tiny_model(vocab_size=len(sources.TOKENS))
    save_model(model, tmp_path / "source")
    sources.write_tokenizer(tmp_path / "source")
    changes = {"architectures": ["BailingMoeV2ForCausalLM"], "model_type": "bailing_moe", "eos_token_id": sources.END}
    sources.edit_json(tmp_path / "source" / "config.json", **changes)
    convert(tmp_path / "source", tmp_path / "out", dtype="bfloat16")
    dtypes = {name: tensor.dtype for name, tensor in load_file(tmp_path / "out" / "model.safetensors").items()}
    routers = {name for name in dtypes if ".mlp.gate." in name}
    assert len(routers) == 2 and all(dtypes[name] == torch.float32 for name in routers)
    assert {dtype for name, dtype in dtypes.items() if name not in routers} == {torch.bfloat16}


def test_ids_block_length_and_template_are_carried_over(tmp_path: Path, source: Path) -> None:
    sources.edit_json(source / "generation_config.json", eos_token_id=[sources.END, sources.START], temperature=0.6)
    done = convert(source, tmp_path / "out", block_length=8)
    config = ModelConfig.from_json(tmp_path / "out")
    assert config == done.config
    assert (config.block_length, config.eos_ids, config.pad_token_id) == (8, (sources.END, sources.START), sources.END)
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert written == {
        "eos_token_id": [sources.END, sources.START],
        "pad_token_id": sources.END,
        "mask_token_id": config.mask_token_id,
        "block_length": 8,
    }
    text = Tokenizer.load(tmp_path / "out")
    assert text.mask_id == config.mask_token_id and text.eos_ids == (sources.END, sources.START)
    ids = text.render_chat([{"role": "user", "content": "abc 12"}])
    assert ids == [sources.START, *sources.tokenizer().encode("abc 12").ids, sources.END]


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": True},
        {"mlp_bias": True},
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}},
        {"rope_scaling": {"type": "yarn", "factor": 4.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}},
        {"partial_rotary_factor": 0.25},
        {"sliding_window": 4096},
        {"use_sliding_window": True, "sliding_window": 16},
        {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        {"quantization_config": {"quant_method": "awq"}},
        {"rope_interleaved": True},
        {"architectures": ["Qwen3MoeForCausalLM"]},
        {"architectures": None},
        {"num_hidden_layers": ...},
        {"num_attention_heads": 3},
        {"rms_norm_eps": "small"},
        {"eos_token_id": 100_000},
    ],
    ids=str,
)
def test_what_cannot_be_carried_over_is_named(tmp_path: Path, source: Path, changes: dict[str, Any]) -> None:
    (source / "generation_config.json").unlink()
    sources.edit_json(source / "config.json", **changes)
    with pytest.raises(RedraftError) as caught:
        convert(source, tmp_path / "out")
    name = next(iter(changes))
    nested = "partial_rotary_factor" if "partial" in str(changes) else name
    assert nested in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_an_unused_window_of_qwen3_is_no_window(tmp_path: Path) -> None:
    folder = sources.save(sources.tiny("qwen3"), tmp_path / "source")
    sources.edit_json(folder / "config.json", use_sliding_window=False, sliding_window=4096)
    assert convert(folder, tmp_path / "out").config.use_qk_norm


def test_tensors_must_be_those_of_the_architecture(tmp_path: Path, source: Path) -> None:
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.1.self_attn.q_proj.bias"] = torch.zeros(32)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"1 without a counterpart: model.layers.1.self_attn.q_proj.bias$"):
        convert(source, tmp_path / "out")
    del tensors["model.layers.1.self_attn.q_proj.bias"]
    tensors["model.norm.weight"] = torch.ones(31)
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"mis-shaped: model.norm.weight \[31\] instead of \[32\]"):
        convert(source, tmp_path / "out")
    del tensors["model.norm.weight"]
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"1 missing: model\.norm\.weight"):
        convert(source, tmp_path / "out")


def test_a_tied_head_must_be_the_embedding(tmp_path: Path, source: Path) -> None:
    sources.edit_json(source / "config.json", tie_word_embeddings=True)
    with pytest.raises(CheckpointError, match="tie_word_embeddings is true, but"):
        convert(source, tmp_path / "out")
    tensors = load_file(source / "model.safetensors")
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, source / "model.safetensors")
    convert(source, tmp_path / "out")
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")


def test_half_a_checkpoint(tmp_path: Path, source: Path) -> None:
    weights = source / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="not a complete safetensors file"):
        convert(source, tmp_path / "out")
    weights.unlink()
    with pytest.raises(CheckpointError, match="holds no"):
        convert(source, tmp_path / "out")
    (source / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        convert(source, tmp_path / "out")


def test_paths(tmp_path: Path, source: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        convert(tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(CheckpointError, match="neither a Hugging Face folder nor a GGUF file"):
        convert(tmp_path / "text", tmp_path / "out")
    for used in (tmp_path / "text", source):
        with pytest.raises(InvalidInput, match="new or an empty folder"):
            convert(source, used)
    (tmp_path / "empty").mkdir()
    convert(source, tmp_path / "empty")
    (source / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"holds no tokenizer\.json"):
        convert(source, tmp_path / "out")
    with pytest.raises(ConfigError, match="block_length must be a positive integer"):
        convert(source, tmp_path / "out", block_length=0)


def test_a_failed_conversion_leaves_nothing(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("redraft.model.storage.save_file", fails)
    with pytest.raises(CheckpointError, match="out could not be written: disk full"):
        convert(source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
