"""The training loop: step, record, save, evaluate; until the recipe's end, or until someone asks to stop."""

from __future__ import annotations

import contextlib
import logging
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import Tensor

from redraft.errors import CheckpointError
from redraft.model.network import LLaDA2
from redraft.text.tokenizer import Tokenizer
from redraft.training.adapter_files import save_adapter
from redraft.training.average import SCORE, Mean, average_states, best_states, note_score, score_of, to_average
from redraft.training.build import BaseRun, open_run
from redraft.training.export import export
from redraft.training.lora import checkpoint_names, is_adapted, plain_name
from redraft.training.metrics import MetricsFile, draw_curves
from redraft.training.recipe import Recipe
from redraft.training.start import Start
from redraft.training.state import prune, save_state, states
from redraft.training.step import train_step
from redraft.training.tensors import Tensors
from redraft.training.trackers import Tracker, open_tracker

Line = dict[str, float]
Report = Callable[[Line], None]
Evaluate = Callable[[LLaDA2, Tokenizer], Line]
"""Scores of a model that is in training, in evaluation mode; one of them is `score`, of which more is better."""

Draw = Callable[[Path, Path], None]
"""Draws a metrics file as a picture."""

R = TypeVar("R", bound=BaseRun)

AGAIN = 1.0  # seconds between two Ctrl-C that are meant as two


def train(
    recipe: Recipe, *, resume: bool = True, report: Report | None = None, evaluate: Evaluate | None = None
) -> Path:
    """Runs a recipe to its end and exports the model; returns the exported folder.

    A run whose folder holds a checkpoint continues it (unless `resume` is False, which refuses a used folder).
    report: called with the step that the run starts from, then with every step's metrics, and with the results of an
    evaluation (`step` and `eval_...`) when there are some. evaluate: called every `run.evaluate_every` steps and at the
    end, if that isn't 0, after a checkpoint is written.

    Ctrl-C and SIGTERM finish the step under way, write a checkpoint and raise KeyboardInterrupt; a second Ctrl-C leaves
    at once. Raises CheckpointError where something can't be written, NumericalError where the loss or its gradient is
    not finite: the last checkpoint is whole then.
    """
    run = open_run(recipe, resume=resume)
    exported = run_to_end(run, train_step, report=report, evaluate=evaluate)
    if run.source.bad.count:  # those of this process
        logging.getLogger(__name__).warning("data: left out when their turn came: %s", run.source.bad)
    return exported


def run_to_end(
    run: R,
    take_step: Callable[[R], Line],
    *,
    report: Report | None = None,
    evaluate: Evaluate | None = None,
    draw: Draw | None = None,
) -> Path:
    """`train` for any kind of run. take_step: takes a step and returns its metrics. draw: makes a picture of the
    metrics file; None draws losses and evaluations."""
    settings, last = run.recipe.run, run.recipe.schedule.steps
    evaluate = evaluate if settings.evaluate_every else None
    due = evaluate is not None and _lacks_score(run)
    run.ranks.wait()  # nobody writes a score before all have looked
    with Log(run, report) as log, stop_requests(run.folder) as asked:
        if evaluate and due:  # the run was ended between a checkpoint and its evaluation
            evaluate_run(run, evaluate, log)
        while run.step < last:
            log.step(take_step(run))
            due = evaluate is not None and (run.step == last or run.step % settings.evaluate_every == 0)
            stop = run.ranks.sums({"asked": len(asked)})["asked"] > 0
            if stop or due or run.step == last or run.step % settings.save_every == 0:
                save(run)
            if stop:
                raise KeyboardInterrupt(f"stopped at step {run.step}; the same command resumes from {run.folder}")
            if evaluate and due:
                evaluate_run(run, evaluate, log)
        if settings.average:
            run.distributed.settle()
            average_states(to_average(run.folder, settings.average), run.distributed.pieces)
            if evaluate:
                evaluate_run(run, evaluate, log, average=True)
    return finish(run, draw or draw_curves)


def save(run: BaseRun) -> None:
    """Writes a checkpoint; no process goes on before it is there."""
    extra = {"positions": run.positions, "seconds": run.seconds, "data": run.fingerprint}
    save_state(run.folder, run.step, run.distributed, run.optimizer, extra, *_kept(run))


def _kept(run: BaseRun) -> tuple[int, list[Path]]:
    """How many of the latest checkpoints stay, and the best ones, which do so besides."""
    settings = run.recipe.run
    best = best_states(run.folder, max(1, settings.average)) if settings.evaluate_every else []
    return settings.keep if best else max(settings.keep, settings.average), best


def evaluate_run(run: BaseRun, evaluate: Evaluate, log: Log, *, average: bool = False) -> None:
    """Evaluates the model as it is, and notes its score in its checkpoint. average: it is a mean of several, which is
    no step of the run. The run goes on as if nothing had happened."""
    results: Line = {}
    with undisturbed(run.model), run.distributed.lockstep():
        if run.ranks.first:
            results = evaluate(run.model, run.tokenizer)
    if run.ranks.first:
        if not average:
            note_score(states(run.folder)[-1], results[SCORE])
            prune(run.folder, *_kept(run))  # one that is no longer among the best
        kind = "eval_average" if average else "eval"
        log.evaluation({f"{kind}_{name}": value for name, value in results.items()})
    run.ranks.wait()


def finish(run: BaseRun, draw: Draw) -> Path:
    """The picture of the curves and the exported folder."""
    exported = run.folder / "export"
    if run.ranks.first:
        try:
            draw(run.folder / "metrics.jsonl", run.folder / "curves.png")
            model, state = _whole(run)
            export(model, run.folder / "tokenizer", exported, state=state)
            if is_adapted(model):
                save_adapter(model, run.folder / "adapter", base=run.recipe.start)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{exported} could not be written: {' '.join(str(error).split())}; "
                f"the checkpoint of step {run.step} is whole, and the same command exports it"
            ) from error
    run.ranks.wait()
    return exported


def _whole(run: BaseRun) -> tuple[LLaDA2, Mapping[str, Tensor]]:
    """The trained model as one process sees it: its own, or where that lies in parts, one without memory, whose tensors
    are read from the checkpoints and where they are frozen from the start, each when it is asked for."""
    if not run.distributed.collective:
        return run.model, run.model.state_dict()
    start = Start(run.recipe, run.tokenizer)
    model = start.network()
    own = model.state_dict()
    trained = {name: tuple(own[name].shape) for name in checkpoint_names(model)}
    averaged = to_average(run.folder, run.recipe.run.average) if run.recipe.run.average else []
    mean = Mean(averaged or states(run.folder)[-1:], trained)
    state = Tensors(own.keys(), lambda name: mean.whole(name) if name in trained else start.read(plain_name(name)))
    if is_adapted(model):
        model.load_state_dict({name: state[name] for name in trained}, strict=False, assign=True)
    return model, state


@contextlib.contextmanager
def undisturbed(model: LLaDA2) -> Iterator[None]:
    """Evaluation mode inside, without gradient; afterwards the mode and the random generators are as before."""
    modes = [(module, module.training) for module in model.modules()]
    drawn = random.getstate()
    devices = [model.device] if model.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), torch.no_grad():
            model.eval()
            yield
    finally:
        random.setstate(drawn)
        for module, training in modes:
            module.training = training


class Log:
    """Where a run's metrics go: the file, the tracker, whoever watches. Only the first process writes."""

    def __init__(self, run: BaseRun, report: Report | None):
        self.run = run
        self.report = report if run.ranks.first else None
        self.files: list[Tracker] = []

    def __enter__(self) -> Log:
        if self.run.ranks.first:
            tracker = open_tracker(self.run.recipe, self.run.folder, self.run.step)
            self.files = [
                MetricsFile(self.run.folder / "metrics.jsonl", self.run.step),
                *([tracker] if tracker else []),
            ]
        if self.report:
            self.report({"step": self.run.step})
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files:
            file.close()

    def step(self, line: Line) -> None:
        recipe = self.run.recipe
        if line["step"] % recipe.run.log_every == 0 or line["step"] == recipe.schedule.steps:
            self._write(line)
        if self.report:
            self.report(line)

    def evaluation(self, results: Line) -> None:
        line = {"step": self.run.step, "positions": self.run.positions, **results}
        self._write(line)
        if self.report:
            self.report(line)

    def _write(self, line: dict[str, Any]) -> None:
        for file in self.files:
            file.write(**line)


@contextlib.contextmanager
def stop_requests(folder: Path) -> Iterator[list[float]]:
    """A list that is filled with the times at which the user or the system asks the process to stop."""
    asked: list[float] = []

    def ask(number: int, _frame: object) -> None:
        asked.append(time.monotonic())
        # One Ctrl-C may come twice: from the terminal, and from a program that passes it on.
        if number == signal.SIGINT and asked[-1] - asked[0] >= AGAIN:
            raise KeyboardInterrupt(f"left at once; the same command resumes from the last checkpoint in {folder}")

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _lacks_score(run: BaseRun) -> bool:
    """Whether the run goes on from a checkpoint that an evaluation was due for and that has none."""
    settings, reached = run.recipe.run, states(run.folder)
    due = run.step == run.recipe.schedule.steps or run.step % settings.evaluate_every == 0
    return bool(reached) and due and score_of(reached[-1]) is None
