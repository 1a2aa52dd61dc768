"""A training run as a file: YAML plus `key=value` overrides, validated before anything starts."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from redraft.errors import ConfigError
from redraft.model.config import ModelConfig
from redraft.training.objective import ObjectiveConfig

OF_THE_TOKENIZER = {"vocab_size", "mask_token_id", "eos_token_id", "pad_token_id"}


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """The tokenizer that a run from scratch trains first. samples: training tasks that it is trained on."""

    vocab_size: int = 1024
    samples: int = 30_000

    def __post_init__(self) -> None:
        _at_least_one("tokenizer", self, "vocab_size", "samples")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """skills: weight of each skill. curriculum: share of the run over which the level weights move from
    `level_start` to `level_end`, both a weight for each level. max_length: longest document in tokens."""

    skills: dict[str, float] = field(default_factory=dict)
    level_start: tuple[float, ...] = (0.6, 0.3, 0.1)
    level_end: tuple[float, ...] = (0.2, 0.35, 0.45)
    curriculum: float = 0.3
    max_length: int = 320

    def __post_init__(self) -> None:
        for name in ("level_start", "level_end"):
            weights = getattr(self, name)
            if any(weight < 0 for weight in weights) or not sum(weights) > 0:
                raise ConfigError(f"data.{name} must be weights of at least 0, one of them above, got {weights!r}")
        if not 0 <= self.curriculum <= 1:
            raise ConfigError(f"data.curriculum must be from 0 to 1, got {self.curriculum}")
        _at_least_one("data", self, "max_length")


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


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Warmup-stable-decay: linear up over `warmup` steps, flat, linear down to 0 over the last `decay` share."""

    steps: int = 1000
    warmup: int = 100
    decay: float = 0.4

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 <= self.decay <= 1 or self.warmup < 0:
            raise ConfigError(
                f"schedule needs steps >= 1, warmup >= 0 and decay from 0 to 1, "
                f"got {self.steps}, {self.warmup} and {self.decay}"
            )

    def factor(self, step: int) -> float:
        """Multiplier of the learning rate at a step, counted from 0."""
        left = (self.steps - step) / max(1.0, self.decay * self.steps)
        return max(0.0, min(1.0, (step + 1) / max(1, self.warmup), left))


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """samples: documents a step, over all micro-batches. micro: documents a forward."""

    samples: int = 32
    micro: int = 16

    def __post_init__(self) -> None:
        _at_least_one("batch", self, "samples", "micro")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """output: folder of the run. processes: data-parallel processes on this machine; on a CPU, one a core with a thread
    each trains faster than one with many threads. precision: "float32", "bfloat16" (autocast), or "auto": bfloat16
    where the processor multiplies it natively. save_every: steps between checkpoints; keep: checkpoints kept."""

    output: str = "runs/redraft"
    processes: int = 1
    precision: str = "auto"
    save_every: int = 200
    keep: int = 2
    log_every: int = 10

    def __post_init__(self) -> None:
        _at_least_one("run", self, "processes", "save_every", "keep", "log_every")
        if self.precision not in ("auto", "float32", "bfloat16"):
            raise ConfigError(f'run.precision must be "auto", "float32" or "bfloat16", got {self.precision!r}')


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything a training run depends on. start: a checkpoint folder whose weights and tokenizer the run starts from;
    "" trains both from scratch. model: fields of `ModelConfig` but the vocabulary's, which the tokenizer gives; with a
    `start` they must be the checkpoint's."""

    seed: int = 0
    start: str = ""
    model: dict[str, Any] = field(default_factory=dict)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        known = {f.name for f in fields(ModelConfig)} - OF_THE_TOKENIZER
        for name in self.model:
            if name not in known:
                raise ConfigError(f"unknown key 'model.{name}'{_nearest(name, known)}")


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Reads a recipe and applies `section.key=value` overrides; an unknown key is an error that names the nearest."""
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
    return _build(Recipe, raw, "")


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


def _nearest(key: str, known: set[str]) -> str:
    near = difflib.get_close_matches(key, known, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(known))}"


def _value(hint: Any, value: Any, name: str) -> Any:
    if is_dataclass(hint):
        return _build(hint, value, name)  # type: ignore[arg-type]
    if hint is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        with contextlib.suppress(ValueError):  # YAML 1.1 reads 2e-3, without a point, as text
            return float(value)
    if hint == tuple[float, ...] and isinstance(value, list):
        return tuple(_value(float, item, name) for item in value)
    plain = getattr(hint, "__origin__", hint)
    if isinstance(value, plain) and not (isinstance(value, bool) and plain is int):
        return value
    raise ConfigError(f"{name} must be {getattr(hint, '__name__', hint)}, got {value!r}")
