"""Reading and writing checkpoints: layouts, bytes, strictness, memory."""

from __future__ import annotations

import json
import os
import stat
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.tiny import tiny_config, tiny_model
from torch import Tensor

from redraft.errors import CheckpointError, ConfigError, InvalidInput
from redraft.model import storage
from redraft.model.attention import MaskedAttention
from redraft.model.checkpoint import load_model, save_model
from redraft.model.config import ModelConfig
from redraft.model.names import official_slots, stacked_slots
from redraft.model.network import LLaDA2


def random_model(**changes: Any) -> LLaDA2:
    return tiny_model(vocab_size=40, **changes)


def write(folder: Path, tensors: dict[str, Tensor], config: ModelConfig) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def as_bytes(tensors: dict[str, Tensor]) -> dict[str, tuple[str, bytes]]:
    return {k: (str(v.dtype), v.contiguous().view(torch.uint8).numpy().tobytes()) for k, v in tensors.items()}


def file_tensors(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, LLaDA2]:
    model = random_model()
    save_model(model, tmp_path / "saved")
    return tmp_path / "saved", model


def test_official_names_are_those_of_the_family(saved: tuple[Path, LLaDA2]) -> None:
    names = set(file_tensors(saved[0]))
    assert {
        "model.word_embeddings.weight",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.1.attention.query_key_value.weight",
        "model.layers.1.mlp.gate.weight",
        "model.layers.1.mlp.gate.expert_bias",
        "model.layers.1.mlp.experts.3.down_proj.weight",
        "model.layers.1.mlp.shared_experts.up_proj.weight",
        "model.norm.weight",
        "lm_head.weight",
    } <= names
    assert not any("gate_up" in name or ".load" in name for name in names)


@given(st.integers(1, 3), st.integers(0, 3), st.sampled_from([0, 4]), st.integers(0, 2), st.booleans(), st.booleans())
def test_both_name_tables_cover_every_element_once(
    layers: int, dense: int, experts: int, shared: int, norm: bool, tied: bool
) -> None:
    config = tiny_config(
        num_hidden_layers=layers,
        first_k_dense_replace=dense,
        num_experts=experts,
        num_shared_experts=shared,
        use_qk_norm=norm,
        tie_word_embeddings=tied,
    )
    state = LLaDA2(config).state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    for slots in (official_slots(shapes), stacked_slots(shapes)):
        counts = {name: torch.zeros(shape, dtype=torch.int64) for name, shape in shapes.items()}
        for slot in slots.values():
            view = counts[slot.parameter][slot.index]
            assert tuple(view.shape) == slot.shape
            view += 1
        assert all((count == 1).all() for count in counts.values())


def test_packing_puts_gate_rows_first(saved: tuple[Path, LLaDA2]) -> None:
    folder, model = saved
    experts = model.state_dict()
    stored = file_tensors(folder)
    prefix = "model.layers.1.mlp.experts.2"
    gate, up = experts["layers.1.mlp.experts.gate_up"][2].chunk(2)
    assert torch.equal(stored[f"{prefix}.gate_proj.weight"], gate)
    assert torch.equal(stored[f"{prefix}.up_proj.weight"], up)
    assert torch.equal(stored[f"{prefix}.down_proj.weight"], experts["layers.1.mlp.experts.down"][2])


@pytest.mark.parametrize("file_dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("router_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("changes", [{}, {"use_qk_norm": False}, {"tie_word_embeddings": True}])
def test_reading_and_writing_back_gives_the_same_bytes(
    tmp_path: Path, file_dtype: torch.dtype, router_dtype: torch.dtype, changes: dict[str, Any]
) -> None:
    model = random_model(**changes)
    save_model(model, tmp_path / "seed")
    tensors = {
        name: tensor.to(router_dtype if ".mlp.gate." in name else file_dtype)
        for name, tensor in file_tensors(tmp_path / "seed").items()
    }
    source = write(tmp_path / "source", tensors, model.config)
    loaded = load_model(source)
    assert loaded.dtype == file_dtype
    assert loaded.state_dict()["layers.1.mlp.gate.weight"].dtype == torch.float32
    save_model(loaded, tmp_path / "back")
    assert as_bytes(file_tensors(tmp_path / "back")) == as_bytes(tensors)
    assert ModelConfig.from_json(tmp_path / "back") == model.config


def test_mixed_file_loses_nothing(tmp_path: Path) -> None:
    model = random_model()
    save_model(model, tmp_path / "seed")
    tensors = file_tensors(tmp_path / "seed")
    tensors = {n: t if "layernorm" in n else t.to(torch.bfloat16) for n, t in tensors.items()}
    loaded = load_model(write(tmp_path / "source", tensors, model.config))
    assert loaded.dtype == torch.float32
    save_model(loaded, tmp_path / "back")
    assert as_bytes(file_tensors(tmp_path / "back")) == as_bytes(tensors)


def test_a_trained_router_is_not_narrowed(tmp_path: Path) -> None:
    model = random_model()
    save_model(model, tmp_path / "seed")
    tensors = {n: t.to(torch.bfloat16) for n, t in file_tensors(tmp_path / "seed").items()}
    loaded = load_model(write(tmp_path / "source", tensors, model.config))
    bias = loaded.state_dict()["layers.1.mlp.gate.expert_bias"]
    bias += 2.0**-20
    save_model(loaded, tmp_path / "back")
    assert torch.equal(file_tensors(tmp_path / "back")["model.layers.1.mlp.gate.expert_bias"], bias)


def test_asked_dtype_is_written(saved: tuple[Path, LLaDA2], tmp_path: Path) -> None:
    loaded = load_model(saved[0], dtype="bfloat16")
    router = loaded.state_dict()["layers.1.mlp.gate.weight"]
    assert router.dtype == torch.float32 and torch.equal(router, saved[1].state_dict()["layers.1.mlp.gate.weight"])
    save_model(loaded, tmp_path / "back")
    back = file_tensors(tmp_path / "back")
    assert back["model.norm.weight"].dtype == torch.bfloat16
    assert back["model.layers.1.mlp.gate.weight"].dtype == torch.float32
    assert json.loads((tmp_path / "back" / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_float64_router_in_a_float64_model(saved: tuple[Path, LLaDA2]) -> None:
    assert {t.dtype for t in load_model(saved[0], dtype=torch.float64).state_dict().values()} == {torch.float64}


def test_loaded_model_computes_as_the_saved_one(saved: tuple[Path, LLaDA2]) -> None:
    folder, model = saved
    loaded = load_model(folder)
    assert not loaded.training
    assert all((buffer == 0).all() for name, buffer in loaded.named_buffers() if name.endswith(".load"))
    tokens, positions = torch.arange(6).unsqueeze(0), torch.arange(6).unsqueeze(0)
    expected = model.eval()(tokens, positions, MaskedAttention())
    assert torch.equal(loaded(tokens, positions, MaskedAttention()), expected)


def test_stacked_layout_is_read_and_the_official_one_written(saved: tuple[Path, LLaDA2], tmp_path: Path) -> None:
    folder, model = saved
    state = model.state_dict()
    slots = stacked_slots({name: tuple(tensor.shape) for name, tensor in state.items()})
    tensors = {name: state[slot.parameter][slot.index] for name, slot in slots.items()}
    assert tensors["model.layers.1.mlp.experts.up_proj"].shape == (8, 8, 16)
    source = write(tmp_path / "veomni", tensors, model.config)
    config = json.loads((source / "config.json").read_text()) | {"model_type": "llada2_moe_veomni"}
    (source / "config.json").write_text(json.dumps(config))
    save_model(load_model(source), tmp_path / "back")
    assert as_bytes(file_tensors(tmp_path / "back")) == as_bytes(file_tensors(folder))


def test_shards_with_an_index_and_without(saved: tuple[Path, LLaDA2], tmp_path: Path) -> None:
    folder, model = saved
    save_model(model, tmp_path / "shards", shard_bytes=6000)
    files = sorted((tmp_path / "shards").glob("*.safetensors"))
    index = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text())
    assert len(files) > 2 and {file.name for file in files} == set(index["weight_map"].values())
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in file_tensors(folder).values())
    expected = as_bytes(dict(load_model(folder).state_dict()))
    assert as_bytes(dict(load_model(tmp_path / "shards").state_dict())) == expected
    (tmp_path / "shards" / "model.safetensors.index.json").unlink()
    assert as_bytes(dict(load_model(tmp_path / "shards").state_dict())) == expected


def test_saving_over_another_save_leaves_no_old_weights(saved: tuple[Path, LLaDA2]) -> None:
    folder, model = saved
    (folder / "tokenizer.json").write_text("{}")
    save_model(model, folder, shard_bytes=6000)
    assert not (folder / "model.safetensors").exists()
    save_model(model, folder)
    assert {file.name for file in folder.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}


def test_a_failed_save_leaves_the_old_checkpoint(saved: tuple[Path, LLaDA2], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = saved
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def fails(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(storage, "save_file", fails)
    with pytest.raises(OSError, match="disk full"):
        save_model(random_model(), folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.parametrize("shard_bytes", [6000, 2**30])
def test_the_umask_decides_who_may_read(tmp_path: Path, shard_bytes: int) -> None:
    for umask, mode in ((0o022, 0o644), (0o007, 0o660)):
        before = os.umask(umask)
        try:
            save_model(random_model(), tmp_path / "saved", shard_bytes=shard_bytes)
        finally:
            os.umask(before)
        assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "saved").iterdir()} == {mode}


def test_one_tensor_is_alive_at_a_time(saved: tuple[Path, LLaDA2], monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    class Watched:
        def __init__(self, *args: Any, **kwargs: Any):
            self._reader = safe_open(*args, **kwargs)

        def __enter__(self) -> Watched:
            return self

        def __exit__(self, *_: Any) -> None:
            return None

        def __getattr__(self, name: str) -> Any:
            return getattr(self._reader, name)

        def get_tensor(self, name: str) -> Tensor:
            nonlocal most
            tensor = self._reader.get_tensor(name)
            alive.append(weakref.ref(tensor))
            most = max(most, sum(ref() is not None for ref in alive))
            return tensor

    monkeypatch.setattr(storage, "safe_open", Watched)
    load_model(saved[0])
    assert len(alive) == len(file_tensors(saved[0]))
    assert most <= 2  # the last one may live until its successor replaces it


# --- what is refused --------------------------------------------------------------------------------------------


def test_all_problems_come_in_one_message(saved: tuple[Path, LLaDA2], tmp_path: Path) -> None:
    tensors = file_tensors(saved[0])
    del tensors["model.norm.weight"]
    tensors["model.rotary.inv_freq"] = torch.zeros(4)
    tensors["lm_head.weight"] = torch.zeros(41, 16)
    folder = write(tmp_path / "bad", tensors, saved[1].config)
    with pytest.raises(CheckpointError) as caught:
        load_model(folder)
    message = str(caught.value)
    assert "1 missing: model.norm.weight" in message
    assert "1 extra: model.rotary.inv_freq" in message
    assert "1 mis-shaped: lm_head.weight [41, 16] instead of [40, 16]" in message
    assert "\n" not in message


def test_long_lists_are_bounded(saved: tuple[Path, LLaDA2], tmp_path: Path) -> None:
    folder = write(tmp_path / "bad", {"model.norm.weight": torch.zeros(16)}, saved[1].config)
    with pytest.raises(CheckpointError, match=r"missing: .* and \d+ more") as caught:
        load_model(folder)
    assert len(str(caught.value)) < 1000


def test_a_missing_expert_is_named(saved: tuple[Path, LLaDA2], tmp_path: Path) -> None:
    tensors = file_tensors(saved[0])
    del tensors["model.layers.1.mlp.experts.3.up_proj.weight"]
    with pytest.raises(CheckpointError, match=r"1 missing: model\.layers\.1\.mlp\.experts\.3\.up_proj\.weight"):
        load_model(write(tmp_path / "bad", tensors, saved[1].config))


def test_tied_head_may_be_stored_when_it_is_equal(tmp_path: Path) -> None:
    model = random_model(tie_word_embeddings=True)
    save_model(model, tmp_path / "tied")
    tensors = file_tensors(tmp_path / "tied")
    assert "lm_head.weight" not in tensors
    both = tensors | {"lm_head.weight": tensors["model.word_embeddings.weight"].clone()}
    loaded = load_model(write(tmp_path / "both", both, model.config))
    save_model(loaded, tmp_path / "back")
    assert as_bytes(file_tensors(tmp_path / "back")) == as_bytes(both)
    other = both | {"lm_head.weight": both["lm_head.weight"] + 1}
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs"):
        load_model(write(tmp_path / "other", other, model.config))


def test_index_naming_a_missing_shard(saved: tuple[Path, LLaDA2]) -> None:
    folder, model = saved
    save_model(model, folder, shard_bytes=6000)
    sorted(folder.glob("model-*"))[1].unlink()
    with pytest.raises(CheckpointError, match=r"missing: model-00002-of-"):
        load_model(folder)


@pytest.mark.parametrize("shard", ["../other.safetensors", "/etc/x.safetensors", "a\\b.safetensors", "x.bin", 3, ""])
def test_index_may_not_leave_the_folder(saved: tuple[Path, LLaDA2], shard: Any) -> None:
    index = {"weight_map": dict.fromkeys(file_tensors(saved[0]), shard)}
    (saved[0] / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="file of this folder"):
        load_model(saved[0])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "\xff{"])
def test_unreadable_index(saved: tuple[Path, LLaDA2], text: str) -> None:
    (saved[0] / "model.safetensors.index.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match="weight_map"):
        load_model(saved[0])


def test_index_and_shards_must_agree(saved: tuple[Path, LLaDA2]) -> None:
    folder, model = saved
    save_model(model, folder, shard_bytes=6000)
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    index["weight_map"]["model.norm.weight"] = index["weight_map"]["model.word_embeddings.weight"]
    file.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is not in .*model\.norm\.weight is in"):
        load_model(folder)


def test_the_same_tensor_in_two_files(saved: tuple[Path, LLaDA2]) -> None:
    (saved[0] / "model.safetensors").rename(saved[0] / "a.safetensors")
    save_file({"model.norm.weight": torch.zeros(16)}, saved[0] / "b.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is in a\.safetensors and in b\.safetensors"):
        load_model(saved[0])


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth"])
def test_pickles_are_refused_by_name(saved: tuple[Path, LLaDA2], suffix: str) -> None:
    (saved[0] / "model.safetensors").rename(saved[0] / f"pytorch_model{suffix}")
    with pytest.raises(CheckpointError, match=rf"pytorch_model\{suffix}.*convert the weights to safetensors"):
        load_model(saved[0])


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_file(saved: tuple[Path, LLaDA2], keep: int) -> None:
    file = saved[0] / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a complete safetensors file"):
        load_model(saved[0])


def test_integer_weights_are_refused(saved: tuple[Path, LLaDA2], tmp_path: Path) -> None:
    tensors = file_tensors(saved[0]) | {"model.norm.weight": torch.zeros(16, dtype=torch.int8)}
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is I8"):
        load_model(write(tmp_path / "bad", tensors, saved[1].config))


def test_missing_folder_config_and_weights(saved: tuple[Path, LLaDA2], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="is a file"):
        load_model(saved[0] / "model.safetensors")
    (saved[0] / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="holds no"):
        load_model(saved[0])
    (saved[0] / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        load_model(saved[0])


def test_wrong_settings(saved: tuple[Path, LLaDA2], tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="dtype must be one of"):
        load_model(saved[0], dtype="int8")
    with pytest.raises(InvalidInput, match="shard_bytes"):
        save_model(saved[1], tmp_path, shard_bytes=0)
    with pytest.raises(CheckpointError, match="is a file"):
        save_model(saved[1], saved[0] / "config.json")
    config = json.loads((saved[0] / "config.json").read_text())
    (saved[0] / "config.json").write_text(json.dumps(config | {"rope_scaling": {"type": "yarn", "factor": 4.0}}))
    with pytest.raises(ConfigError, match="rope_scaling"):
        load_model(saved[0])


def test_rope_parameters_of_the_file_count(saved: tuple[Path, LLaDA2]) -> None:
    file = saved[0] / "config.json"
    config = json.loads(file.read_text())
    theta = config.pop("rope_theta")
    file.write_text(json.dumps(config | {"rope_parameters": {"rope_type": "default", "rope_theta": theta + 1}}))
    assert load_model(saved[0]).config.rope_theta == theta + 1
