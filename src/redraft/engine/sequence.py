"""One choice of one request, from its prompt to its end: what it has written, what of that has keys and values, and
where they lie.

L is the block length, P the page length. All lengths are in positions and whole blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from redraft.decoding.block import BlockRun
from redraft.decoding.candidates import Ask, Candidates, Selection
from redraft.decoding.canvas import Canvas, Change
from redraft.decoding.modes import policy_of
from redraft.decoding.multiblock import Window, multiblock_of
from redraft.decoding.stopping import Ending, TextStream
from redraft.engine.batch import Span
from redraft.engine.generate import ControlIds
from redraft.engine.pages import page_length
from redraft.engine.radix import RootKey
from redraft.engine.request import Request
from redraft.types import Choice, Stats, TokenLogprob

_NOTHING = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Frozen:
    """A block that nothing will change any more, and the text that it adds to the answer."""

    canvas: Canvas
    text: str


class Sequence:
    """tokens: int64, the committed blocks, prompt included; the open block is `run.canvas`. computed: how many of them
    have keys and values in the pages. frozen: how many of them nothing will change any more. pages: in order; shared:
    how many of them are in the prefix cache. root: what the keys and values in the pages depend on besides the tokens.
    order: older sequences have lower ones.

    With multi-block editing (`window`) the last committed blocks are not frozen yet, and `run` is a pass over them
    while `editing`; then no block is open.

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
        self.window = Window(multiblock_of(params))
        self.editing = False
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
        self._settling: Iterator[BlockRun | Canvas] = iter(())
        self._admitted = False
        self._open(request.prompt[whole:])

    @property
    def waiting(self) -> int:
        """Committed positions before the run's blocks that still have no keys and values."""
        return max(0, self.start - self.computed)

    @property
    def start(self) -> int:
        """Position of the first of the run's blocks."""
        return self.frozen if self.editing else len(self.tokens)

    @property
    def at_border(self) -> bool:
        """Whether no step has been taken on its open block, and none on those behind it."""
        return not self.editing and self.run.canvas.step == 0

    @property
    def lag(self) -> int:
        """How many positions may wait while it writes: the last block, or those that were edited together."""
        return self.block_length * (1 + (self.window.settings.blocks if self.window.settings else 0))

    @property
    def wished(self) -> int:
        """Pages that hold everything up to the end of the open block."""
        return -(-(len(self.tokens) + self.block_length) // self.page_length)

    @property
    def last(self) -> Canvas:
        """The last block as it stands."""
        return self.run.canvas.split(self.window.canvases)[-1] if self.editing else self.run.canvas

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

    def steps(self, count: int) -> bool:
        """Whether a forward that reads the next `count` waiting positions reads the run's blocks too. A pass reads its
        own alone: there, positions see each other, and those before them don't see them."""
        return count == self.waiting and not (self.editing and count)

    def need(self, count: int) -> int:
        """Pages that such a forward needs. A pass writes nothing."""
        stop = self.computed + count
        if self.steps(count) and not self.editing:
            stop += self.block_length
        return -(-stop // self.page_length)

    def span(self, count: int) -> Span:
        """What a forward reads: the next `count` waiting positions, and the run's blocks by the rule of `steps`."""
        canvas, steps = self.run.canvas, self.steps(count)
        if self.editing and steps:
            pages = self.pages[: -(-self.start // self.page_length)]
            return Span(canvas.tokens, self.start, tuple(pages), self.run.policy.wanted(canvas), merged=True)
        tokens, wanted = self.tokens[self.computed : self.computed + count], _NOTHING
        if steps:
            wanted = count + self.run.policy.wanted(canvas)
            tokens = np.concatenate((tokens, canvas.tokens)) if count else canvas.tokens
        return Span(tokens, self.computed, tuple(self.pages[: self.need(count)]), wanted)

    def ask(self) -> Ask:
        """What the run's blocks want to know of the forward that read them."""
        canvas, start = self.run.canvas, self.start
        left = int(self.tokens[start - 1]) if start else None
        return Ask(canvas, self.selection, self.run.policy.wanted(canvas), left, self._counts)

    def advance(self, candidates: Candidates) -> Change:
        """One step of the run."""
        change = self.run.advance(candidates)
        self.stats.forwards += 1
        self.stats.drafted += len(change.drafted)
        self.stats.edits += len(change.edited)
        return change

    def commit(self, read: np.ndarray) -> list[Frozen]:
        """Takes over what the run, which is done, has made, and begins the next; returns the blocks that are frozen.

        read: the open block as the last forward read it. If nothing has changed since, its keys and values are there.
        """
        tokens = self.run.canvas.tokens
        if self.editing:
            changed = np.flatnonzero(self.tokens[self.start :] != tokens)
            if len(changed):  # the keys and values of all later blocks depend on it
                first = self.start + int(changed[0]) // self.block_length * self.block_length
                self.computed = min(self.computed, first)
            self.tokens = np.concatenate((self.tokens[: self.start], tokens))
        else:
            self.tokens = np.concatenate((self.tokens, tokens))
            if np.array_equal(read, tokens):
                self.computed = len(self.tokens)
            self.window.add(self.run)
            self._settling = self.window.settle(self.ending)
        return self._settle()

    def answer(self) -> Choice:
        reason = self.ending.reason or "abort"
        logprobs = None if self.request.params.logprobs is None else self._logprobs
        return Choice(self.ending.text, self.ending.token_ids, reason, self.stats, logprobs)

    def _settle(self) -> list[Frozen]:
        """Goes on to the next run, through the blocks that are frozen on the way to it."""
        frozen = []
        for item in self._settling:
            if isinstance(item, BlockRun):
                self.run, self.editing = item, True
                return frozen
            frozen.append(self._freeze(item))
        self.editing = False
        if self.ending.reason is None:
            self._open()
        return frozen

    def _freeze(self, canvas: Canvas) -> Frozen:
        before = len(self.ending.token_ids)
        given = int(canvas.prompt.sum())
        text = self.ending.push(canvas.tokens[given:].tolist())
        kept = self.ending.token_ids[before:]
        self.stats.generated_tokens = len(self.ending.token_ids)
        self._logprobs += canvas.token_logprobs[: len(kept)]
        if self.selection.counts_tokens:
            self._counts.update(kept)
        if len(kept) == self.block_length - given:  # what is cut is of no use to anyone who comes later
            self.frozen += self.block_length
        return Frozen(canvas, text)

    def _open(self, given: tuple[int, ...] = ()) -> None:
        block = len(self.tokens) // self.block_length
        logprobs = self.request.params.logprobs
        self.run = BlockRun(self.policy, Canvas.blank(block, self.block_length, self._mask, given, logprobs=logprobs))
