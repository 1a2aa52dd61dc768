"""Cross-entropy behind a large head, a chunk of positions at a time, so that [positions, vocabulary] never exists.

Shapes: N positions, C hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

LOGITS = 1 << 24  # numbers in one chunk's logits, at most: 64 MiB in float32


@dataclass(frozen=True)
class CrossEntropy:
    """loss_N: -log p(target), in nats. entropy_N: of the prediction, in nats, or None. right_N: bool, the target is the
    most probable token."""

    loss_N: Tensor
    entropy_N: Tensor | None
    right_N: Tensor


def head_cross_entropy(
    head: Callable[[Tensor], Tensor],
    hidden_NC: Tensor,
    target_N: Tensor,
    *,
    vocabulary: int,
    entropy: bool = False,
    logits: int = LOGITS,
) -> CrossEntropy:
    """Cross-entropy of `head(hidden)` towards `target`, differentiable.

    head: [n, C] to logits [n, V]. With more positions than `logits // vocabulary` the head runs chunk by chunk, and
    again in the backward pass.
    """
    size = max(1, logits // vocabulary)
    if hidden_NC.shape[0] <= size:
        return CrossEntropy(*_chunk(head, hidden_NC, target_N, entropy))
    parts = [
        checkpoint(_chunk, head, hidden, target, entropy, use_reentrant=False)
        for hidden, target in zip(hidden_NC.split(size), target_N.split(size), strict=True)
    ]
    loss, entropies, right = zip(*parts, strict=True)
    return CrossEntropy(torch.cat(loss), torch.cat(entropies) if entropy else None, torch.cat(right))


def _chunk(
    head: Callable[[Tensor], Tensor], hidden: Tensor, target: Tensor, entropy: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    logits = head(hidden)
    right = logits.detach().argmax(dim=-1) == target
    if not entropy:
        return F.cross_entropy(logits, target, reduction="none"), None, right
    log_p = logits.log_softmax(dim=-1)
    return F.nll_loss(log_p, target, reduction="none"), -(log_p.exp() * log_p).sum(dim=-1), right
