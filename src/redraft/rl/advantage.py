"""Advantages of the answers to one prompt: how much better each is than its group (GRPO, without a critic).

Shapes: P prompts, G answers of each.
"""

from __future__ import annotations

import torch
from torch import Tensor

EQUAL = 1e-9  # rewards that differ by less are the same


def group_advantages(rewards_PG: Tensor, *, scale: bool = False) -> tuple[Tensor, Tensor]:
    """(Â [P, G], whether a group teaches anything, bool [P]): each reward minus its group's mean, and with `scale` over
    its standard deviation. A group whose rewards are all equal has nothing to teach; its advantages are 0."""
    centred_PG = rewards_PG - rewards_PG.mean(dim=1, keepdim=True)
    useful_P = (rewards_PG.amax(dim=1) - rewards_PG.amin(dim=1)) > EQUAL
    if scale:
        centred_PG = centred_PG / rewards_PG.std(dim=1, correction=0, keepdim=True).clamp(min=EQUAL)
    return torch.where(useful_P[:, None], centred_PG, 0.0), useful_P
