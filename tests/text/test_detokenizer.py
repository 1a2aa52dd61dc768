from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from redraft.text.detokenizer import Detokenizer
from redraft.text.tokenizer import Tokenizer

chunked_ids = st.lists(st.lists(st.integers(0, 420), max_size=8), max_size=12)


@given(chunked_ids, st.booleans())
def test_deltas_join_to_the_decoded_whole(tokenizer: Tokenizer, chunks: list[list[int]], skip: bool) -> None:
    stream = Detokenizer(tokenizer, skip_special=skip)
    text = "".join([*map(stream.push, chunks), stream.finish()])
    assert text == tokenizer.decode([index for chunk in chunks for index in chunk], skip_special=skip)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_valid_text_never_shows_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    stream = Detokenizer(tokenizer)
    shown = ""
    for index in tokenizer.encode(text):
        shown += stream.push([index])
        assert text.startswith(shown)
    assert stream.finish() == ""
    assert shown == text


def test_an_unfinished_character_shows_at_the_end_only(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🍎")
    assert len(ids) == 4
    stream = Detokenizer(tokenizer)
    assert stream.push(ids[:3]) == ""
    assert stream.finish() == "\ufffd"
    assert stream.push(ids) == "🍎"


def test_a_control_token_inside_a_character_is_passed_over(tokenizer: Tokenizer) -> None:
    first, *rest = tokenizer.encode("é")
    stream = Detokenizer(tokenizer)
    assert stream.push([first, *tokenizer.eos_ids]) == ""
    assert stream.push(rest) == "é"


def test_a_byte_that_cannot_become_a_character_shows_at_once(tokenizer: Tokenizer) -> None:
    first = tokenizer.encode("é")[0]
    stream = Detokenizer(tokenizer)
    assert stream.push([first, *tokenizer.encode("Max")]) == "\ufffdMax"
