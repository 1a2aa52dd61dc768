"""Where a model from scratch starts: some heads already look at their neighbours.

A masked position carries no content of its own, so until some head has learned to look at a neighbour nothing but
token frequencies can be learned, and small batches stay on that plateau for long. Here the embeddings share one
direction, and the heads of the first layers turn it into queries and keys whose rotary phases agree at a fixed offset.
Everything is free to move from there.
"""

from __future__ import annotations

import torch

from redraft.model.network import LLaDA2
from redraft.model.rotary import frequencies

OFFSETS = (-1, 1, -2, 2, -3, 3)
FREQUENCIES = 3  # the highest ones: low ones hardly tell neighbours apart
STRENGTH = 4.0  # norm of the constant part of queries and keys, beside a random part of about 1


@torch.no_grad()
def look_at_neighbours(model: LLaDA2, layers: int = 2) -> None:
    """Sets the heads of the first `layers` layers to attend to OFFSETS, in turn, at first."""
    config = model.config
    embeddings = model.word_embeddings.weight
    direction = torch.randn(config.hidden_size)
    direction /= direction.norm()
    embeddings += direction * embeddings.std() * config.hidden_size**0.5
    component = (config.hidden_size / 2) ** 0.5  # of a normalised embedding along the direction
    used = min(FREQUENCIES, config.rotary_dim // 2)
    angle = frequencies(config, torch.float64)[:used].float()
    size = STRENGTH / component / used**0.5
    for layer in range(layers):
        weight = model.get_parameter(f"layers.{layer}.attention.query_key_value.weight")
        heads = weight.unflatten(0, (-1, config.head_dim))
        for head in range(config.num_attention_heads + config.num_key_value_heads):
            is_query = head < config.num_attention_heads
            phase = angle * OFFSETS[head % len(OFFSETS)] if is_query else torch.zeros(used)
            constant = torch.zeros(config.head_dim)
            constant[:used] = size * phase.cos()
            constant[config.rotary_dim // 2 : config.rotary_dim // 2 + used] = size * phase.sin()
            heads[head] += constant.unsqueeze(1) * direction
