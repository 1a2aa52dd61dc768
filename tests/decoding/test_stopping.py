from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.decoding.stopping import Ending

EOS, OTHER = 0, 1


class Pieces:
    """Token i is the i-th piece; the last character of a push is kept back, as half a UTF-8 character is."""

    def __init__(self, pieces: Sequence[str], lag: bool = False) -> None:
        self.pieces, self.lag, self.kept = pieces, lag, ""

    def push(self, ids: Sequence[int]) -> str:
        text = self.kept + "".join(self.pieces[index] for index in ids)
        self.kept = text[-1:] if self.lag else ""
        return text[: len(text) - len(self.kept)]

    def finish(self) -> str:
        text, self.kept = self.kept, ""
        return text


PIECES = ["<eos>", "<other>", "a", "b", "ab", "ba", "aa", ""]


def offline(tokens: list[int], stop: list[str], maximum: int) -> tuple[list[int], str, str | None]:
    """The definition, read from left to right over the whole text."""
    text = ""
    for count, token in enumerate(tokens[:maximum], 1):
        if token in (EOS, OTHER):
            return tokens[:count], text, "stop"
        text += PIECES[token]
        found = [text.find(s) for s in stop if s in text]
        if found:
            return tokens[:count], text[: min(found)], "stop"
        if count == maximum:
            return tokens[:count], text, "length"
    return tokens, text, None


@given(
    tokens=st.lists(st.sampled_from([2, 3, 4, 5, 6, 7, 2, 3, EOS, OTHER]), min_size=1, max_size=30),
    stop=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    maximum=st.integers(1, 30),
    block=st.integers(1, 8),
)
def test_cut_is_that_of_the_whole_text_and_deltas_join_to_it(
    tokens: list[int], stop: list[str], maximum: int, block: int
) -> None:
    ending = Ending(max_tokens=maximum, end_ids=(EOS, OTHER), stop=stop, stream=Pieces(PIECES))
    deltas = []
    for start in range(0, len(tokens), block):
        deltas.append(ending.push(tokens[start : start + block]))
        if ending.reason:
            break
    ids, text, reason = offline(tokens, stop, maximum)
    assert (ending.token_ids, ending.reason) == (ids, reason)
    assert "".join(deltas) == ending.text
    # Without an end the text that may begin a stop string is still held back.
    assert ending.text == text if reason else text.startswith(ending.text)


def test_a_stop_string_may_span_blocks_and_nothing_of_it_is_streamed() -> None:
    ending = Ending(max_tokens=10, stop=["bab"], stream=Pieces(PIECES))
    assert ending.push([2, 3]) == "a"
    assert ending.push([4, 2]) == ""
    assert (ending.reason, ending.text, ending.token_ids) == ("stop", "a", [2, 3, 4])


def test_text_held_back_is_released_at_the_end() -> None:
    ending = Ending(max_tokens=2, stop=["ba"], stream=Pieces(PIECES))
    assert ending.push([2]) == "a"
    assert ending.push([3]) == "b"
    assert ending.reason == "length"


def test_the_last_half_character_can_complete_a_stop_string() -> None:
    ending = Ending(max_tokens=2, stop=["ab"], stream=Pieces(PIECES, lag=True))
    assert ending.push([6, 3]) == "a"
    assert (ending.reason, ending.text) == ("stop", "a")


@pytest.mark.parametrize(("token", "reason"), [(EOS, "stop"), (2, "length")])
def test_the_last_token_decides_the_reason(token: int, reason: str) -> None:
    ending = Ending(max_tokens=2, end_ids=(EOS,))
    assert ending.push([3, token, 4]) == ""
    assert (ending.reason, ending.token_ids) == (reason, [3, token])
