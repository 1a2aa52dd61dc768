"""A training run as a file: YAML plus `key=value` overrides, validated before anything starts."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import yaml

from redraft.errors import ConfigError
from redraft.model.config import ModelConfig
from redraft.training.data.config import DataConfig
from redraft.training.lora import LoraConfig
from redraft.training.objective import ObjectiveConfig
from redraft.training.parallel import ParallelConfig

OF_THE_TOKENIZER = {"vocab_size", "mask_token_id", "eos_token_id", "pad_token_id"}


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """The tokenizer that a run from scratch trains first. samples: training tasks that it is trained on."""

    vocab_size: int = 1024
    samples: int = 30_000

    def __post_init__(self) -> None:
        _at_least_one("tokenizer", self, "vocab_size", "samples")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """kind: "adamw", or "muon" for the matrices with AdamW for the rest. rate: peak learning rate of AdamW;
    muon_rate: that of Muon, per unit of root-mean-square update. balance: step of the router's bias."""

    kind: str = "adamw"
    rate: float = 2e-3
    muon_rate: float = 0.02
    weight_decay: float = 0.05
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    balance: float = 1e-3

    def __post_init__(self) -> None:
        if self.kind not in ("adamw", "muon"):
            raise ConfigError(f'optimizer.kind must be "adamw" or "muon", got {self.kind!r}')
        for name in ("rate", "muon_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"optimizer.{name} must be above 0, got {getattr(self, name)}")
        for name in ("weight_decay", "balance"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"optimizer.{name} must be at least 0, got {getattr(self, name)}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"optimizer.{name} must be from 0 to below 1, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Warmup-stable-decay: linear up over `warmup` steps, flat, linear down to 0 over the last `decay` share.

    blocks: the block length over the run, as [share of the run from which, length] in rising order; length 0 is the
    whole document (plain masked diffusion). Empty: the model's own block length throughout. An autoregressive model
    becomes a diffusion model by [[0, 1], [0.1, 4], [0.2, 32], [0.4, 0], [0.8, 32]] or so (LLaDA2.0 report, section 3).
    """

    steps: int = 1000
    warmup: int = 100
    decay: float = 0.4
    blocks: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 <= self.decay <= 1 or self.warmup < 0:
            raise ConfigError(
                f"schedule needs steps >= 1, warmup >= 0 and decay from 0 to 1, "
                f"got {self.steps}, {self.warmup} and {self.decay}"
            )
        shares = [stage[0] for stage in self.blocks if len(stage) == 2 and stage[1] >= 0 and stage[1] == int(stage[1])]
        if len(shares) != len(self.blocks) or shares != sorted(shares) or any(not 0 <= share <= 1 for share in shares):
            raise ConfigError(
                "schedule.blocks must be [share of the run, block length] pairs with rising shares from 0 to 1 and "
                f"whole lengths of at least 0, got {[list(stage) for stage in self.blocks]}"
            )
        if shares and shares[0] != 0:
            raise ConfigError(f"schedule.blocks must begin with a share of 0, got {shares[0]}")

    def factor(self, step: int) -> float:
        """Multiplier of the learning rate at a step, counted from 0."""
        left = (self.steps - step) / max(1.0, self.decay * self.steps)
        return max(0.0, min(1.0, (step + 1) / max(1, self.warmup), left))

    def block_length(self, step: int, own: int) -> int:
        """The block length at a step of a model whose own is `own`."""
        lengths = [int(length) for share, length in self.blocks if step >= share * self.steps]
        return (lengths[-1] or WHOLE) if lengths else own


WHOLE = 1 << 40  # a block length that no document reaches


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """samples: rows of data a step, over all forwards and processes. length: document positions of a forward at most;
    documents are packed up to it."""

    samples: int = 32
    length: int = 2048

    def __post_init__(self) -> None:
        _at_least_one("batch", self, "samples", "length")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """output: folder of the run. processes: data-parallel processes on this machine; on a CPU, one a core with a thread
    each trains faster than one with many threads. precision: "float32", "bfloat16" (autocast), or "auto": bfloat16
    where the processor multiplies it natively. compile: fuse the layers' small operations by torch.compile, which takes
    a minute at the start and, on a CPU, a C++ compiler. save_every: steps between checkpoints; keep: the latest ones
    kept.

    evaluate_every: steps between evaluations (0: none), each of a checkpoint that is kept while its score is among the
    best. evaluate: "skills", the accuracy on held-out items at the modes quality and speed, or "elbo", the bound on the
    likelihood of held-out rows. evaluate_data: these rows as a JSONL file; "" takes held-out items of the skills.
    evaluate_items: items or rows of an evaluation. average: the mean of that many checkpoints is exported, the best
    ones by their scores or else the last ones (0: the last weights).

    log_every: steps between lines of metrics.jsonl. track: where metrics go besides: "none", "tensorboard", "trackio"
    or "wandb".
    """

    output: str = "runs/redraft"
    processes: int = 1
    precision: str = "auto"
    compile: bool = False
    save_every: int = 200
    keep: int = 2
    evaluate_every: int = 0
    evaluate: str = "skills"
    evaluate_data: str = ""
    evaluate_items: int = 60
    average: int = 0
    log_every: int = 10
    track: str = "none"

    def __post_init__(self) -> None:
        _at_least_one("run", self, "processes", "save_every", "keep", "evaluate_items", "log_every")
        for name in ("evaluate_every", "average"):
            if getattr(self, name) < 0:
                raise ConfigError(f"run.{name} must be at least 0, got {getattr(self, name)}")
        _one_of("run", self, "precision", "auto", "float32", "bfloat16")
        _one_of("run", self, "evaluate", "skills", "elbo")
        if self.evaluate_data and self.evaluate != "elbo":
            raise ConfigError(f"run.evaluate_data is for run.evaluate=elbo, got it with {self.evaluate!r}")
        _one_of("run", self, "track", "none", "tensorboard", "trackio", "wandb")


@dataclass(frozen=True, kw_only=True)
class BaseRecipe:
    """What every kind of training run depends on. start: a checkpoint folder whose weights and tokenizer the run starts
    from; redraft-nano is the model inside the package. model: fields of `ModelConfig` but the vocabulary's, which the
    tokenizer gives; with a `start` they must be the checkpoint's. lora: adapters that are trained instead of the
    weights."""

    seed: int = 0
    start: str = ""
    model: dict[str, Any] = field(default_factory=dict)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    lora: LoraConfig | None = None
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ConfigError(f"seed must be at least 0, got {self.seed}")
        if self.lora and self.optimizer.kind == "muon":
            raise ConfigError('optimizer.kind must be "adamw" with lora: Muon would take stacked factors as one matrix')
        if self.lora and self.parallel.experts > 1:
            raise ConfigError(f"parallel.experts must be 1 with lora, got {self.parallel.experts}")
        known = {f.name for f in fields(ModelConfig)} - OF_THE_TOKENIZER
        for name in self.model:
            if name not in known:
                raise ConfigError(f"unknown key 'model.{name}'{_nearest(name, known)}")


@dataclass(frozen=True, kw_only=True)
class Recipe(BaseRecipe):
    """A run of `redraft train`. start: "" trains weights and tokenizer from scratch."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)

    @property
    def documents(self) -> int:
        """Rows of data over the whole run."""
        return self.schedule.steps * self.batch.samples

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective.kind == "preference" and not self.start:
            raise ConfigError("objective.kind preference needs `start`, a checkpoint that learns to prefer, got none")
        if self.lora and not self.lora.train_router and self.objective.balance_weight:
            raise ConfigError(
                "objective.balance_weight must be 0 with lora, whose routers are frozen unless lora.train_router is "
                f"true, got {self.objective.balance_weight}"
            )


R = TypeVar("R", bound=BaseRecipe)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe of `redraft train`; see `load_as`."""
    return load_as(Recipe, path, overrides)


def load_as(kind: type[R], path: str | Path, overrides: Sequence[str] = ()) -> R:
    """Reads a recipe of a kind and applies `section.key=value` overrides; an unknown key is an error that names the
    nearest."""
    try:
        raw = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the recipe {path}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"the recipe {path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"the recipe {path} must be a mapping of sections, got {type(raw).__name__}")
    for override in overrides:
        _override(raw, override)
    return _build(kind, raw, "")


def _override(raw: dict[str, Any], override: str) -> None:
    key, found, text = override.partition("=")
    if not found or not key:
        raise ConfigError(f"an override is key=value, got {override!r}")
    *sections, name = key.split(".")
    for section in sections:
        raw = raw.setdefault(section, {})
        if not isinstance(raw, dict):
            raise ConfigError(f"{key}: {section!r} is not a section")
    try:
        raw[name] = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"{key}: cannot read the value {text!r}") from None


def _build(kind: type, raw: Any, where: str) -> Any:
    """A dataclass from a mapping, with every key known and every value of the field's type."""
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{where or 'the recipe'} must be a mapping, got {raw!r}")
    hints = get_type_hints(kind)
    known = {f.name for f in fields(kind)}
    values = {}
    for key, value in raw.items():
        name = f"{where}.{key}" if where else str(key)
        if key not in known:
            raise ConfigError(f"unknown key {name!r}{_nearest(str(key), known)}")
        values[key] = _value(hints[key], value, name)
    return kind(**values)


def _at_least_one(section: str, config: Any, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 1:
            raise ConfigError(f"{section}.{name} must be at least 1, got {getattr(config, name)}")


def _one_of(section: str, config: Any, name: str, *allowed: str) -> None:
    if getattr(config, name) not in allowed:
        raise ConfigError(f"{section}.{name} must be one of {', '.join(allowed)}, got {getattr(config, name)!r}")


def _nearest(key: str, known: set[str]) -> str:
    near = difflib.get_close_matches(key, known, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(known))}"


def _value(hint: Any, value: Any, name: str) -> Any:
    if isinstance(hint, UnionType):  # X | None
        return None if value is None else _value(get_args(hint)[0], value, name)
    if is_dataclass(hint):
        return _build(hint, value, name)  # type: ignore[arg-type]
    if hint is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        with contextlib.suppress(ValueError):  # YAML 1.1 reads 2e-3, without a point, as text
            return float(value)
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_value(get_args(hint)[0], item, name) for item in value)
    plain = get_origin(hint) or hint
    if isinstance(value, plain) and not (isinstance(value, bool) and plain is int):
        return value
    raise ConfigError(f"{name} must be {getattr(hint, '__name__', hint)}, got {value!r}")
