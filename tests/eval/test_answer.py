from __future__ import annotations

import pytest

from redraft.eval.answer import Answer, shared, stutter


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("", 0.0),
        ("one two three", 0.0),
        ("two two", 1 / 2),
        ("the cat the cat", 1 / 4),
        ("a b c d a b c d", 1 / 8),
        ("a b c d e a b c d e", 0.0),  # five words are more than are looked at
        ("no no no", 2 / 3),
        ("))))", 0.0),  # marks alone
        ("f(x), f(x),", 0.0),  # five pieces
        ("x, x,", 1 / 4),
        ("我我", 1 / 2),
        ("ababab", 0.0),  # one word
    ],
)
def test_stutter(text: str, share: float) -> None:
    assert stutter(text) == pytest.approx(share)


def test_stutter_of_a_long_text_is_counted_once_a_word() -> None:
    assert stutter("a " * 1000) == pytest.approx(0.999)


def test_time_is_shared_by_tokens() -> None:
    answers = shared([Answer(tokens=30), Answer(tokens=10), Answer(tokens=0)], 2.0)
    assert [answer.seconds for answer in answers] == [1.5, 0.5, 0.0]
    assert [answer.seconds for answer in shared([Answer(), Answer()], 2.0)] == [1.0, 1.0]
