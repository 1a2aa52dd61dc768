"""The fleet: keeps its workers busy and alive in a thread of its own, whatever the trainer is doing.

What a worker is, a thread or an actor of Ray on another machine, is the backend's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Condition, Thread
from typing import Any, Generic, Protocol, TypeVar

from redraft.errors import EngineError
from redraft.rl.fleet.ledger import Job, Ledger

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
POLL = 1.0  # seconds that the thread waits for an answer before it looks whether there is something else to do
DEATHS = 5  # of a worker, one after the other without an answer between them, before the run is given up


class WorkerDied(Exception):
    """A worker has ended without answering."""


class Backend(Protocol[T_co]):
    """Workers by number. Handles stand for answers that are being made."""

    def start(self, worker: int) -> None:
        """Starts a worker, or another one in its place."""
        ...

    def update(self, worker: int, version: int, weights: Any) -> None:
        """Sends weights; the worker takes them when it can. Doesn't wait, and says nothing of a worker that is dead."""
        ...

    def answer(self, worker: int, job: Job) -> Any:
        """Has a job answered by weights of version `job.least` or later; returns a handle."""
        ...

    def ready(self, handles: Sequence[Any], timeout: float) -> list[Any]:
        """Those of the handles that are done, once there is one, or none after `timeout` seconds."""
        ...

    def result(self, handle: Any) -> Sequence[T_co]:
        """What the prompts of the job were answered with, in order. Raises WorkerDied, or what the job raised."""
        ...

    def close(self) -> None:
        """Ends all workers."""
        ...


class Fleet(Generic[T]):
    """workers: how many. job: prompts that a worker answers together. weights: those of the ledger's version."""

    def __init__(self, backend: Backend[T], ledger: Ledger[T], *, workers: int, job: int, weights: Any) -> None:
        self._backend, self._ledger, self._job = backend, ledger, job
        self._weights = weights
        self._sent = dict.fromkeys(range(workers), -1)
        self._busy: dict[int, tuple[Any, Job]] = {}
        self._deaths = dict.fromkeys(range(workers), 0)
        self.restarts = 0
        self._error: BaseException | None = None
        self._closing = False
        self._changed = Condition()
        for worker in self._sent:
            backend.start(worker)
        self._thread = Thread(target=self._pump, name="fleet", daemon=True)
        self._thread.start()

    def take(self) -> list[T]:
        """Waits for the next batch. Raises what a job raised, or EngineError when workers die again and again."""
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                if (batch := self._ledger.take()) is not None:
                    return batch
                self._changed.wait(POLL)

    def trained(self, weights: Any) -> None:
        """The batch that was taken has been trained on; its outcome goes to all workers."""
        with self._changed:
            self._ledger.trained()
            self._weights = weights
            self._tell()
            self._changed.notify_all()

    @property
    def duplicates(self) -> int:
        """Answers that came twice, of which one counted."""
        return self._ledger.duplicates

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._backend.close()

    def __enter__(self) -> Fleet[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pump(self) -> None:
        try:
            while True:
                with self._changed:
                    if self._closing:
                        return
                    self._tell()
                    handles = [handle for handle, _ in self._busy.values()]
                    if not handles:
                        self._changed.wait(POLL)
                        continue
                # Not for long: jobs that are handed out meanwhile have handles of their own.
                done = self._backend.ready(handles, POLL / 10)
                for handle in done:
                    self._collect(handle)
        except BaseException as error:  # noqa: BLE001 - it belongs to the thread that waits for a batch
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _tell(self) -> None:
        """New weights to all, jobs to those who have none."""
        for worker, sent in self._sent.items():
            if sent < self._ledger.version:
                self._backend.update(worker, self._ledger.version, self._weights)
                self._sent[worker] = self._ledger.version
            if worker not in self._busy and (job := self._ledger.hand_out(self._job)) is not None:
                self._busy[worker] = self._backend.answer(worker, job), job

    def _collect(self, handle: Any) -> None:
        worker = next(number for number, (own, _) in self._busy.items() if own == handle)
        job = self._busy[worker][1]
        try:
            results = self._backend.result(handle)
        except WorkerDied as death:
            self._restart(worker, job, death)
            return
        with self._changed:
            del self._busy[worker]
            self._deaths[worker] = 0
            for index, answered in zip(job.prompts, results, strict=True):
                self._ledger.put(index, answered)
            self._changed.notify_all()

    def _restart(self, worker: int, job: Job, death: WorkerDied) -> None:
        self._deaths[worker] += 1
        if self._deaths[worker] >= DEATHS:
            raise EngineError(f"worker {worker} died {DEATHS} times without answering once; the last time: {death}")
        self._backend.start(worker)
        with self._changed:
            del self._busy[worker]
            self._ledger.lose(job)
            self._sent[worker] = -1
            self.restarts += 1
