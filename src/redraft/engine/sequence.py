"""One choice of one request, from its prompt to its end: what it has written, what of that has keys and values, and
where they lie.

L is the block length, P the page length. All lengths are in positions and whole blocks.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from redraft.decoding.block import BlockRun
from redraft.decoding.candidates import Ask, Candidates, Selection
from redraft.decoding.canvas import Canvas, Change
from redraft.decoding.modes import policy_of
from redraft.decoding.stopping import Ending, TextStream
from redraft.engine.batch import Span
from redraft.engine.generate import ControlIds
from redraft.engine.pages import page_length
from redraft.engine.radix import RootKey
from redraft.engine.request import Request
from redraft.types import Choice, Stats, TokenLogprob

_NOTHING = np.empty(0, dtype=np.int64)


class Sequence:
    """tokens: int64, the committed blocks, prompt included; the open block is `run.canvas`. computed: how many of them
    have keys and values in the pages. frozen: how many of them nothing will change any more; what edits a block after
    its commit (multi-block editing) holds this back. pages: in order; shared: how many of them are in the prefix cache.
    root: what the keys and values in the pages depend on besides the tokens. order: older sequences have lower ones.

    Without its pages a sequence goes on with the same tokens later: it keeps all that its steps depend on.
    """

    def __init__(
        self,
        request: Request,
        choice: int,
        order: int,
        *,
        seed: int,
        block_length: int,
        control: ControlIds,
        stream: TextStream | None,
    ) -> None:
        params = request.params
        self.request, self.choice, self.order = request, choice, order
        self.block_length, self.page_length = block_length, page_length(block_length)
        self.selection = Selection.of(params, (control.mask,), seed=seed, choice=choice)
        self.policy = policy_of(params)
        self.ending = Ending(
            max_tokens=params.max_tokens,
            end_ids=set(params.stop_token_ids) | (set() if params.ignore_eos else control.eos),
            stop=params.stop,
            stream=stream,
        )
        self.stats = Stats(prompt_tokens=len(request.prompt))
        whole = len(request.prompt) // block_length * block_length
        self.tokens = np.array(request.prompt[:whole], dtype=np.int64)
        self.computed, self.frozen = 0, whole
        self.pages: list[int] = []
        self.shared = 0
        self.root: RootKey | None = None
        self._mask = control.mask
        self._counts: Counter[int] = Counter()
        self._logprobs: list[TokenLogprob] = []
        self._admitted = False
        self._open(request.prompt[whole:])

    @property
    def waiting(self) -> int:
        """Committed positions that still have no keys and values."""
        return len(self.tokens) - self.computed

    @property
    def wished(self) -> int:
        """Pages that hold everything up to the end of the open block."""
        return -(-(len(self.tokens) + self.block_length) // self.page_length)

    def admit(self, root: RootKey, pages: list[int]) -> None:
        """It may run, on these pages of its own first tokens, which others have computed."""
        self.root, self.pages, self.shared = root, pages, len(pages)
        self.computed = len(pages) * self.page_length
        if not self._admitted:
            self._admitted = True
            self.stats.cached_tokens = self.computed

    def stop(self) -> list[int]:
        """It runs no more, for now or for good; returns the pages that it held."""
        pages, self.pages, self.shared, self.computed = self.pages, [], 0, 0
        return pages

    def span(self, count: int) -> Span:
        """What a forward reads: the next `count` waiting positions, and the open block when none waits behind them."""
        start, tokens, wanted = self.computed, self.tokens[self.computed : self.computed + count], _NOTHING
        if count == self.waiting:
            canvas = self.run.canvas
            wanted = count + self.policy.wanted(canvas)
            tokens = np.concatenate((tokens, canvas.tokens)) if count else canvas.tokens
        pages = -(-(start + len(tokens)) // self.page_length)
        return Span(tokens, start, tuple(self.pages[:pages]), wanted)

    def ask(self) -> Ask:
        """What the open block wants to know of the forward that read it."""
        canvas = self.run.canvas
        left = int(self.tokens[-1]) if len(self.tokens) else None
        return Ask(canvas, self.selection, self.policy.wanted(canvas), left, self._counts)

    def advance(self, candidates: Candidates) -> Change:
        """One step on the open block."""
        change = self.run.advance(candidates)
        self.stats.forwards += 1
        self.stats.drafted += len(change.drafted)
        self.stats.edits += len(change.edited)
        return change

    def commit(self, read: np.ndarray) -> tuple[Canvas, str]:
        """Commits the open block, which is done; returns it and the text that it adds.

        read: the block as the last forward read it. If nothing has changed since, its keys and values are there. A
        block that the answer ends in the middle of is not committed: nothing can follow on what was cut.
        """
        canvas = self.run.canvas
        given = int(canvas.prompt.sum())
        before = len(self.ending.token_ids)
        text = self.ending.push(canvas.tokens[given:].tolist())
        kept = self.ending.token_ids[before:]
        self.stats.generated_tokens = len(self.ending.token_ids)
        self._logprobs += canvas.token_logprobs[: len(kept)]
        if self.selection.counts_tokens:
            self._counts.update(kept)
        if len(kept) == self.block_length - given:
            self.tokens = np.concatenate((self.tokens, canvas.tokens))
            self.frozen = len(self.tokens)
            if np.array_equal(read, canvas.tokens):
                self.computed = len(self.tokens)
        if self.ending.reason is None:
            self._open()
        return canvas, text

    def answer(self) -> Choice:
        reason = self.ending.reason or "abort"
        logprobs = None if self.request.params.logprobs is None else self._logprobs
        return Choice(self.ending.text, self.ending.token_ids, reason, self.stats, logprobs)

    def _open(self, given: tuple[int, ...] = ()) -> None:
        block = len(self.tokens) // self.block_length
        logprobs = self.request.params.logprobs
        self.run = BlockRun(self.policy, Canvas.blank(block, self.block_length, self._mask, given, logprobs=logprobs))
