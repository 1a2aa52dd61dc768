"""The engine: many requests at once on one network, each with exactly the tokens that it would have alone.

A step is three lines: plan, run, commit. The scheduler knows requests and pages, the executor the network and what
lies in the pages, and decoding what a block does with the candidates that come between the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Listing
from dataclasses import replace

from redraft.decoding.candidates import Candidates
from redraft.decoding.selection import select
from redraft.engine.checks import require_answerable, require_positive
from redraft.engine.executor import Executor
from redraft.engine.generate import ControlIds
from redraft.engine.memory import pool_pages
from redraft.engine.radix import RootKey
from redraft.engine.request import EngineSettings, Failure, Request
from redraft.engine.scheduler import Part, Scheduler
from redraft.engine.statistics import EngineStatistics
from redraft.engine.storage import PageStorage
from redraft.kernels import dispatch
from redraft.model.network import LLaDA2
from redraft.text.detokenizer import Detokenizer
from redraft.text.tokenizer import Tokenizer
from redraft.types import CanvasEvent

__all__ = ["Engine", "EngineSettings", "EngineStatistics", "Failure", "Request"]


class Engine:
    """For one thread at a time. `redraft.engine.local` shares it among the threads of a process, and
    `redraft.engine.async_engine` among the tasks of one event loop, from a process of its own.

    model: in evaluation mode, loaded and where it will stay. control: the ids that decoding gives a meaning.
    block_length: None takes the model's. tokenizer: for text and stop strings; without one there are only ids. now: the
    clock of deadlines.
    """

    def __init__(
        self,
        model: LLaDA2,
        control: ControlIds,
        settings: EngineSettings = EngineSettings(),
        *,
        block_length: int | None = None,
        tokenizer: Tokenizer | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.block_length = require_positive(
            "block_length", model.config.block_length if block_length is None else block_length
        )
        self.settings = settings
        dispatch.prepare(model.device, model.dtype)
        self._config = model.config
        self._tokenizer = tokenizer
        count = settings.pages or pool_pages(
            model.config,
            self.block_length,
            device=model.device,
            dtype=model.dtype,
            max_running=settings.max_running,
            tokens=settings.cache_tokens,
            memory_fraction=settings.memory_fraction,
        )
        storage = PageStorage(model.config, count, self.block_length, device=model.device, dtype=model.dtype)
        self._executor = Executor(model, storage, self.block_length)
        self._scheduler = Scheduler(
            settings,
            count,
            RootKey(0, self.block_length, model.config.block_routing),
            control,
            text=(lambda: Detokenizer(tokenizer)) if tokenizer else None,
            now=now,
        )

    @property
    def context_length(self) -> int:
        """Positions that prompt and answer may take together."""
        return self._config.max_position_embeddings

    @property
    def busy(self) -> bool:
        """Whether a step has something to do or to say."""
        return self._scheduler.busy

    def submit(self, request: Request) -> None:
        """Takes a request in; it runs with the next steps.

        InvalidInput for what can't be answered, an id in use, or more pages than there are; ContextLengthError when
        prompt and max_tokens exceed the context; QueueFull when too many wait.
        """
        require_answerable("the prompt", request.prompt, request.params, self._config, text=self._tokenizer is not None)
        self._scheduler.submit(request)

    def abort(self, request: int) -> None:
        """Ends a request: its pages return at once, and the next step tells its completion, with finish_reason "abort"
        in the choices that hadn't ended. An id that isn't there (any more) is let pass."""
        self._scheduler.abort(request)

    def step(self) -> list[CanvasEvent | Failure]:
        """One forward at most. A failure ends its request and touches no other; an error that is raised is everyone's,
        and leaves all requests where they were."""
        with self._scheduler.meter.clock.running():
            parts = self._scheduler.plan()
            candidates = self._run(parts)
            return self._scheduler.commit(parts, candidates)

    def weights_changed(self) -> None:
        """To be called after every change of the network's weights in place: what was computed before is not shared
        with anyone who comes later. Requests that are running keep what they have, unless they were held (`hold`)."""
        root = self._scheduler.root
        self._scheduler.root = replace(root, weights=int(root.weights) + 1)

    def hold(self, held: bool) -> None:
        """Whether running requests stop at the next border of a block, and none begins. `at_border` once all have; no
        key or value that was computed before is then used again, if `weights_changed` follows."""
        self._scheduler.held = held

    @property
    def at_border(self) -> bool:
        """Whether no block is open on which a step has been taken. Steps of an engine that is held lead there."""
        return self._scheduler.at_border

    def statistics(self) -> EngineStatistics:
        return self._scheduler.statistics()

    def check(self, *, idle: bool = False) -> None:
        """EngineError unless free, cached and held pages are all pages, each in one place, and every hold is that of a
        running sequence. idle: and no request is there."""
        self._scheduler.check(idle=idle)

    def _run(self, parts: Listing[Part]) -> list[Candidates]:
        """Candidates of the parts that step, in order, by one forward over all parts."""
        if not parts:
            return []
        hidden = self._executor.forward([part.span for part in parts])
        return select(self._executor.head, hidden, [part.sequence.ask() for part in parts if part.steps])
