"""The public way to decode, on our weights: what the `generate` published with LLaDA2.1-mini does.

Every denoising step reads the whole sequence again under a dense additive mask, the mixture of experts is a Python loop
over the experts, keys and values are repeated for every query head, and the head gives logits of all positions, of
which the last block's are used. Written anew after the published description; it shares only weights and norms with
the package, so that equal tokens mean something.

Shapes: N rows (positions), C hidden, E experts, K experts a row, T positions, L block length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from redraft.model.attention import Attend, block_causal_mask
from redraft.model.network import Layer, LLaDA2, MixtureOfExperts
from redraft.model.rotary import rotation


class PublicDecoder:
    """Greedy, by `per_step` positions a step, without editing. mask_id: stands for "not drafted", never proposed."""

    def __init__(self, network: LLaDA2, mask_id: int) -> None:
        self.network = network
        self.mask_id = mask_id

    def steps(self, prompt: Sequence[int], new_tokens: int, per_step: int) -> Iterator[tuple[int, ...]]:
        """The active block after each denoising step. prompt and new_tokens must be whole blocks.

        A block ends when its last mask is filled. The published code then runs one more forward a block, only to see
        that nothing changes; that is not held against it here.
        """
        length = self.network.config.block_length
        tokens = torch.full((1, len(prompt) + new_tokens), self.mask_id)
        tokens[0, : len(prompt)] = torch.tensor(prompt)
        positions = torch.arange(tokens.shape[1])
        allowed = block_causal_mask(positions, positions, length)
        mask = torch.zeros(allowed.shape, dtype=self.network.dtype).masked_fill(~allowed, -torch.inf)[None, None]
        for start in range(len(prompt), len(prompt) + new_tokens, length):
            end = start + length
            block = tokens[0, start:end]
            masked = torch.ones(length, dtype=torch.bool)
            while masked.any():
                logits = self.forward(tokens[:, :end], mask[:, :, :end, :end])[0, -length:]
                chosen, proposed = self._choose(logits, masked, per_step)
                block[chosen] = proposed[chosen]
                masked[chosen] = False
                yield tuple(block.tolist())

    @torch.no_grad()  # as it is published; inference mode would call our own kernel
    def forward(self, tokens_BT: Tensor, mask: Tensor) -> Tensor:
        """Logits [B, T, V] of all positions in float32. mask: additive, [1, 1, T, T]."""
        network = self.network
        x = network.word_embeddings(tokens_BT)
        turn = rotation(network.config, torch.arange(tokens_BT.shape[1])[None], x.dtype)
        attend = dense_attention(mask)
        for layer in cast(Iterable[Layer], network.layers):
            x, inner = layer.after(x, attend(layer.attention.layer, *layer.before(x, turn)))
            x = x + (expert_loop(layer.mlp, inner) if isinstance(layer.mlp, MixtureOfExperts) else layer.mlp(inner))
        return network.head(network.norm(x))

    def _choose(self, logits_LV: Tensor, masked_L: Tensor, per_step: int) -> tuple[Tensor, Tensor]:
        """Positions to fill, and the token proposed at each position, int64 [L]."""
        proposed = logits_LV.index_fill(-1, torch.tensor([self.mask_id]), -torch.inf).argmax(-1)
        confidence = logits_LV.softmax(-1).gather(-1, proposed[:, None])[:, 0].masked_fill(~masked_L, -1)
        order = confidence.argsort(descending=True, stable=True)
        return order[: min(per_step, int(masked_L.sum()))], proposed


def expert_loop(mixture: MixtureOfExperts, x_BTC: Tensor) -> Tensor:
    """The mixture of experts, one expert after the other, each on the rows routed to it."""
    x_NC = x_BTC.flatten(0, 1)
    ids_NK, weight_NK = mixture.gate(x_NC)
    order = ids_NK.flatten().argsort()
    counts = ids_NK.flatten().bincount(minlength=mixture.experts.gate_up.shape[0]).tolist()
    rows = x_NC[order // ids_NK.shape[1]]
    outputs, start = [], 0
    for expert, count in enumerate(counts):
        if not count:
            continue
        own = rows[start : start + count]
        gate_weight, up_weight = mixture.experts.gate_up[expert].chunk(2)
        hidden = F.silu(F.linear(own, gate_weight)) * F.linear(own, up_weight)
        outputs.append(F.linear(hidden, mixture.experts.down[expert]))
        start += count
    sorted_out = torch.cat(outputs)
    out = torch.empty_like(sorted_out)
    out[order] = sorted_out
    weighted = out.view(*ids_NK.shape, -1).to(weight_NK.dtype) * weight_NK.unsqueeze(-1)
    routed = weighted.sum(dim=1).to(x_BTC.dtype).view_as(x_BTC)
    return routed + mixture.shared_experts(x_BTC) if hasattr(mixture, "shared_experts") else routed


def dense_attention(mask: Tensor) -> Attend:
    """Attention under one mask for all heads, with keys and values repeated for every query head."""

    def attend(layer: int, q_BTHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor) -> Tensor:
        repeats = q_BTHD.shape[2] // k_BTGD.shape[2]
        k_BTHD, v_BTHD = (x.repeat_interleave(repeats, dim=2) for x in (k_BTGD, v_BTGD))
        out = F.scaled_dot_product_attention(
            q_BTHD.transpose(1, 2), k_BTHD.transpose(1, 2), v_BTHD.transpose(1, 2), attn_mask=mask
        )
        return out.transpose(1, 2)

    return attend
