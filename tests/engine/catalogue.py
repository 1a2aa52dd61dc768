"""What random requests are made of. A new sampling field goes into FIELDS, and every random schedule uses it."""

from __future__ import annotations

import random
from typing import Any

from redraft.types import SamplingParams

VOCAB, EOS, MASK = 32, 30, 31
POISON = 29  # in some networks the embedding of this token is NaN
LONGEST_PROMPT, LONGEST_ANSWER = 29, 24

# Values that come up twice are the ordinary ones.
FIELDS: dict[str, tuple[Any, ...]] = {
    "mode": ("speed", "quality", "draft-only"),
    "threshold": (None, None, 0.2, 0.9, 1.5),
    "edit_threshold": (None, None, 0.0, 0.3, "off"),
    "max_post_steps": (0, 1, 1, 2, 2, 16),
    "min_unmask": (1, 2, 2, 4),
    "temperature": (0.0, 0.0, 0.7, 1.3),
    "top_p": (1.0, 0.9),
    "top_k": (0, 9),
    "seed": tuple(range(5)),
    "max_tokens": (1, 5, 13, LONGEST_ANSWER, LONGEST_ANSWER),
    "stop": ((), (), ("c",), ("ab", "q")),
    "stop_token_ids": ((), (), (7,)),
    "ignore_eos": (False, True),
    "logit_bias": (None, None, {EOS: 3.0}, {3: -2.0, 5: 2.0}),
    "presence_penalty": (0.0, 0.0, 1.5),
    "frequency_penalty": (0.0, 0.0, -0.5),
    "stutter_penalty": (0.0, 0.0, 2.0),
    "n": (1, 1, 1, 1, 2, 3),
    "logprobs": (None, None, 0, 2),
}
# Multi-block editing: blocks, steps, threshold.
WINDOWS: list[dict[str, Any]] = [{}, {}] + [
    {"mbe_blocks": blocks, "mbe_steps": steps, "mbe_edit_threshold": threshold}
    for blocks, steps, threshold in [(1, 3, 0.0), (2, 1, 0.3), (4, 5, 0.5)]
]


def some_params(draw: random.Random) -> SamplingParams:
    fields = {name: draw.choice(values) for name, values in FIELDS.items()}
    return SamplingParams(**fields, **draw.choice(WINDOWS))


PARAMS = [some_params(random.Random(number)) for number in range(30)]

# Below, on and beyond the borders of blocks and pages of 4 and 8.
LENGTHS = (1, 3, 4, 8, 9, 16, 23, LONGEST_PROMPT)


def _stem(number: int) -> list[int]:
    """Any ids, mask and EOS among them; the last stem holds the poison, once and late. The first is no mask: in a block
    of masks alone all positions are equally likely, and rounding would choose between them."""
    draw = random.Random(number)
    stem = [draw.choice([at for at in range(VOCAB) if at != POISON]) for _ in range(LONGEST_PROMPT)]
    stem[0] = 11
    return [*stem[:13], POISON, *stem[14:]] if number == 2 else stem


STEMS = [_stem(number) for number in range(3)]
# Whole stems, and stems with an end of their own: prompts that begin with the same pages.
PROMPTS = [
    (*stem[: length - own], *([12] * own)) for stem in STEMS for length in LENGTHS for own in (0, 5) if length > own
]
