"""The training loop: take a step's samples, corrupt them, accumulate both streams' gradients, step, record."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from redraft.errors import CheckpointError, ConfigError, NumericalError
from redraft.model.checkpoint import load_model
from redraft.model.config import ModelConfig
from redraft.model.network import LLaDA2
from redraft.text.build import train_tokenizer
from redraft.text.tokenizer import Tokenizer
from redraft.training.data import SkillSource, SkillTasks, corpus
from redraft.training.export import export
from redraft.training.initial import look_at_neighbours
from redraft.training.layout import Layout, lay_out
from redraft.training.metrics import MetricsFile, draw_curves
from redraft.training.objective import Draws, corrupt, stream_sums
from redraft.training.optimizer import Optimizer, balance, routers
from redraft.training.parallel import Ranks
from redraft.training.recipe import Recipe
from redraft.training.state import load_state, save_state, states

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
Report = Callable[[dict[str, float]], None]


@dataclass
class Run:
    """What a run carries from step to step."""

    recipe: Recipe
    folder: Path
    ranks: Ranks
    model: LLaDA2
    optimizer: Optimizer
    tokenizer: Tokenizer
    source: SkillSource
    step: int = 0
    positions: int = 0
    seconds: float = 0.0

    @property
    def mask_id(self) -> int:
        mask = self.model.config.mask_token_id
        if mask is None:
            raise ConfigError("the tokenizer names no mask token; training needs one")
        return mask


def train(recipe: Recipe, *, resume: bool = True, report: Report | None = None) -> Path:
    """Runs a recipe to its end and exports the model; returns the exported folder.

    A run whose folder holds a checkpoint continues it (unless `resume` is False, which refuses a used folder).
    Ctrl-C and SIGTERM finish the step under way, write a checkpoint and raise KeyboardInterrupt.
    """
    run = open_run(recipe, resume=resume)
    metrics = MetricsFile(run.folder / "metrics.jsonl", run.step) if run.ranks.first else None
    last_saved = run.step
    try:
        with _stop_requests() as asked:
            while run.step < recipe.schedule.steps:
                line = train_step(run)
                if metrics and (run.step % recipe.run.log_every == 0 or run.step == recipe.schedule.steps):
                    metrics.write(**line)
                if report and run.ranks.first:
                    report(line)
                stop = run.ranks.sums({"asked": len(asked)})["asked"] > 0
                if stop or run.step % recipe.run.save_every == 0:
                    _save(run)
                    last_saved = run.step
                if stop:
                    raise KeyboardInterrupt(f"stopped at step {run.step}; the same command resumes from {run.folder}")
    finally:
        if metrics:
            metrics.close()
    if last_saved != run.step:
        _save(run)
    exported = run.folder / "export"
    if run.ranks.first:
        draw_curves(run.folder / "metrics.jsonl", run.folder / "curves.png")
        export(run.model, run.folder / "tokenizer", exported)
    run.ranks.wait()
    return exported


def open_run(recipe: Recipe, *, resume: bool = True) -> Run:
    """Builds model, tokenizer, data and optimiser in the run's folder, from its last checkpoint if it has one."""
    folder, ranks = Path(recipe.run.output), Ranks()
    folder.mkdir(parents=True, exist_ok=True)
    if states(folder) and not resume:
        raise CheckpointError(f"{folder} already holds a run; resume it, or choose another run.output")
    tasks = SkillTasks(recipe.data, recipe.seed, recipe.schedule.steps * recipe.batch.samples)
    if ranks.first:
        (folder / "recipe.json").write_text(json.dumps(asdict(recipe), indent=1), encoding="utf-8")
        if not (folder / "tokenizer" / "tokenizer.json").exists():
            _make_tokenizer(recipe, tasks, folder / "tokenizer")
    ranks.wait()
    tokenizer = Tokenizer.load(folder / "tokenizer")
    model = _make_model(recipe, tokenizer).train()
    optimizer = Optimizer(model, recipe.optimizer, ranks)
    source = SkillSource(tasks, tokenizer, model.config.block_length)
    run = Run(recipe, folder, ranks, model, optimizer, tokenizer, source)
    if states(folder):
        extra = load_state(states(folder)[-1], model, optimizer)
        run.step, run.positions, run.seconds = extra["step"], extra["positions"], extra["seconds"]
    return run


def _make_tokenizer(recipe: Recipe, tasks: SkillTasks, folder: Path) -> None:
    """The tokenizer of the checkpoint that the run starts from, or one trained on the run's own tasks."""
    if not recipe.start:
        train_tokenizer(corpus(tasks, recipe.tokenizer.samples), recipe.tokenizer.vocab_size, folder)
        return
    Tokenizer.load(recipe.start)
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        if (Path(recipe.start) / name).exists():
            shutil.copy(Path(recipe.start) / name, folder / name)


def _make_model(recipe: Recipe, tokenizer: Tokenizer) -> LLaDA2:
    """The checkpoint that the run starts from, in float32, or a network with random weights."""
    if recipe.start:
        model = load_model(recipe.start, dtype=torch.float32)
        for name, value in recipe.model.items():
            if getattr(model.config, name) != value:
                raise ConfigError(f"model.{name} is {value!r}, but {recipe.start} has {getattr(model.config, name)!r}")
        return model
    config = ModelConfig(
        **recipe.model,
        vocab_size=-(-tokenizer.vocab_size // 8) * 8,
        mask_token_id=tokenizer.mask_id,
        eos_token_id=tokenizer.eos_ids[0],
        pad_token_id=tokenizer.eos_ids[0],
    )
    torch.manual_seed(recipe.seed)
    model = LLaDA2(config)
    look_at_neighbours(model)
    return model


def train_step(run: Run) -> dict[str, float]:
    """One optimiser step; returns its metrics.

    Every micro-batch is corrupted first, so that each stream can be divided by its count over the whole batch, on
    all processes.
    """
    started = time.monotonic()
    recipe, model, ranks = run.recipe, run.model, run.ranks
    draws = Draws(recipe.seed, run.step, run.mask_id, _replacements(run.tokenizer))
    layouts = list(_layouts(run))
    with _precision(recipe.run.precision):
        noisy = [corrupt(model, layout, recipe.objective, draws) for layout in layouts]
        supervised = sum(int(layout.supervised_BN.sum()) for layout in layouts) * recipe.objective.copies
        drafting = sum(int(batch.masked_BMN.sum()) for batch in noisy)
        counts = ranks.sums(
            {
                "drafting": drafting,
                "editing": supervised - drafting,
                "positions": sum(layout.positions_BT.numel() for layout in layouts),
            }
        )
        drafting, editing = max(1.0, counts["drafting"]), max(1.0, counts["editing"])
        totals: dict[str, float] = {}
        for layout, batch in zip(layouts, noisy, strict=True):
            sums = stream_sums(model, layout, batch)
            loss = sums.draft_loss / drafting + recipe.objective.edit_weight * sums.edit_loss / editing
            loss.backward()
            for name, value in vars(sums).items():
                totals[name] = totals.get(name, 0.0) + float(
                    value.detach() if isinstance(value, torch.Tensor) else value
                )
    totals = ranks.sums(totals)
    if not math.isfinite(totals["draft_loss"] + totals["edit_loss"]):
        raise NumericalError(f"the loss is not finite at step {run.step}; the last checkpoint is untouched")
    ranks.sum_gradients(model.parameters())
    ranks.sum_tensors([router.load for router in routers(model)])
    factor = recipe.schedule.factor(run.step)
    norm = run.optimizer.step(factor)
    worst_load = balance(model, recipe.optimizer.balance)
    seconds = time.monotonic() - started
    run.step += 1
    run.positions += int(counts["positions"])
    run.seconds += seconds
    return {
        "step": run.step,
        "tokens": run.positions,
        "seconds": round(run.seconds, 2),
        "tokens_per_second": round(counts["positions"] / seconds, 1),
        "draft_loss": totals["draft_loss"] / drafting,
        "edit_loss": totals["edit_loss"] / editing,
        "draft_accuracy": totals["draft_right"] / drafting,
        "edit_accuracy": totals["edit_right"] / editing,
        "repair_accuracy": totals["wrong_right"] / max(1.0, totals["wrong_count"]),
        "wrong_share": totals["wrong_count"] / editing,
        "rate": factor,
        "gradient_norm": norm,
        "worst_load": worst_load,
    }


def _layouts(run: Run) -> Iterator[Layout]:
    """This process's documents of a step, sorted by length so that a micro-batch pads little."""
    batch = run.recipe.batch
    first = run.step * batch.samples
    mine = range(first + run.ranks.rank, first + batch.samples, run.ranks.world)
    samples = sorted((run.source[index] for index in mine), key=lambda sample: len(sample.tokens))
    for i in range(0, len(samples), batch.micro):
        yield lay_out(samples[i : i + batch.micro], run.source.block_length, run.recipe.objective.copies)


def _replacements(tokenizer: Tokenizer) -> np.ndarray:
    """The ids that random noise draws from: all but the special ones."""
    return np.array([i for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids])


def _save(run: Run) -> None:
    """Writes a checkpoint; no process goes on before it is there."""
    if run.ranks.first:
        extra = {"positions": run.positions, "seconds": run.seconds}
        save_state(run.folder, run.step, run.model, run.optimizer, extra, run.recipe.run.keep)
    run.ranks.wait()


def _precision(setting: str) -> contextlib.AbstractContextManager:
    """Autocast to bfloat16 where asked, or where the processor has instructions for it (elsewhere it is slower)."""
    if setting == "float32" or (setting == "auto" and not _multiplies_bfloat16()):
        return contextlib.nullcontext()
    return torch.autocast("cpu", dtype=torch.bfloat16)


def _multiplies_bfloat16() -> bool:
    """Whether this processor has bfloat16 matrix instructions; emulated ones are several times slower than float32."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


@contextlib.contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """A list that is filled when the user or the system asks the process to stop."""
    asked: list[int] = []
    previous = {s: signal.signal(s, lambda number, _: asked.append(number)) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
