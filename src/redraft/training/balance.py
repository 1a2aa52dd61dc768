"""The routers' sequence-wise balance loss (DeepSeek-V3, arXiv 2412.19437, equations 17 to 20).

For a document of T positions in a layer with E experts, K of them chosen at each position, it is

    Σ_e f_e P_e,    f_e = E / (K T) · (positions that chose e),    P_e = 1/T Σ_t s_te / Σ_j s_tj,

s the router's scores without its bias: 1 where the document loads all experts alike, up to E / K where it always takes
the same ones. A document's positions are its clean ones and those of all its noisy copies. The gradient flows through P
alone. Beside the bias, that balances loads over the batch, it keeps single documents from leaning on few experts.

Shapes: N positions, D documents, E experts, K experts a position.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from redraft.model.network import LLaDA2
from redraft.model.router import routers
from redraft.training.layout import Layout


class DocumentBalance:
    """Adds up the balance loss of every document over the routers' forwards of one layout. total: a scalar, the sum
    over documents, layers and forwards, differentiable."""

    def __init__(self, layout: Layout):
        self._document_N = torch.cat((layout.document_S, layout.document_N.repeat(layout.copies)))
        self._size_D = torch.bincount(self._document_N, minlength=len(layout.documents))
        self.total = torch.zeros((), device=self._size_D.device)

    @contextmanager
    def watching(self, model: LLaDA2) -> Iterator[None]:
        """Inside, the model's forwards count."""
        for router in routers(model):
            router.observe = self._add
        try:
            yield
        finally:
            for router in routers(model):
                router.observe = None

    def _add(self, score_NE: Tensor, ids_NK: Tensor) -> None:
        self.total = self.total + document_balance(score_NE, ids_NK, self._document_N, self._size_D).sum()


def document_balance(score_NE: Tensor, ids_NK: Tensor, document_N: Tensor, size_D: Tensor) -> Tensor:
    """Σ f P of each document, [D]. document_N: int64, the document of each position; size_D: its positions."""
    (experts, chosen), documents = (score_NE.shape[1], ids_NK.shape[1]), len(size_D)
    share_NE = score_NE / score_NE.sum(dim=1, keepdim=True)
    share_DE = share_NE.new_zeros(documents, experts).index_add(0, document_N, share_NE)
    pairs = (document_N.unsqueeze(1) * experts + ids_NK).flatten()
    count_DE = torch.bincount(pairs, minlength=documents * experts).view(documents, experts)
    return (count_DE.to(share_DE.dtype) * share_DE).sum(dim=1) * experts / (chosen * size_D.to(share_DE.dtype) ** 2)
