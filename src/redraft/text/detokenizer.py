"""Incremental decoding: tokens in, text out, never half a character.

A byte-level token is a piece of a UTF-8 string, so a character may be spread over several tokens. An incremental
UTF-8 decoder keeps the unfinished bytes (three at most); what it gave is never taken back, and each token costs its
own length only.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from functools import cache

from redraft.text.tokenizer import Tokenizer


class Detokenizer:
    """The text of one growing sequence. What `push` and `finish` gave, joined, is `Tokenizer.decode` of all ids."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer.special_ids if skip_special else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """The text that these tokens complete, possibly empty. Bytes that can't become UTF-8 any more give U+FFFD."""
        return self._utf8.decode(
            b"".join(token_bytes(self._tokenizer, index) for index in ids if index not in self._skip)
        )

    def finish(self) -> str:
        """The end of the text: U+FFFD where a character was left unfinished, else nothing. Starts afresh after."""
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text


def token_bytes(tokenizer: Tokenizer, index: int) -> bytes:
    """What a token adds to the text, as UTF-8 that may begin or end inside a character; b"" for an id that is none."""
    token = tokenizer.token(index)
    if token is None:
        return b""
    table = byte_of_character()
    try:
        return bytes(table[char] for char in token)
    except KeyError:  # an added token is spelt as itself, and may hold characters that stand for no byte
        return token.encode("utf-8")


@cache
def byte_of_character() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2: Radford et al. 2019).

    Printable bytes of Latin-1 stand for themselves; the others, in order, are the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    table.update({chr(256 + order): byte for order, byte in enumerate(others)})
    return table
