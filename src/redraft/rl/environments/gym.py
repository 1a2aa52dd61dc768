"""Data sets of reasoning-gym as an environment: any of them, with their own scorers.

Scorers give part marks, and some accept wrong answers (redraft/skills/gym.py names those that were found out); a policy
that is trained on one finds such answers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from redraft.errors import ConfigError
from redraft.rl.environment import Answer, SingleTurn, Turn
from redraft.rl.rewards import RewardConfig, shaped

ITEMS = 2**31 - 1  # a data set draws item i from its seed and i, so any index below this is an item


class GymEnvironment:
    """name: of the data set. arguments: of its configuration. Raises ConfigError if there is no such data set, it
    refuses its arguments, or the package is missing."""

    turns = 1

    def __init__(self, name: str, reward: RewardConfig, *, arguments: Mapping[str, Any], seed: int = 0) -> None:
        try:
            import reasoning_gym
        except ImportError as error:
            raise ConfigError(
                "environment.kind gym needs the package reasoning-gym: pip install 'redraft[train]'"
            ) from error
        try:
            self.items = reasoning_gym.create_dataset(name, seed=seed, size=ITEMS, **arguments)
        except (ValueError, TypeError, AssertionError) as error:
            raise ConfigError(f"environment.dataset {name!r} with {dict(arguments)}: {error}") from error
        self.name, self.reward, self.arguments, self.seed = name, reward, dict(arguments), seed

    @property
    def fingerprint(self) -> str:
        said = json.dumps(["gym", self.name, self.arguments, self.seed], sort_keys=True)
        return hashlib.blake2b(said.encode(), digest_size=8).hexdigest()

    def reset(self, index: int) -> SingleTurn:
        entry = self.items[index % ITEMS]
        prompt = entry["question"].strip()

        def correct(_prompt: str, response: str, _reference: Any) -> float:
            """What follows the last "Answer:", or all of it."""
            return float(self.items.score_answer(response.rpartition("Answer:")[2].strip(), entry))

        def score(answer: Answer) -> Turn:
            return shaped(self.reward, prompt, answer, entry, correct=correct)

        return SingleTurn([{"role": "user", "content": prompt}], score)
