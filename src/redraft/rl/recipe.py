"""A reinforcement learning run as a file: the sections of training, and its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from redraft.errors import ConfigError
from redraft.rl.composite import LikelihoodConfig
from redraft.rl.environments import EnvironmentConfig
from redraft.rl.loss import LossConfig
from redraft.rl.rewards import RewardConfig
from redraft.rl.rollout import RolloutConfig
from redraft.training.recipe import BaseRecipe, OptimizerConfig, RunConfig, ScheduleConfig


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """prompts: of a step. answers: to each of them, the group that advantages are relative to. updates: optimiser steps
    on each batch. length: positions of the documents of a forward, at most; noisy copies come on top. scale: divide
    advantages by the group's standard deviation."""

    prompts: int = 16
    answers: int = 8
    updates: int = 4
    length: int = 2048
    scale: bool = False

    def __post_init__(self) -> None:
        for name, least in (("prompts", 1), ("answers", 2), ("updates", 1), ("length", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"batch.{name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class WorkersConfig:
    """count: rollout workers, actors of Ray that answer while the trainer trains; 0 answers in the trainer's process,
    in turn with it. max_staleness: versions that the weights which begin an answer may be behind those that learn from
    it. prompts: that a worker answers together. gpus: of a worker, also a part of one. address: of a Ray cluster,
    "auto" for that of this machine; "" starts one. cap: of the importance weight of an answer by older weights."""

    count: int = 0
    max_staleness: int = 1
    prompts: int = 4
    gpus: float = 0.0
    address: str = ""
    cap: float = 2.0

    def __post_init__(self) -> None:
        for name, least in (("count", 0), ("max_staleness", 0), ("prompts", 1), ("gpus", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"workers.{name} must be at least {least}, got {getattr(self, name)}")
        if not self.cap >= 1:
            raise ConfigError(f"workers.cap must be at least 1, got {self.cap}")


@dataclass(frozen=True, kw_only=True)
class RLOptimizerConfig(OptimizerConfig):
    """That of training with defaults for reinforcement learning. balance: must be 0."""

    rate: float = 2e-5
    weight_decay: float = 0.0
    balance: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RLScheduleConfig(ScheduleConfig):
    """That of training with defaults for reinforcement learning. steps: each of a batch of rollouts. blocks: must be
    empty."""

    steps: int = 100
    warmup: int = 5
    decay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RLRunConfig(RunConfig):
    """That of training with defaults for reinforcement learning. processes: must be 1."""

    output: str = "runs/rl"
    save_every: int = 20
    log_every: int = 1


@dataclass(frozen=True, kw_only=True)
class RLRecipe(BaseRecipe):
    """Everything that a run of `redraft rl` depends on."""

    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    likelihood: LikelihoodConfig = field(default_factory=LikelihoodConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    batch: GroupConfig = field(default_factory=GroupConfig)
    workers: WorkersConfig = field(default_factory=WorkersConfig)
    optimizer: RLOptimizerConfig = field(default_factory=RLOptimizerConfig)
    schedule: RLScheduleConfig = field(default_factory=RLScheduleConfig)
    run: RLRunConfig = field(default_factory=RLRunConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.start:
            raise ConfigError("`start` must name a checkpoint that already answers sometimes, got none")
        if (self.loss.ratio == "token") != (self.likelihood.noise == "steps"):
            raise ConfigError(
                'loss.ratio "token" and likelihood.noise "steps" belong together: a ratio for each token that decoding '
                f"wrote; got {self.loss.ratio!r} and {self.likelihood.noise!r}"
            )
        if self.optimizer.balance:
            raise ConfigError(
                f"optimizer.balance must be 0, got {self.optimizer.balance}: it would move the policy behind the ratio"
            )
        if self.lora and self.lora.dropout:
            raise ConfigError(
                f"lora.dropout must be 0, got {self.lora.dropout}: it would move the policy behind the ratio"
            )
        if self.schedule.blocks:
            raise ConfigError("schedule.blocks must be empty: rollouts are written in the model's own blocks")
        if self.run.processes != 1:
            raise ConfigError(f"run.processes must be 1, got {self.run.processes}: redraft rl trains in one process")
        if self.run.evaluate != "skills":
            raise ConfigError(f'run.evaluate must be "skills", got {self.run.evaluate!r}')
