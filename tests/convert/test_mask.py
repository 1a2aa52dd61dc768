"""Which token becomes the mask, and the row that it gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tests.convert import sources

from redraft.convert.conversion import convert
from redraft.convert.mask import add_mask_token
from redraft.errors import CheckpointError, InvalidInput
from redraft.model.checkpoint import load_model
from redraft.text.tokenizer import Tokenizer

SIZE = len(sources.TOKENS)


@pytest.mark.parametrize(
    "more, config, wanted, token, new",
    [
        ([], {}, None, "<|mask|>", True),
        (["<|mask|>"], {}, None, "<|mask|>", False),
        (["<|reserved_special_token_0|>", "[MASK]"], {}, None, "[MASK]", False),
        (["<|reserved_token_7|>", "<|reserved_token_8|>"], {}, None, "<|reserved_token_7|>", False),
        (["<|extra_0|>", "<|own|>"], {"mask_token": "<|own|>"}, None, "<|own|>", False),
        (["<|extra_0|>"], {"chat_template": "<|extra_0|>"}, None, "<|mask|>", True),
        (["<unused5>"], {}, "<|hole|>", "<|hole|>", True),
        (["<unused5>", "<|tool|>"], {}, "<|tool|>", "<|tool|>", False),
    ],
)
def test_choice(tmp_path: Path, more: list[str], config: dict[str, Any], wanted: Any, token: str, new: bool) -> None:
    sources.write_tokenizer(tmp_path, [*sources.CONTROLS, *more], **config)
    before = Tokenizer.load(tmp_path)
    mask = add_mask_token(tmp_path, wanted)
    assert (mask.token, mask.new, mask.tokens) == (token, new, SIZE + len(more))
    assert mask.index == (SIZE + len(more) if new else SIZE + more.index(token))
    after = Tokenizer.load(tmp_path)
    assert after.mask_id == mask.index and mask.index in after.special_ids
    assert after.encode("ab abc 12<|end|>") == before.encode("ab abc 12<|end|>")
    # Readers of tokenizer.json alone see it, too.
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).token_to_id(token) == mask.index


@pytest.mark.parametrize("wanted", ["<|end|>", "<|start|>", "ab", ""])
def test_a_token_with_a_use_is_refused(tmp_path: Path, wanted: str) -> None:
    sources.write_tokenizer(tmp_path)
    with pytest.raises(InvalidInput, match="without another use"):
        add_mask_token(tmp_path, wanted)


def test_tokens_that_only_the_configuration_lists_keep_their_ids(tmp_path: Path) -> None:
    late = {"content": "<|late|>", "special": True, "normalized": False}
    sources.write_tokenizer(tmp_path, added_tokens_decoder={str(SIZE): late})
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    mask = add_mask_token(tmp_path)
    assert mask.index == SIZE + 1
    alone = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert (alone.token_to_id("<|late|>"), alone.token_to_id("<|mask|>")) == (SIZE, SIZE + 1)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("spare", [0, 5])
def test_rows_of_a_new_mask(tmp_path: Path, tied: bool, spare: int) -> None:
    """A spare row of the embedding is taken; without one the vocabulary grows to a multiple of 8."""
    reference = sources.tiny(vocab_size=SIZE + spare, tie_word_embeddings=tied)
    done = convert(sources.save(reference, tmp_path / "source"), tmp_path / "out")
    model = load_model(tmp_path / "out")
    assert done.mask.index == SIZE
    assert done.config.vocab_size == (SIZE + spare if spare else -(-(SIZE + 1) // 8) * 8)
    pairs = [(model.word_embeddings.weight, reference.get_parameter("model.embed_tokens.weight"))]
    if not tied:
        pairs.append((model.lm_head.weight, reference.get_parameter("lm_head.weight")))
    for found, expected in pairs:
        assert torch.equal(found[:SIZE], expected[:SIZE])
        torch.testing.assert_close(found[SIZE], expected[:SIZE].mean(0))
        assert torch.equal(found[SIZE + 1 : SIZE + spare], expected[SIZE + 1 :])
        if not spare:
            assert (found[SIZE:] == found[SIZE]).all()


def test_rows_of_a_reserved_token_stay(tmp_path: Path) -> None:
    reference = sources.tiny(vocab_size=SIZE + 1)
    folder = sources.save(reference, tmp_path / "source", controls=[*sources.CONTROLS, "<unused0>"])
    convert(folder, tmp_path / "out")
    found = load_model(tmp_path / "out").word_embeddings.weight
    assert torch.equal(found, reference.get_parameter("model.embed_tokens.weight"))


def test_a_tokenizer_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    folder = sources.save(sources.tiny(), tmp_path / "source", controls=[*sources.CONTROLS, "<|late|>"])
    with pytest.raises(CheckpointError, match=f"ids up to {SIZE}, but vocab_size is {SIZE}"):
        convert(folder, tmp_path / "out")
