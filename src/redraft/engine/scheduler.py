"""The scheduler: which sequences take part in the next forward, on which pages, and what its results change.

L is the block length, P the page length.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Listing
from contextlib import contextmanager
from dataclasses import dataclass

from redraft.decoding.candidates import Candidates
from redraft.decoding.canvas import Change
from redraft.decoding.stopping import TextStream
from redraft.engine.admission import Admission
from redraft.engine.answer import Answer
from redraft.engine.batch import Span
from redraft.engine.generate import ControlIds
from redraft.engine.pages import PagePool, page_length
from redraft.engine.prefix_cache import PrefixCache
from redraft.engine.radix import RootKey
from redraft.engine.request import EngineSettings, Failure, Request
from redraft.engine.sequence import Sequence
from redraft.engine.statistics import EngineStatistics, Meter
from redraft.errors import EngineError, InvalidInput, QueueFull
from redraft.types import CanvasEvent


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What one forward does for one sequence. committed: how many positions of the span are committed and read for
    their keys and values; behind them stand the blocks of the sequence's run when it `steps`."""

    answer: Answer
    sequence: Sequence
    span: Span
    committed: int
    steps: bool


class Scheduler:
    """The requests, between their arrival and their end, and the pages that they hold.

    A forward first serves the open blocks of all running sequences, then prompts, oldest first, with what is left of
    `forward_tokens`: nobody starves, since blocks are bounded by the running sequences and a prompt gets a block at
    least. Pages are taken when a forward needs them. When there are none left, the youngest running sequence gives up
    its own and goes back to the queue; so the oldest always has its way, and everyone is the oldest some day.
    """

    def __init__(
        self,
        settings: EngineSettings,
        pages: int,
        root: RootKey,
        control: ControlIds,
        *,
        text: Callable[[], TextStream] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.meter = Meter()
        self.root = root
        self.held = False  # whether sequences stop at the border of their block
        self._settings = settings
        self._control = control
        self._text = text
        self._now = now
        self._page_length = page_length(root.block_length)
        self._cache = PrefixCache(PagePool(pages), self._page_length)
        self._admission = Admission(self._cache, share=settings.prefix_cache)
        self._running: list[Sequence] = []  # oldest first
        self._answers: dict[int, Answer] = {}
        self._outputs: list[CanvasEvent | Failure] = []
        self._orders = 0
        self._planned = 0.0

    @property
    def busy(self) -> bool:
        """Whether a step would do or say something."""
        return bool(self._answers or self._outputs)

    @property
    def at_border(self) -> bool:
        """Whether no block is open on which a step has been taken."""
        return all(sequence.at_border for sequence in self._running) and self._admission.at_border

    def submit(self, request: Request) -> None:
        """InvalidInput when the id is in use or all pages together can't hold the request, QueueFull by the limit."""
        params, block = request.params, self.root.block_length
        if request.id in self._answers:
            raise InvalidInput(f"request id {request.id!r} is in use; it must be new until its request has ended")
        blocks = -(-(len(request.prompt) + params.max_tokens) // block)
        need, count = -(-blocks * block // self._page_length), self._cache.pool.count
        if need > count:
            raise InvalidInput(
                f"a prompt of {len(request.prompt)} tokens and max_tokens {params.max_tokens} need {need} pages, and "
                f"there are {count}; together they must be at most {count * self._page_length} tokens"
            )
        limit, free = self._settings.queue_limit, self._settings.max_running - len(self._running)
        if limit is not None and len(self._admission) + params.n > limit + free:
            raise QueueFull(
                f"{len(self._admission)} answers wait and {params.n} more would; queue_limit is {limit} beyond those "
                "that can run at once. Try again later"
            )
        seed = secrets.randbits(63) if params.seed is None else params.seed
        choices = [self._sequence(request, choice, seed) for choice in range(params.n)]
        self._answers[request.id] = Answer(request, choices, self.meter.clock.seconds)
        for sequence in choices:
            self._admission.add(sequence)

    def abort(self, request: int) -> None:
        """Ends a request as it stands, its pages returned at once. One that isn't there has ended already."""
        answer = self._answers.get(request)
        if answer is not None:
            self.meter.aborted += 1
            self._outputs += answer.abort(self.meter.clock.seconds)
            self._drop(answer)

    def plan(self) -> list[Part]:
        """The parts of the next forward, oldest sequence first; empty when nobody waits or runs."""
        now = self._now()
        for request in [answer.request for answer in self._answers.values()]:
            if request.deadline is not None and request.deadline <= now:
                self.abort(request.id)
        if self.held:
            self._stop_at_borders()
        self._admission.admit(self.root, self._running, self._settings.max_running, held=self.held)
        shares = self._shares()
        parts = []
        for sequence in list(self._running):
            count = shares.get(sequence.order)
            if count is None or not self._reserve(sequence, count):
                continue
            answer = self._answers[sequence.request.id]
            with self._alone(answer):
                parts.append(Part(answer, sequence, sequence.span(count), count, sequence.steps(count)))
        parts = [part for part in parts if not part.answer.over]
        if not parts and self._answers and not self._outputs and not (self.held and self.at_border):
            raise EngineError(f"{len(self._admission)} sequences wait, {len(self._running)} run, and none can go on")
        self._planned = self.meter.clock.seconds
        return parts

    def commit(self, parts: Listing[Part], candidates: Listing[Candidates]) -> list[CanvasEvent | Failure]:
        """Takes the results of the parts that step, in their order; returns what there is to tell since the last."""
        if parts:
            positions = sum(len(part.span.tokens) for part in parts)
            committed = sum(part.committed for part in parts)
            self.meter.forward(committed, positions, self.meter.clock.seconds - self._planned)
        results = iter(candidates)
        for part in parts:
            found = next(results) if part.steps else None
            if part.answer.over:  # a choice beside it has just failed
                continue
            with self._alone(part.answer):
                self._read(part)
                if found is not None:
                    self._step(part, found)
        outputs, self._outputs = self._outputs, []
        return outputs

    def statistics(self) -> EngineStatistics:
        return self.meter.statistics(len(self._admission), len(self._running), self._cache.statistics())

    def check(self, *, idle: bool = False) -> None:
        """EngineError unless every page is accounted for; idle: and nobody is there who could hold one."""
        if idle and (self._answers or self._running or len(self._admission)):
            raise EngineError(f"{len(self._answers)} requests are there, and an idle engine has none")
        self._cache.check([sequence.pages for sequence in self._running])

    def _stop_at_borders(self) -> None:
        """Sequences between two blocks give up their pages, whose keys and values will be outdated, and wait."""
        for sequence in [sequence for sequence in self._running if sequence.at_border]:
            self._running.remove(sequence)
            self._cache.release(sequence.stop())
            self._admission.add(sequence)

    def _sequence(self, request: Request, choice: int, seed: int) -> Sequence:
        self._orders += 1
        return Sequence(
            request,
            choice,
            self._orders,
            seed=seed,
            block_length=self.root.block_length,
            control=self._control,
            stream=self._text() if self._text else None,
        )

    def _shares(self) -> dict[int, int]:
        """How many of its waiting positions each sequence, by its order, may read in the next forward."""
        block = self.root.block_length
        writing = [sequence for sequence in self._running if sequence.waiting <= sequence.lag]
        shares = {sequence.order: sequence.waiting for sequence in writing}
        taken = sum(sequence.waiting + len(sequence.run.canvas.tokens) for sequence in writing)
        left = max(block, self._settings.forward_tokens - taken)
        for sequence in self._running:
            if sequence.order in shares:
                continue
            if left < block:
                break
            shares[sequence.order] = min(sequence.waiting, left // block * block)
            left -= shares[sequence.order]
        return shares

    def _reserve(self, sequence: Sequence, count: int) -> bool:
        """Pages for what the sequence reads next, at the cost of younger ones; False when it had to give way itself."""
        if sequence not in self._running:  # an older one has taken its pages just now
            return False
        need = sequence.need(count) - len(sequence.pages)
        while need > 0:
            pages = self._cache.allocate(need)
            if pages is not None:
                sequence.pages += pages
                break
            youngest = self._running.pop()
            self._cache.release(youngest.stop())
            self._admission.add(youngest)
            self.meter.preempted += 1
            if youngest is sequence:
                return False
        self._cache.pool.require_writable(sequence.pages[sequence.computed // self._page_length :])
        return True

    def _read(self, part: Part) -> None:
        """The committed positions of the span have keys and values; whole pages of frozen ones are shared at once."""
        sequence = part.sequence
        sequence.computed += part.committed
        if not part.steps:
            sequence.stats.prefill_forwards += 1
        self._publish(sequence)

    def _step(self, part: Part, candidates: Candidates) -> None:
        answer, sequence, stats = part.answer, part.sequence, part.sequence.stats
        drafted, edits = stats.drafted, stats.edits
        change = sequence.advance(candidates)
        self.meter.denoising_forwards += 1
        self.meter.drafted += stats.drafted - drafted
        self.meter.edits += stats.edits - edits
        stays = sequence.window.settings is not None or not sequence.run.done
        if stays and answer.request.events:
            self._outputs += answer.stepped(sequence, change)
        if not sequence.run.done:
            return
        frozen = sequence.commit(part.span.tokens[part.committed :])
        self._publish(sequence)
        if sequence.ending.reason is not None:
            self._running.remove(sequence)
            self._cache.release(sequence.stop())
        self._outputs += answer.frozen(sequence, frozen, Change() if stays else change, self.meter.clock.seconds)
        if answer.over:
            self.meter.finished += 1
            self._drop(answer)

    def _publish(self, sequence: Sequence) -> None:
        """Shares the pages that are newly full and frozen, for neighbours and for the next who begins like this."""
        full = min(sequence.frozen, sequence.computed) // self._page_length
        if full > sequence.shared and sequence.root == self.root and self._settings.prefix_cache:
            tokens = sequence.tokens[: full * self._page_length]
            sequence.pages[:full] = self._cache.insert(self.root, tokens, sequence.pages[:full])
            sequence.shared = full

    @contextmanager
    def _alone(self, answer: Answer) -> Iterator[None]:
        """What goes wrong in here ends this request and no other, but accounts that don't balance are everybody's."""
        try:
            yield
        except EngineError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is handed to the one whose request it is
            self.meter.failed += 1
            self._outputs.append(Failure(answer.request.id, error))
            self._drop(answer)

    def _drop(self, answer: Answer) -> None:
        """Forgets a request that is over, with all that its choices hold."""
        answer.over = True
        del self._answers[answer.request.id]
        for sequence in answer.choices:
            self._admission.remove(sequence)
            if sequence in self._running:
                self._running.remove(sequence)
                self._cache.release(sequence.stop())
            self.meter.generated_tokens += len(sequence.ending.token_ids)
        self.meter.cached_tokens += sum(sequence.stats.cached_tokens for sequence in answer.choices)
