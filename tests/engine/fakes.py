"""A fake of everything below the scheduler: its keys and values are the tokens themselves.

What the fake proposes is a function of a sequence's own tokens, which it reads from the pages as an attention would. So
a page that was lost, shared wrongly or written by someone else changes the answer, and the answer is compared with that
of a loop that has no pages at all.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np

from redraft.decoding.block import BlockRun
from redraft.decoding.candidates import Candidates
from redraft.decoding.canvas import Canvas
from redraft.decoding.modes import policy_of
from redraft.decoding.multiblock import multiblock_of
from redraft.decoding.stopping import Ending
from redraft.engine.batch import Span
from redraft.engine.generate import ControlIds
from redraft.engine.pages import page_length
from redraft.engine.radix import RootKey
from redraft.engine.request import EngineSettings, Failure, Request
from redraft.engine.scheduler import Scheduler
from redraft.types import CanvasEvent, Completion, SamplingParams

VOCAB, EOS, MASK = 40, 38, 39
BROKEN = 37  # a prompt that begins with it gets logits that are not finite
UNWRITTEN = -1


def propose(before: np.ndarray, block: np.ndarray, choice: int = 0) -> Candidates:
    """Tokens and confidences that depend on all earlier tokens, on the place and, now and then, on the block's own.
    Some blocks converge, some go round in circles, and some end the text."""
    place = np.arange(len(block))
    seed = crc32(before.tobytes()) % 9973 + choice
    token = (seed + 7 * place + int(block.sum()) % 5 // 3) % EOS
    token = np.where((seed + place) % 61 == 0, EOS, token)
    prob = (seed + 31 * place + 17 * int(block.sum()) % 101 + 1) % 101 / 102 + 0.005
    whole = np.concatenate((before, block))
    return Candidates(token, prob, np.full(len(block), whole[0] != BROKEN))


def alone(prompt: tuple[int, ...], params: SamplingParams, block_length: int, choice: int = 0) -> list[int]:
    """The tokens of one answer, by the plainest loop. before: what is frozen. open_: blocks that aren't, with how much
    of each is prompt."""
    policy, multi = policy_of(params), multiblock_of(params)
    kept, ends = multi.blocks if multi else 0, set() if params.ignore_eos else {EOS}
    ending = Ending(max_tokens=params.max_tokens, end_ids=ends)
    whole = len(prompt) // block_length * block_length
    before, given = np.array(prompt[:whole], dtype=np.int64), prompt[whole:]
    open_: list[Canvas] = []

    def finished(run: BlockRun) -> Canvas:
        while not run.done:
            run.advance(propose(before, run.canvas.tokens, choice))
        return run.canvas

    def edit() -> None:
        if multi and open_:
            open_[:] = finished(BlockRun(multi.policy, Canvas.joined(open_))).split(open_)

    def freeze(count: int) -> None:
        nonlocal before
        for canvas in [open_.pop(0) for _ in range(count)]:
            if ending.reason is None:
                ending.push(canvas.tokens[~canvas.prompt].tolist())
            before = np.concatenate((before, canvas.tokens))

    while ending.reason is None:
        committed = np.concatenate([before, *(canvas.tokens for canvas in open_)])
        run = BlockRun(policy, Canvas.blank(len(committed) // block_length, block_length, MASK, given))
        while not run.done:
            run.advance(propose(committed, run.canvas.tokens, choice))
        open_.append(run.canvas)
        given = ()
        edit()
        freeze(max(0, len(open_) - kept))
        written = [token for canvas in open_ for token in canvas.tokens[~canvas.prompt].tolist()]
        over = len(ending.token_ids) + len(written) >= params.max_tokens or not ends.isdisjoint(written)
        if ending.reason is None and over:
            edit()
            freeze(len(open_))
    return ending.token_ids


class FakeEngine:
    """The real scheduler over the fake. time: what deadlines are compared with. forwards: of each, for each part, how
    many positions were committed already, and how many the span has."""

    def __init__(self, settings: EngineSettings, block_length: int, pages: int) -> None:
        self.time = 0.0
        self.forwards: list[list[tuple[int, int]]] = []
        self.completions: dict[int, Completion] = {}
        self.failures: dict[int, Failure] = {}
        self.events: list[CanvasEvent] = []
        self._store = np.full((pages, page_length(block_length)), UNWRITTEN, dtype=np.int64)
        root = RootKey(0, block_length)
        control = ControlIds(MASK, frozenset({EOS}))
        self.scheduler = Scheduler(settings, pages, root, control, now=lambda: self.time)

    def step(self) -> None:
        parts = self.scheduler.plan()
        found = []
        for part in parts:
            before = self._read(part.span)
            if part.steps:
                before = np.concatenate((before, part.span.tokens[: part.committed]))
                found.append(propose(before, part.span.tokens[part.committed :], part.sequence.choice))
        for part in parts:
            self._write(part.span)
        if parts:
            self.forwards.append([(part.committed, len(part.span.tokens)) for part in parts])
        for output in self.scheduler.commit(parts, found):
            if isinstance(output, Failure):
                assert output.request not in self.failures
                self.failures[output.request] = output
                continue
            self.events.append(output)
            if output.completion is not None:
                assert output.request not in self.completions
                self.completions[output.request] = output.completion

    def drain(self) -> None:
        while self.scheduler.busy:
            self.step()
        self.scheduler.check(idle=True)

    def answer(self, prompt: list[int] | tuple[int, ...], id: int = 0, **settings: object) -> Completion:
        """Answers one request until the engine is idle."""
        self.scheduler.submit(Request(tuple(prompt), SamplingParams(**settings), id))  # type: ignore[arg-type]
        self.drain()
        return self.completions[id]

    def _read(self, span: Span) -> np.ndarray:
        before = self._store[list(span.pages)].ravel()[: span.start]
        assert (before != UNWRITTEN).all(), "a page was read before it was written"
        return before

    def _write(self, span: Span) -> None:
        if span.merged:
            return
        whole = self._store[list(span.pages)].ravel()
        whole[span.start : span.stop] = span.tokens
        self._store[list(span.pages)] = whole.reshape(len(span.pages), -1)
