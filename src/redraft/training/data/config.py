"""What a run trains on, as the `data` section of a recipe says it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redraft.errors import ConfigError

COLUMNS = ("messages", "tools", "prompt", "completion", "text", "chosen", "rejected")


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """One source of rows.

    path: a JSONL file, a folder of them, another file that `datasets` reads (.json, .parquet, .csv), a folder that
    `datasets` saved, or the name of a dataset on the Hugging Face hub. split, subset, revision: which part of a
    `datasets` source, and which version of one on the hub. streaming: read it in order without storing it; `buffer`
    rows at a time are then shuffled. columns: this source's names of the standard columns, as in {messages: dialog}.
    chat: a `prompt` and an answer that are strings become a user's and an assistant's message; otherwise they are taken
    as they are. weight: share of the draws relative to the other sources; when none has a weight, all rows of all
    sources make one epoch.
    """

    path: str = ""
    split: str = "train"
    subset: str = ""
    revision: str = ""
    streaming: bool = False
    buffer: int = 1000
    columns: dict[str, str] = field(default_factory=dict)
    chat: bool = False
    weight: float = 0.0

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("data.sources: each source needs a path, one has none")
        for ours, theirs in self.columns.items():
            if ours not in COLUMNS:
                raise ConfigError(f"data.sources.columns: unknown column {ours!r}; known: {', '.join(COLUMNS)}")
            if not isinstance(theirs, str) or not theirs:
                raise ConfigError(f"data.sources.columns.{ours} must be the name of a column, got {theirs!r}")
        if not 0 <= self.weight < float("inf"):
            raise ConfigError(f"data.sources.weight must be a number of at least 0, got {self.weight}")
        if self.buffer < 1:
            raise ConfigError(f"data.sources.buffer must be at least 1, got {self.buffer}")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """skills: weight of each skill. curriculum: share of the run over which the level weights move from
    `level_start` to `level_end`, both a weight for each level. skills_weight: weight of all skills together where
    there are sources too.

    sources: rows of files and datasets. shuffle: each epoch in an order of its own. bad_rows: "fail" names them and
    stops, "skip" names and leaves them out. check: "all" also renders every row before the run starts, so that a row
    that is too long shows there; "schema" only parses them, which is faster for large data; bad ones then show when
    their turn comes.

    max_length: longest document in tokens; a longer `text` is split.
    """

    skills: dict[str, float] = field(default_factory=dict)
    level_start: tuple[float, ...] = (0.6, 0.3, 0.1)
    level_end: tuple[float, ...] = (0.2, 0.35, 0.45)
    curriculum: float = 0.3
    skills_weight: float = 0.0
    sources: tuple[SourceConfig, ...] = ()
    shuffle: bool = True
    bad_rows: str = "fail"
    check: str = "all"
    max_length: int = 320

    def __post_init__(self) -> None:
        for name in ("level_start", "level_end"):
            weights = getattr(self, name)
            if any(weight < 0 for weight in weights) or not sum(weights) > 0:
                raise ConfigError(f"data.{name} must be weights of at least 0, one of them above, got {weights!r}")
        if not 0 <= self.curriculum <= 1:
            raise ConfigError(f"data.curriculum must be from 0 to 1, got {self.curriculum}")
        if self.max_length < 1:
            raise ConfigError(f"data.max_length must be at least 1, got {self.max_length}")
        _one_of("bad_rows", self.bad_rows, "fail", "skip")
        _one_of("check", self.check, "all", "schema")
        self._check_weights()

    def _check_weights(self) -> None:
        for name, weight in self.skills.items():
            if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < float("inf"):
                raise ConfigError(f"data.skills.{name} must be a weight of at least 0, got {weight!r}")
        if self.skills and not any(self.skills.values()):
            raise ConfigError(f"data.skills must give at least one skill a positive weight, got {self.skills!r}")
        if not 0 <= self.skills_weight < float("inf"):
            raise ConfigError(f"data.skills_weight must be a number of at least 0, got {self.skills_weight}")
        weights = [source.weight for source in self.sources]
        if self.sources and self.skills and not (self.skills_weight and all(weights)):
            raise ConfigError("data: skills and sources together need data.skills_weight and a weight for each source")
        if any(weights) and not all(weights):
            raise ConfigError(f"data.sources: give every source a weight, or none, got {weights}")
        if len(weights) > 1 and not all(weights) and any(source.streaming for source in self.sources):
            raise ConfigError("data.sources: a streaming source among others needs weights")


def _one_of(name: str, value: Any, *allowed: str) -> None:
    if value not in allowed:
        raise ConfigError(f"data.{name} must be {' or '.join(repr(item) for item in allowed)}, got {value!r}")
