"""The forward of a laid-out batch. Shapes: M copies, N noisy positions of one copy, C hidden."""

from __future__ import annotations

from torch import Tensor

from redraft.model.network import LLaDA2
from redraft.training.layout import Layout
from redraft.training.noise import Noisy
from redraft.training.visibility import visibility


def noisy_hidden(model: LLaDA2, layout: Layout, noisy: Noisy) -> Tensor:
    """Hidden states [M, N, C] at the noisy positions."""
    hidden_BTC = model(
        layout.tokens_T(noisy.tokens_MN).unsqueeze(0),
        layout.positions_T.unsqueeze(0),
        visibility(layout, noisy),
        layout.pools_T.unsqueeze(0),
    )
    return layout.noisy_part(hidden_BTC[0])
