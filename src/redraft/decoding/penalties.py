"""What is added to logits before anything is chosen: bias and penalties, as few (id, value) entries.

Shapes: L positions of a block, W of them wanted, M entries.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from redraft.decoding.candidates import Ask


def shared(ask: Ask) -> tuple[np.ndarray, np.ndarray]:
    """(ids int64 [M], values float64 [M]), the same for all positions of the block: logit bias, and minus presence and
    frequency penalty of the tokens in committed blocks. No id comes twice."""
    selection = ask.selection
    ids, values = _arrays(selection.logit_bias)
    if selection.counts_tokens:
        tokens, counts = _arrays(ask.counts)
        penalties = selection.presence_penalty * (counts > 0) + selection.frequency_penalty * counts
        ids, values = np.concatenate((ids, tokens)), np.concatenate((values, -penalties))
    ids, place = np.unique(ids, return_inverse=True)
    return ids, np.bincount(place, weights=values, minlength=len(ids))


def stutter(ask: Ask) -> tuple[np.ndarray, np.ndarray]:
    """(places int64 [M] in `ask.wanted`, ids int64 [M]): the token immediately to the left of each wanted position
    that has one. A mask to the left is none."""
    tokens, masked = ask.canvas.tokens, ask.canvas.masked
    first = -1 if ask.left is None else ask.left
    left = np.concatenate(([first], np.where(masked, -1, tokens)[:-1]))[ask.wanted]
    places = np.flatnonzero(left >= 0)
    return places, left[places]


def _arrays(mapping: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.fromiter(mapping.keys(), dtype=np.int64, count=len(mapping)),
        np.fromiter(mapping.values(), dtype=np.float64, count=len(mapping)),
    )
