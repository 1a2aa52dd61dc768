"""A trainer as public ones of block diffusion are, on our weights: what the training benchmark compares with.

Every noisy copy of a document is a row `[x_t ; x_0]`, padded to the longest of its batch, under a dense boolean mask;
keys and values are repeated for every query head; the experts are modules of their own in a Python loop; the head gives
logits of all 2L positions, of which the noisy half's are used. Written anew. Norms, rotations, router and weights are
the package's, so that equal losses mean something; AdamW works on lists of tensors, which is not torch's default here,
but is what the package does.

Shapes: B rows, L positions of a padded document, T = 2L, N positions of all rows, C hidden, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.baseline import dense_attention
from redraft.model.network import Layer, LLaDA2, MixtureOfExperts, SwiGLU
from redraft.training.layout import Document, Layout
from redraft.training.noise import Noisy
from redraft.types import Sample


@dataclass(frozen=True)
class Row:
    """A noisy copy of a document, filled up to whole blocks. clean, noisy: int64 [L]; supervised, masked: bool [L]."""

    clean: Tensor
    noisy: Tensor
    supervised: Tensor
    masked: Tensor


def rows(samples: Sequence[Sample], layout: Layout, noisy: Noisy, eos: int) -> list[Row]:
    """The rows that hold the same noise as a layout of the same samples, copy by copy of each document. A document has
    one supervised span."""
    out = []
    for sample, document in zip(samples, layout.documents, strict=True):
        out += [_row(sample, document, layout, noisy, copy_, eos) for copy_ in range(layout.copies)]
    return out


def _row(sample: Sample, document: Document, layout: Layout, noisy: Noisy, copy_: int, eos: int) -> Row:
    here, where = document.noisy, layout.noisy_position_N[document.noisy]
    length = -(-len(sample) // layout.block_length) * layout.block_length
    clean = torch.full((length,), eos)
    clean[: len(sample)] = torch.from_numpy(sample.tokens.astype("int64"))
    tokens, supervised, masked = clean.clone(), torch.zeros(length, dtype=torch.bool), torch.zeros(length).bool()
    tokens[where] = noisy.tokens_MN[copy_, here]
    supervised[where] = layout.supervised_N[here]
    masked[where] = noisy.masked_MN[copy_, here]
    return Row(clean, tokens, supervised, masked)


class LoopedExperts(nn.Module):
    """A mixture of experts in which every expert is a module, called one after the other on its own rows."""

    def __init__(self, mixture: MixtureOfExperts) -> None:
        super().__init__()
        self.gate = mixture.gate
        experts = zip(mixture.experts.gate_up.detach(), mixture.experts.down.detach(), strict=True)
        self.experts = nn.ModuleList(_expert(gate_up, down) for gate_up, down in experts)
        self.shared_experts = getattr(mixture, "shared_experts", None)

    def forward(self, x_BTC: Tensor, pools_BT: Tensor | None = None) -> Tensor:
        x_NC = x_BTC.flatten(0, 1)
        ids_NK, weight_NK = self.gate(x_NC)
        out_NC = torch.zeros_like(x_NC)
        for number, expert in enumerate(self.experts):
            row, slot = torch.where(ids_NK == number)
            if len(row):
                y = expert(x_NC[row]) * weight_NK[row, slot].unsqueeze(-1)
                out_NC = out_NC.index_add_(0, row, y.to(out_NC.dtype))
        out = out_NC.view_as(x_BTC)
        return out + self.shared_experts(x_BTC) if self.shared_experts is not None else out


def _expert(gate_up_HC: Tensor, down_CF: Tensor) -> SwiGLU:
    expert = SwiGLU(gate_up_HC.shape[1], down_CF.shape[1], device="meta")
    gate, up = gate_up_HC.chunk(2)
    weights = {"gate_proj.weight": gate.clone(), "up_proj.weight": up.clone(), "down_proj.weight": down_CF.clone()}
    expert.load_state_dict(weights, assign=True)
    return expert.requires_grad_()


class PublicTrainer:
    """Trains a copy of `network`. batch: rows of one forward. rate, clip, decay: of AdamW."""

    def __init__(self, network: LLaDA2, *, batch: int, rate: float, clip: float, decay: float) -> None:
        self.network = copy.deepcopy(network).train()
        for layer in cast(Iterable[Layer], self.network.layers):
            if isinstance(layer.mlp, MixtureOfExperts):
                layer.mlp = LoopedExperts(layer.mlp)  # pyright: ignore[reportAttributeAccessIssue]
        self.batch, self.clip = batch, clip
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=rate, weight_decay=decay, foreach=True)
        self.positions = 0

    def step(self, all_rows: Sequence[Row]) -> tuple[float, float]:
        """One optimiser step; returns its loss, the sum of both streams' means, and the gradient's norm. `positions`
        is then what its forwards held."""
        masked = sum(int(row.masked.sum()) for row in all_rows)
        edited = sum(int(row.supervised.sum()) for row in all_rows) - masked
        total, self.positions = 0.0, 0
        for first in range(0, len(all_rows), self.batch):
            loss = self._loss(all_rows[first : first + self.batch], masked, edited)
            loss.backward()
            total += float(loss.detach())
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total, float(norm)

    def _loss(self, batch: Sequence[Row], masked: int, edited: int) -> Tensor:
        lengths = torch.tensor([len(row.clean) for row in batch])
        clean_BL, noisy_BL, supervised_BL, masked_BL = (
            nn.utils.rnn.pad_sequence([getattr(row, name) for row in batch], batch_first=True)
            for name in ("clean", "noisy", "supervised", "masked")
        )
        length = clean_BL.shape[1]
        tokens_BT = torch.cat((noisy_BL, clean_BL), dim=1)
        positions_BT = torch.arange(length).repeat(2).expand_as(tokens_BT)
        mask = dense_mask(lengths, length, self.network.config.block_length)
        logits = self.network.head(self.network(tokens_BT, positions_BT, dense_attention(mask)))
        loss_BL = F.cross_entropy(logits[:, :length].transpose(1, 2), clean_BL, reduction="none")
        self.positions += tokens_BT.numel()
        draft = (loss_BL * masked_BL).sum() / max(1, masked)
        return draft + (loss_BL * (supervised_BL & ~masked_BL)).sum() / max(1, edited)


def dense_mask(lengths_B: Tensor, length: int, block_length: int) -> Tensor:
    """bool [B, 1, 2L, 2L], True where a position of `[x_t ; x_0]` sees another: block diffusion, without padding."""
    block = torch.arange(length) // block_length
    same, before = block[:, None] == block, block[:, None] > block
    seen = torch.cat((torch.cat((same, before), 1), torch.cat((torch.zeros_like(same), same | before), 1)))
    real_BL = torch.arange(length) < lengths_B[:, None]
    return (seen & torch.cat((real_BL, real_BL), 1)[:, None, :]).unsqueeze(1)
