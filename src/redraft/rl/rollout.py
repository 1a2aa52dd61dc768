"""Rollouts: the engine answers episodes, all of a batch at once, turn by turn.

Every turn is a training sample of its own: the very prompt that the engine read, and the very tokens that it wrote.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from redraft.errors import ConfigError
from redraft.rl.environment import Answer, Environment, Episode, Message, Turn
from redraft.rl.trajectory import Trajectory, trajectories
from redraft.training.data.documents import numbered
from redraft.types import CanvasEvent, Choice, Completion, Sample, SamplingParams


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """How the policy is sampled. mode: of decoding. temperature: of drafts; at 0 all answers to a prompt would be the
    same. max_tokens: of an answer. max_running: answers that are written at the same time."""

    mode: str = "speed"
    temperature: float = 1.0
    max_tokens: int = 128
    max_running: int = 32

    def __post_init__(self) -> None:
        SamplingParams(mode=self.mode, temperature=self.temperature, max_tokens=self.max_tokens)
        if not self.temperature > 0:
            raise ConfigError(
                f"rollout.temperature must be above 0, got {self.temperature}: equal answers teach nothing"
            )
        if self.max_running < 1:
            raise ConfigError(f"rollout.max_running must be at least 1, got {self.max_running}")


class Policy(Protocol):
    """What rollouts need of an `LLM`."""

    def render(self, messages: Any, tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]: ...

    def stream(self, prompts: Any, params: Any = None, /) -> Iterator[CanvasEvent]: ...


@dataclass(frozen=True, slots=True)
class Step:
    """One answer in an episode, as training takes it. steps of decoding: `trajectory`."""

    sample: Sample
    trajectory: Trajectory
    choice: Choice


@dataclass(slots=True)
class Rollout:
    """One answered episode. prompt: its index in the environment; answer: its number in the group. messages: the whole
    conversation. reward: summed over its turns; parts: of its last turn."""

    prompt: int
    answer: int
    messages: Sequence[Message] = ()
    steps: list[Step] = field(default_factory=list)
    reward: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)


def roll_out(
    policy: Policy,
    environment: Environment,
    prompts: Sequence[int],
    answers: int,
    config: RolloutConfig,
    *,
    seed: int,
    mask_id: int,
) -> list[list[Rollout]]:
    """`answers` episodes of each prompt, in order. What is drawn is keyed by the seed, prompt, answer and turn, so that
    neither the batch nor its order changes an episode.

    An episode that isn't done after the environment's `turns` ends there.
    """
    groups = [[Rollout(prompt, answer) for answer in range(answers)] for prompt in prompts]
    open_ = [(rollout, environment.reset(rollout.prompt)) for group in groups for rollout in group]
    for turn in range(environment.turns):
        ids = [policy.render(episode.messages, episode.tools or None) for _, episode in open_]
        params = [
            SamplingParams(
                mode=config.mode,
                temperature=config.temperature,
                max_tokens=config.max_tokens,
                seed=_seed(seed, rollout.prompt, rollout.answer, turn),
            )
            for rollout, _ in open_
        ]
        events = list(policy.stream(ids, params))
        paths = trajectories(events, mask_id)
        done: dict[int, Completion] = {event.request: event.completion for event in events if event.completion}
        choices = [done[number].choices[0] for number in range(len(open_))]
        # Side by side: most of the time of grading a program is waiting for its process.
        with ThreadPoolExecutor() as pool:
            turns = list(pool.map(_stepped, (episode for _, episode in open_), choices))
        going = []
        for number, ((rollout, episode), choice, result) in enumerate(zip(open_, choices, turns, strict=True)):
            index = numbered(rollout.prompt * answers + rollout.answer, turn)
            rollout.steps.append(Step(_sample(ids[number], choice.token_ids, index), paths[number, 0], choice))
            rollout.messages = episode.messages
            rollout.reward += result.reward
            rollout.parts = result.parts
            if not result.done:
                going.append((rollout, episode))
        open_ = going
        if not open_:
            break
    return groups


def _stepped(episode: Episode, choice: Choice) -> Turn:
    return episode.step(Answer(choice.text, len(choice.token_ids), choice.finish_reason == "stop"))


def _sample(prompt: Sequence[int], answer: Sequence[int], index: int) -> Sample:
    supervised = np.arange(len(prompt) + len(answer)) >= len(prompt)
    return Sample(np.array([*prompt, *answer], np.int32), supervised, index)


def _seed(*parts: int) -> int:
    digest = hashlib.blake2b(":".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
