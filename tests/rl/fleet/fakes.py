"""A backend of threads that sleep: workers whose answers take a fixed time, and that can be killed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Condition, Thread
from typing import Any

from redraft.rl.fleet.fleet import WorkerDied
from redraft.rl.fleet.ledger import Job
from redraft.rl.fleet.worker import RolloutWorker


class Handle:
    def __init__(self, worker: int, life: int, job: Job) -> None:
        self.worker, self.life, self.job = worker, life, job
        self.outcome: Any = None


class Sleepers:
    """Answers a prompt with (prompt, version that began it, worker, life). seconds: that an answer takes."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.lives: dict[int, int] = {}
        self.versions: dict[int, int] = {}
        self.open: list[Handle] = []
        self.log: list[tuple[str, Any]] = []
        self.times: list[tuple[Job, float, float]] = []  # of each answer, from when it was asked for
        self.closed = False
        self.fails: BaseException | None = None
        self.mortal: set[int] = set()  # die at every job
        self.changed = Condition()

    def start(self, worker: int) -> None:
        with self.changed:
            self.lives[worker] = self.lives.get(worker, 0) + 1
            self.versions[worker] = -1

    def update(self, worker: int, version: int, weights: Any) -> None:
        with self.changed:
            self.versions[worker] = version
            self.log.append(("update", (worker, version, weights)))

    def answer(self, worker: int, job: Job) -> Handle:
        with self.changed:
            assert self.versions[worker] >= job.least, "a job by weights that are too old"
            handle = Handle(worker, self.lives[worker], job)
            begun = self.versions[worker]
            self.log.append(("job", (worker, job)))
            self.open.append(handle)
        Thread(target=self._work, args=(handle, begun), daemon=True).start()
        return handle

    def _work(self, handle: Handle, begun: int) -> None:
        started = time.monotonic()
        time.sleep(self.seconds)
        with self.changed:
            self.times.append((handle.job, started, time.monotonic()))
            if handle.outcome is None:
                dead = handle.worker in self.mortal
                results = [(prompt, begun, handle.worker, handle.life) for prompt in handle.job.prompts]
                handle.outcome = WorkerDied("mortal") if dead else self.fails or results
            self.changed.notify_all()

    def kill(self, worker: int) -> None:
        with self.changed:
            for handle in self.open:
                if handle.worker == worker and handle.outcome is None:
                    handle.outcome = WorkerDied("killed")
            self.changed.notify_all()

    def ready(self, handles: Sequence[Handle], timeout: float) -> list[Handle]:
        with self.changed:
            self.changed.wait_for(lambda: any(handle.outcome is not None for handle in handles), timeout)
            return [handle for handle in handles if handle.outcome is not None]

    def result(self, handle: Handle) -> list[Any]:
        if isinstance(handle.outcome, BaseException):
            raise handle.outcome
        return handle.outcome

    def close(self) -> None:
        self.closed = True


class Workers:
    """Rollout workers in threads of this process, behind the calls of Ray's actors."""

    def __init__(self, recipe: Any, folder: Any) -> None:
        self._make = lambda: RolloutWorker(recipe, folder)
        self.workers: dict[int, RolloutWorker] = {}
        self.starts = 0
        self.pool = ThreadPoolExecutor(4)

    def start(self, worker: int) -> None:
        self.workers[worker] = self._make()
        self.starts += 1

    def update(self, worker: int, version: int, weights: Any) -> None:
        self.workers[worker].update(version, weights)

    def answer(self, worker: int, job: Job) -> Future[Any]:
        return self.pool.submit(self.workers[worker].answer, job)

    def ready(self, handles: Sequence[Future[Any]], timeout: float) -> list[Future[Any]]:
        return list(wait(handles, timeout, FIRST_COMPLETED).done)

    def result(self, handle: Future[Any]) -> Any:
        return handle.result()

    def close(self) -> None:
        self.pool.shutdown()
