"""The engine in the caller's own process: whoever reads an answer drives the steps that all answers come from."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from threading import Lock

from redraft.engine.engine import Engine
from redraft.engine.request import Failure, Request
from redraft.types import CanvasEvent


class LocalEngine:
    """For several streams at once, also of several threads. Between two events nothing runs, so a reader who takes his
    time keeps nobody's request from going on: others step the engine, and what is his waits for him."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = Lock()
        self._ids = itertools.count()
        self._inboxes: dict[int, deque[CanvasEvent | Failure]] = {}
        self._left: deque[int] = deque()  # requests whose reader has gone

    def stream(self, requests: Sequence[Request], *, events: bool) -> Iterator[CanvasEvent]:
        """Answers these requests together; their events come as they are made, under the ids that the requests have
        here. events: of every step, see `Request`. Raises what a request fails with. An iterator that is closed, or
        ends by an error, takes its requests along."""
        inbox: deque[CanvasEvent | Failure] = deque()
        names: dict[int, int] = {}
        try:
            with self._lock:
                self._let_go()
                for request in requests:
                    own = next(self._ids)
                    self._engine.submit(replace(request, id=own, events=events))
                    names[own], self._inboxes[own] = request.id, inbox
            open_ = len(names)
            while open_:
                output = self._next(inbox)
                if isinstance(output, Failure):
                    raise output.error
                open_ -= output.completion is not None
                yield replace(output, request=names[output.request])
        finally:
            self._left.extend(names)
            # Never waits: Python may close a forgotten iterator anywhere, in the middle of another's step too, and
            # whoever steps next lets go of what is left.
            if self._lock.acquire(blocking=False):
                try:
                    self._let_go()
                finally:
                    self._lock.release()

    def weights_changed(self) -> None:
        """See `Engine.weights_changed`."""
        with self._lock:
            self._engine.weights_changed()

    def change_weights(self, change: Callable[[], None]) -> None:
        """Brings all running requests to the border of a block, calls `change`, and lets them go on."""
        with self._lock:
            self._let_go()
            self._engine.hold(True)
            try:
                while not self._engine.at_border:
                    self._step()
                self._step()  # those that have just come to a border let go of their pages
                try:
                    change()
                finally:
                    self._engine.weights_changed()
            finally:
                self._engine.hold(False)

    def _next(self, inbox: deque[CanvasEvent | Failure]) -> CanvasEvent | Failure:
        while not inbox:
            with self._lock:
                if not inbox:  # another reader's step may just have filled it
                    self._let_go()
                    self._step()
        return inbox.popleft()

    def _step(self) -> None:
        for output in self._engine.step():
            if output.request in self._inboxes:
                self._inboxes[output.request].append(output)

    def _let_go(self) -> None:
        while self._left:
            request = self._left.popleft()
            if self._inboxes.pop(request, None) is not None:
                self._engine.abort(request)
