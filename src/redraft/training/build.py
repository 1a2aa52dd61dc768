"""A run, built in its folder: tokenizer, data, model and optimiser, from its last checkpoint if it has one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from redraft.errors import CheckpointError, ConfigError
from redraft.model.config import ModelConfig
from redraft.model.folder import checkpoint_folder
from redraft.model.network import LLaDA2
from redraft.text.build import train_tokenizer
from redraft.text.tokenizer import Tokenizer
from redraft.training.compile import compile_layers
from redraft.training.data import Source, corpus, open_pairs, open_source
from redraft.training.objective import DraftAndEdit, Draws, Objective
from redraft.training.optimizer import Optimizer
from redraft.training.parallel import Distributed, Ranks
from redraft.training.precision import compute_dtype
from redraft.training.preference import PreferenceObjective
from redraft.training.recipe import BaseRecipe, Recipe
from redraft.training.resume import check_data, check_recipe, write_recipe
from redraft.training.start import Start
from redraft.training.state import load_state, states

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


@dataclass
class BaseRun:
    """What every kind of run carries from step to step."""

    recipe: BaseRecipe
    folder: Path
    ranks: Ranks
    model: LLaDA2
    distributed: Distributed
    optimizer: Optimizer
    tokenizer: Tokenizer
    step: int = field(default=0, kw_only=True)
    positions: int = field(default=0, kw_only=True)
    seconds: float = field(default=0.0, kw_only=True)

    @property
    def fingerprint(self) -> str:
        """Text that changes with what the run learns from."""
        raise NotImplementedError

    @property
    def draws(self) -> Draws:
        """Of the step that comes."""
        return draws_of(self.recipe, self.step, self.model.config, self.tokenizer)

    def restore(self) -> None:
        """Goes on from the folder's last checkpoint, if it has one."""
        if states(self.folder):
            extra = load_state(states(self.folder)[-1], self.distributed, self.optimizer)
            check_data(self.folder, extra.get("data"), self.fingerprint)
            self.step, self.positions, self.seconds = extra["step"], extra["positions"], extra["seconds"]


@dataclass
class Run(BaseRun):
    """A run of `redraft train`."""

    recipe: Recipe
    objective: Objective
    source: Source

    @property
    def fingerprint(self) -> str:
        return self.source.fingerprint


def open_run(recipe: Recipe, *, resume: bool = True) -> Run:
    """Builds a run, or continues the one in `run.output` (unless `resume` is False, which refuses a used folder).

    Raises ConfigError if the run that is there can't go on by this recipe (`resume`).
    """
    base, start = open_base(recipe, lambda folder: _make_tokenizer(recipe, folder), resume=resume)
    objective = _objective(recipe, start, base.ranks)
    source = _open_data(recipe, base.tokenizer, base.model.config)
    run = Run(**vars(base) | {"recipe": recipe, "objective": objective, "source": source})
    run.restore()
    return run


def draws_of(recipe: BaseRecipe, step: int, config: ModelConfig, tokenizer: Tokenizer) -> Draws:
    """What the noise of a step needs."""
    if config.mask_token_id is None:
        raise ConfigError("the tokenizer names no mask token; training needs one")
    length = recipe.schedule.block_length(step, config.block_length)
    replacements = np.array([i for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids])
    return Draws(recipe.seed, step, config.mask_token_id, tokenizer.eos_ids, length, replacements)


def open_base(
    recipe: BaseRecipe, make_tokenizer: Callable[[Path], None], *, resume: bool = True
) -> tuple[BaseRun, Start]:
    """The part that all kinds of runs have in common, before its last checkpoint is read; and where its weights come
    from. make_tokenizer: writes the tokenizer of a run that has none into a folder."""
    folder, ranks = Path(recipe.run.output), Ranks()
    folder.mkdir(parents=True, exist_ok=True)
    if states(folder) and not resume:
        raise CheckpointError(f"{folder} already holds a run; resume it, or choose another run.output")
    if states(folder):
        check_recipe(folder, recipe)
    ranks.wait()  # all have read the recipe of the run that is there
    if ranks.first:
        write_recipe(folder, recipe)
        if not states(folder):
            shutil.rmtree(folder / "tokenizer", ignore_errors=True)  # of a run that never came to a checkpoint
            make_tokenizer(folder / "tokenizer")
    ranks.wait()
    tokenizer = Tokenizer.load(folder / "tokenizer")
    start = Start(recipe, tokenizer)
    model = start.network().train()
    dtype = compute_dtype(recipe.run.precision, ranks.device.type)
    distributed = Distributed(model, recipe.parallel, ranks, dtype)
    start.fill(distributed, trained=not states(folder))
    if recipe.run.compile:
        compile_layers(model)
    optimizer = Optimizer(distributed, recipe.optimizer, dtype)
    return BaseRun(recipe, folder, ranks, model, distributed, optimizer, tokenizer), start


def _objective(recipe: Recipe, start: Start, ranks: Ranks) -> Objective:
    """The recipe's objective; preference training compares with the network that it starts from, unless that is the
    trained one without its adapters."""
    config, length = recipe.objective, start.config.block_length
    if config.balance_weight and not start.config.num_moe_layers:
        raise ConfigError(
            f"objective.balance_weight is for models with routers, this one has none; got {config.balance_weight}"
        )
    if config.kind == "documents":
        return DraftAndEdit(config, length)
    reference = None if recipe.lora else start.reference(ranks)
    return PreferenceObjective(config.preference, config.copies, length, reference)


def _open_data(recipe: Recipe, tokenizer: Tokenizer, model: ModelConfig) -> Source:
    context = model.max_position_embeddings
    if recipe.objective.kind == "preference":
        return open_pairs(recipe.data, tokenizer, seed=recipe.seed, context=context)
    return open_source(
        recipe.data,
        tokenizer,
        seed=recipe.seed,
        total=recipe.documents,
        block_length=model.block_length,
        context=context,
    )


def _make_tokenizer(recipe: Recipe, folder: Path) -> None:
    """The tokenizer of the checkpoint that the run starts from, or one trained on the run's own tasks."""
    if recipe.start:
        copy_tokenizer(recipe.start, folder)
        return
    texts = corpus(recipe.data, seed=recipe.seed, total=recipe.documents, samples=recipe.tokenizer.samples)
    train_tokenizer(texts, recipe.tokenizer.vocab_size, folder)


def copy_tokenizer(checkpoint: str, folder: Path) -> None:
    """The tokenizer's files of a checkpoint. Raises CheckpointError if it has none that is whole."""
    start = checkpoint_folder(checkpoint)
    Tokenizer.load(start)
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        if (start / name).exists():
            shutil.copy(start / name, folder / name)
