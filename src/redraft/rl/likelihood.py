"""The likelihood of responses by blocks, all blocks and noise levels in one forward.

With random noise and without edits, the sum over a response's blocks estimates its evidence lower bound
`Σ_k 1/k · E_{|S|=k} Σ_{i in S} log p(y_i | y without S, earlier blocks)`, k = 1..n, without bias
(`training.likelihood`); more levels lower its variance.

Shapes: K terms of a composite input, U blocks, D documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from redraft.kernels.cross_entropy import head_cross_entropy
from redraft.model.network import LLaDA2
from redraft.rl.composite import Composite
from redraft.training.forward import noisy_hidden


@dataclass(frozen=True)
class Likelihood:
    """log_p_K: log-probability of each term, in nats. entropy_K: of its prediction, in nats, without gradient."""

    composite: Composite
    log_p_K: Tensor
    entropy_K: Tensor | None = None

    @property
    def by_block(self) -> Tensor:
        """[U]: each block's part of the bound, in nats."""
        return self.composite.by_block(self.log_p_K)

    @property
    def by_document(self) -> Tensor:
        """[D]: the bound of each response, in nats."""
        return self.composite.by_document(self.log_p_K)


def likelihood(model: LLaDA2, composite: Composite, *, entropy: bool = False) -> Likelihood:
    """The terms of a composite input under a model, differentiable."""
    terms_MN = composite.terms_MN
    scored = head_cross_entropy(
        model.head,
        noisy_hidden(model, composite.layout, composite.noisy)[terms_MN],
        composite.target_MN[terms_MN],
        vocabulary=model.config.vocab_size,
        entropy=entropy,
    )
    seen = None if scored.entropy_N is None else scored.entropy_N.detach()
    return Likelihood(composite, -scored.loss_N, seen)


@torch.no_grad()
def stored(model: LLaDA2, batch: Sequence[Composite]) -> list[Tensor]:
    """log_p_K of each composite input: what the policy at the start of a batch is compared by."""
    return [likelihood(model, composite, entropy=True).log_p_K for composite in batch]
