"""Workers as actors of Ray: on this machine, or on all those of a cluster that an address names.

Ray moves values between its own processes by pickling them, so a cluster is one trust domain: whoever reaches its ports
can run code in it.
"""

from __future__ import annotations

import re
import signal
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from redraft.errors import ConfigError
from redraft.rl.fleet.fleet import WorkerDied
from redraft.rl.fleet.ledger import Job
from redraft.rl.fleet.worker import Group, RolloutWorker
from redraft.rl.recipe import RLRecipe

CONNECT = 10.0  # seconds that a cluster's address has to answer


class RayBackend:
    """Joins the cluster of `workers.address`, or the one that this process is part of, or starts one on this machine,
    which then ends with the run."""

    def __init__(self, recipe: RLRecipe, folder: Path) -> None:
        try:
            import ray
        except ImportError as error:
            raise ConfigError("workers.count needs the package ray: pip install 'redraft[rl]'") from error
        self._ray: Any = ray
        self._own = not ray.is_initialized()
        if self._own:
            self._join(recipe)
        if Path(recipe.start).exists():  # a worker has another working folder
            recipe = replace(recipe, start=str(Path(recipe.start).resolve()))
        self._recipe, self._folder = recipe, folder.resolve()
        # A job and the weights that come meanwhile are two calls at once. The fleet restarts what dies, not Ray: a new
        # actor needs its weights first.
        options = {"max_concurrency": 2, "max_restarts": 0, "num_cpus": 1, "num_gpus": recipe.workers.gpus}
        self._actor = ray.remote(**options)(RolloutWorker)
        self.actors: dict[int, Any] = {}
        self._weights: tuple[int, Any] = (-1, None)

    def _join(self, recipe: RLRecipe) -> None:
        address = recipe.workers.address
        # "local": without it, Ray joins whatever cluster has been on this machine last.
        own = {"address": "local", "num_cpus": recipe.workers.count, "include_dashboard": False}
        how = {"address": address} if address else own
        asked = signal.getsignal(signal.SIGTERM)
        try:
            if found := re.fullmatch(r"([^:/]+):([0-9]+)", address):
                # Ray would try for minutes.
                socket.create_connection((found[1], int(found[2])), CONNECT).close()
            self._ray.init(log_to_driver=False, **how)
        except OSError as error:  # ConnectionError is one
            if not address:
                raise
            raise ConfigError(f"workers.address {address!r}: no Ray cluster answers there ({error})") from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, asked)  # Ray would leave at once; the run writes a checkpoint first

    def start(self, worker: int) -> None:
        if worker in self.actors:
            self._ray.kill(self.actors[worker])
        self.actors[worker] = self._actor.remote(self._recipe, self._folder)

    def update(self, worker: int, version: int, weights: Any) -> None:
        if version != self._weights[0]:
            self._weights = version, self._ray.put(weights)  # once for all workers
        self.actors[worker].update.remote(version, self._weights[1])

    def answer(self, worker: int, job: Job) -> Any:
        return self.actors[worker].answer.remote(job)

    def ready(self, handles: Sequence[Any], timeout: float) -> list[Any]:
        return self._ray.wait(list(handles), num_returns=1, timeout=timeout)[0]

    def result(self, handle: Any) -> list[Group]:
        errors = self._ray.exceptions
        try:
            return self._ray.get(handle)
        except (errors.RayActorError, errors.ObjectLostError, errors.NodeDiedError) as error:
            raise WorkerDied(" ".join(str(error).split())[:300]) from error
        except errors.RayTaskError as error:
            raise error.cause from error

    def close(self) -> None:
        for actor in self.actors.values():
            self._ray.kill(actor)
        if self._own:
            self._ray.shutdown()
