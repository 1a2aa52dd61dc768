from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.errors import InvalidInput
from redraft.text.build import CONTROLS, EOS, MASK, SMALLEST, train_tokenizer
from redraft.text.tokenizer import Tokenizer

any_text = st.text(st.characters(exclude_categories=["Cs"]))


def test_a_word_is_the_same_token_with_and_without_a_space(tokenizer: Tokenizer) -> None:
    word = tokenizer.encode("Max")
    assert len(word) == 1
    assert tokenizer.encode(" Max")[1:] == word
    assert tokenizer.encode("(Max")[1:] == word


@pytest.mark.parametrize("text", ['": "', "):\n    ", '": ', ", "])
def test_frequent_runs_of_punctuation_are_one_token(tokenizer: Tokenizer, text: str) -> None:
    assert len(tokenizer.encode(text)) == 1


def test_numbers_are_spelt_digit_by_digit(tokenizer: Tokenizer) -> None:
    assert [tokenizer.decode([index]) for index in tokenizer.encode("x 1234")] == ["x", " ", "1", "2", "3", "4"]


@given(any_text)
def test_every_text_survives(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_control_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_ids == {tokenizer.control_id(control) for control in CONTROLS}
    assert tokenizer.mask_id == tokenizer.control_id(MASK)
    assert tokenizer.eos_ids == (tokenizer.control_id(EOS),)
    assert tokenizer.vocab_size == 1 + max(tokenizer.special_ids)


def test_the_vocabulary_size_is_a_ceiling(tmp_path: Path) -> None:
    texts = [f"{a}{b}{c}x {b}{a} " * 3 for a in "qwertz" for b in "asdfgh" for c in "yuiop"]
    assert train_tokenizer(texts, 300, tmp_path).vocab_size == 300
    assert train_tokenizer([], SMALLEST, tmp_path).vocab_size == SMALLEST
    with pytest.raises(InvalidInput, match=r"vocab_size must be at least .* got 10"):
        train_tokenizer(texts, 10, tmp_path)
