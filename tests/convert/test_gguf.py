"""GGUF files as llama.cpp's converter writes them: numbers, tokenizer, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from tests.convert import sources

from redraft.convert.conversion import convert
from redraft.convert.gguf_tokenizer import WORDS, write_tokenizer
from redraft.errors import CheckpointError, ConfigError, RedraftError
from redraft.model.checkpoint import load_model
from redraft.text.tokenizer import Tokenizer

TOKENS = torch.randint(0, len(sources.TOKENS), (2, 24), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_gguf_file_is_the_folder_that_it_was_made_of(tmp_path: Path, kind: str, tied: bool) -> None:
    model = sources.tiny(kind, tie_word_embeddings=tied)
    convert(sources.save(model, tmp_path / "source"), tmp_path / "folder")
    convert(sources.write_gguf(model, tmp_path / "model.gguf"), tmp_path / "file")
    folder, file = (load_model(tmp_path / name) for name in ("folder", "file"))
    expected = folder.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in file.state_dict().items())
    assert replace(file.config, initializer_range=0.2) == folder.config  # GGUF files don't have it
    found = sources.causal_logits(file, TOKENS)[..., : len(sources.TOKENS)]
    torch.testing.assert_close(found, sources.reference_logits(model, TOKENS), rtol=0, atol=1e-4)
    one, other = (Tokenizer.load(tmp_path / name) for name in ("folder", "file"))
    chat = [{"role": "user", "content": "abc ab"}]
    assert one.render_chat(chat) == other.render_chat(chat)
    assert (one.mask_id, one.eos_ids) == (other.mask_id, other.eos_ids)


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_1, Kind.F16, Kind.BF16])
def test_quantised_tensors(tmp_path: Path, kind: Kind) -> None:
    model = sources.tiny()
    expected = {
        name: torch.from_numpy(dequantize(quantize(tensor.numpy(), kind), kind)) if tensor.ndim == 2 else tensor
        for name, tensor in model.state_dict().items()
    }
    convert(sources.write_gguf(model, tmp_path / "model.gguf", kind), tmp_path / "out")
    model.load_state_dict(expected)
    converted = load_model(tmp_path / "out")
    assert converted.dtype == torch.float32
    stored = {Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}.get(kind, torch.float32)
    assert converted.file_dtypes.get("model.layers.0.attention.dense.weight", torch.float32) == stored
    size = len(sources.TOKENS)
    found = sources.causal_logits(converted, TOKENS)[..., :size]
    torch.testing.assert_close(found, sources.reference_logits(model, TOKENS), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "fields",
    [
        {"llama__rope__scaling__type": "yarn"},
        {"llama__rope__dimension_count": 4},
        {"llama__expert_count": 8},
        {"llama__attention__sliding_window": 128},
        {"llama__attention__value_length": 4},
        {"llama__logit_scale": 0.5},
        {"llama__block_count": None},
        {"split__count": 3},
        {"general__architecture": "gemma"},
        {"tokenizer__ggml__model": "llama"},
        {"tokenizer__ggml__pre": "tekken"},
        {"tokenizer__ggml__merges": None},
        {"tokenizer__ggml__merges": ["a b", "zzz y"]},
        {"tokenizer__ggml__tokens": [*sources.TOKENS[:-1], "a"]},
        {"tokenizer__ggml__token_type": [1, 1]},
        {"tokenizer__ggml__bos_token_id": 5000},
        {"tokenizer__ggml__eos_token_id": None},
    ],
    ids=str,
)
def test_what_cannot_be_carried_over_is_named(tmp_path: Path, fields: dict[str, Any]) -> None:
    file = sources.write_gguf(sources.tiny(num_hidden_layers=1), tmp_path / "model.gguf", **fields)
    name = next(iter(fields)).replace("__", ".")
    with pytest.raises(RedraftError) as caught:
        convert(file, tmp_path / "out")
    shown = {"split.count": "one part of 3", "tokenizer.ggml.eos_token_id": "eos_token_id"}.get(name, name)
    assert shown in str(caught.value) and not (tmp_path / "out").exists()


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    file = sources.write_gguf(sources.tiny(), tmp_path / "model.gguf")
    content = file.read_bytes()
    for share in (0.001, 0.1, 0.9):
        file.write_bytes(content[: int(len(content) * share)])
        with pytest.raises(CheckpointError, match="not a complete GGUF file"):
            convert(file, tmp_path / "out")


# --- tokenizer --------------------------------------------------------------------------------------------------


def metadata(**changes: Any) -> dict[str, Any]:
    fields = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": sources.TOKENS,
        "merges": [" ".join(pair) for pair in sources.MERGES],
        "token_type": [1] * len(sources.ORDINARY) + [3] * len(sources.CONTROLS),
        "bos_token_id": sources.START,
        "eos_token_id": sources.END,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in (fields | changes).items()}


def words(folder: Path, pre: str, text: str) -> list[str]:
    """The pieces that a text is cut into before merging."""
    write_tokenizer(metadata(pre=pre), folder)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = backend.normalizer.normalize_str(text) if backend.normalizer else text
    return [text[start:end] for _, (start, end) in backend.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    "pre, expected",
    [
        ("gpt-2", ["don", "'t", " say", "  ", " 1234", " DON", "'", "T", "!\n", "\n", "x"]),
        ("smollm", ["don", "'t", " say", "   ", "1", "2", "3", "4", " DON", "'", "T", "!\n", "\n", "x"]),
        ("llama-bpe", ["don", "'t", " say", "  ", " ", "123", "4", " DON", "'T", "!\n\n", "x"]),
        ("qwen2", ["don", "'t", " say", "  ", " ", "1", "2", "3", "4", " DON", "'T", "!\n\n", "x"]),
    ],
)
def test_words(tmp_path: Path, pre: str, expected: list[str]) -> None:
    found = words(tmp_path, pre, "don't say   1234 DON'T!\n\nx")
    assert "".join(found) == "don't say   1234 DON'T!\n\nx"
    if pre in ("gpt-2", "smollm"):  # here a break of two lines is one word
        expected = [*expected[:-3], "!", "\n", "\n", "x"]
    assert found == expected


@pytest.mark.parametrize("pre", WORDS)
def test_every_rule_keeps_the_text(tmp_path: Path, pre: str) -> None:
    write_tokenizer(metadata(pre=pre), tmp_path)
    text = "Ünïcode  1234\t\r\n don't 界 abc ab 🙂<|end|>"
    loaded = Tokenizer.load(tmp_path)
    assert loaded.decode(loaded.encode(text)) == text


def test_token_types(tmp_path: Path) -> None:
    tokens = [*sources.TOKENS, "<think>", "[PAD900]", "[PAD901]"]
    types = [1] * len(sources.ORDINARY) + [3] * len(sources.CONTROLS) + [4, 5, 5]
    write_tokenizer(metadata(tokens=tokens, token_type=types, add_bos_token=True), tmp_path)
    loaded = Tokenizer.load(tmp_path)
    think = tokens.index("<think>")
    assert loaded.vocab_size == think + 1, "rows that no token has are no tokens"
    assert loaded.encode("<think>") == [think] and think not in loaded.special_ids
    assert loaded.special_ids == {sources.START, sources.END}
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert backend.encode("ab").ids[0] == sources.START
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"]) == ("<|start|>", "<|end|>")


def test_without_the_gguf_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = sources.write_gguf(sources.tiny(num_hidden_layers=1), tmp_path / "model.gguf")
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"pip install 'redraft\[convert\]'"):
        convert(file, tmp_path / "out")
