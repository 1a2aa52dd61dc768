"""The Auto classes: the published snippet runs as it stands, and no code of a checkpoint ever runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedTokenizerFast, dynamic_module_utils

import redraft  # noqa: F401  (registers the classes)
from redraft.hf import register

FLAGS = [{}, {"trust_remote_code": True}, {"trust_remote_code": False}]


@pytest.mark.parametrize("flags", [{}, {"trust_remote_code": True}])
def test_the_published_snippet(chat_folder: Path, flags: dict[str, Any]) -> None:
    path, prompt = chat_folder, "Write a haiku."
    placed = flags and {"device_map": "auto"}
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(path, **flags, **placed).to(torch.bfloat16).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, **flags)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=True, return_tensors="pt"
    )
    out = model.generate(
        inputs=ids, eos_early_stop=True, gen_length=64, block_length=32, threshold=0.5, editing_threshold=0,
        temperature=0.0,
    )  # fmt: skip
    assert isinstance(tokenizer.decode(out[0], skip_special_tokens=True), str)
    assert out.ndim == 2 and 0 < out.shape[1] <= 64
    plain = ids["input_ids"] if not isinstance(ids, torch.Tensor) else ids
    assert tokenizer.decode(plain[0]) == f"<role>HUMAN</role>{prompt}<|role_end|><role>ASSISTANT</role>"
    again = model.generate(inputs=plain, gen_length=64, block_length=32, threshold=0.5, editing_threshold=0)
    assert torch.equal(again, out)


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("settings", [{}, {"tokenizer_class": None}, {"tokenizer_class": "UnknownTokenizer"}])
def test_tokenizer_class(chat_folder: Path, flags: dict[str, Any], settings: dict[str, Any]) -> None:
    file = chat_folder / "tokenizer_config.json"
    stated = json.loads(file.read_text()) | settings
    file.write_text(json.dumps({name: value for name, value in stated.items() if value is not None}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(chat_folder, **flags)
    assert type(tokenizer) is PreTrainedTokenizerFast
    assert tokenizer.mask_token_id == 380 and tokenizer.eos_token_id == 379
    assert tokenizer("ab")["input_ids"] == tokenizer.convert_tokens_to_ids(["a", "b"])


def _trap(folder: Path) -> Path:
    """Gives the folder code that would leave a mark, wherever transformers may look for code."""
    mark = folder / "MARK"
    code = f"open({str(mark)!r}, 'w').close()\nclass Config: ...\nclass Model: ...\nclass Tok: ...\n"
    (folder / "trap.py").write_text(code)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(code + "def generate(*a, **k): ...\n")
    models = ("AutoModel", "AutoModelForCausalLM", "AutoModelForSequenceClassification")
    for name, classes in (
        ("config.json", {"AutoConfig": "trap.Config"} | dict.fromkeys(models, "trap.Model")),
        ("tokenizer_config.json", {"AutoTokenizer": ["trap.Tok", "trap.Tok"]}),
    ):
        raw = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(raw | {"auto_map": classes}))
    return mark


@pytest.mark.parametrize("flags", FLAGS)
def test_no_code_of_a_checkpoint_runs(chat_folder: Path, flags: dict[str, Any]) -> None:
    mark = _trap(chat_folder)
    assert transformers.AutoConfig.from_pretrained(chat_folder, **flags).__class__.__module__.startswith("redraft.")
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(chat_folder, **flags)
    model.generate(torch.tensor([[1, 2]]), gen_length=4)
    assert type(transformers.AutoTokenizer.from_pretrained(chat_folder, **flags)) is PreTrainedTokenizerFast
    config = transformers.AutoConfig.from_pretrained(chat_folder)
    assert type(transformers.AutoTokenizer.from_pretrained(chat_folder, config=config, **flags)) is (
        PreTrainedTokenizerFast
    )
    for auto in (transformers.AutoModel, transformers.AutoModelForSequenceClassification):
        with pytest.raises(ValueError, match="Unrecognized configuration class"):
            auto.from_pretrained(chat_folder, **flags)
    assert not mark.exists()


def test_the_trap_would_spring(chat_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same folder under a foreign model type does run its code when it is trusted."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    mark = _trap(chat_folder)
    raw = json.loads((chat_folder / "config.json").read_text())
    (chat_folder / "config.json").write_text(json.dumps(raw | {"model_type": "foreign"}))
    with pytest.raises(AttributeError, match="register_for_auto_class"):
        transformers.AutoConfig.from_pretrained(chat_folder, trust_remote_code=True)
    assert mark.exists()


def test_other_models_keep_their_tokenizers(tmp_path: Path, chat_folder: Path) -> None:
    (chat_folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (chat_folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(chat_folder, trust_remote_code=True)
    assert "GPT2" in type(tokenizer).__name__


def test_registering_again_changes_nothing() -> None:
    before = transformers.AutoTokenizer.from_pretrained
    register()
    assert transformers.AutoTokenizer.from_pretrained == before
