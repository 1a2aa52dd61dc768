"""Where a sequence ends: EOS, stop ids, stop strings (also across blocks) and `max_tokens`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from redraft.types import FinishReason


class TextStream(Protocol):
    """An incremental detokenizer: the deltas of `push` and `finish`, joined, are the text of all tokens."""

    def push(self, ids: Sequence[int]) -> str: ...

    def finish(self) -> str: ...


class Ending:
    """Collects the tokens of committed blocks and cuts them where the sequence ends.

    token_ids: what was generated, the ending token (EOS, stop id, or the one that completed a stop string) included.
    text: without the ending token, and cut before a stop string. reason: None until the sequence has ended.
    """

    def __init__(
        self,
        *,
        max_tokens: int,
        end_ids: Iterable[int] = (),
        stop: Sequence[str] = (),
        stream: TextStream | None = None,
    ) -> None:
        self.token_ids: list[int] = []
        self.text = ""
        self.reason: FinishReason | None = None
        self._max_tokens = max_tokens
        self._end_ids = frozenset(end_ids)
        self._stop = tuple(stop)
        self._stream = stream
        self._held = ""  # text that may still turn out to begin a stop string

    def ends_within(self, tokens: Sequence[int]) -> bool:
        """Whether the sequence would end among these tokens, by an id or by `max_tokens`; stop strings, which show in
        the text alone, are left out."""
        return len(self.token_ids) + len(tokens) >= self._max_tokens or not self._end_ids.isdisjoint(tokens)

    def push(self, tokens: Iterable[int]) -> str:
        """Adds the generated tokens of a block; returns the text this adds. Tokens after the end are dropped."""
        already = len(self.text)
        for token in tokens:
            self.token_ids.append(token)
            if token in self._end_ids:
                self._finish("stop")
            else:
                self._add(self._stream.push([token]) if self._stream else "")
                if self.reason is None and len(self.token_ids) == self._max_tokens:
                    self._finish("length")
            if self.reason is not None:
                break
        return self.text[already:]

    def abort(self) -> str:
        """Ends the sequence from outside; returns the text that was held back."""
        already = len(self.text)
        self._finish("abort")
        return self.text[already:]

    def _add(self, text: str) -> None:
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.text += self._held[: min(found)]
            self._held = ""
            self.reason = "stop"
            return
        keep = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        self.text += self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]

    def _finish(self, reason: FinishReason) -> None:
        self._add(self._stream.finish() if self._stream else "")
        if self.reason is None:
            self.text += self._held
            self._held = ""
            self.reason = reason


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)
