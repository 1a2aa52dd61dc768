"""LoRA of packed experts without a weight-sized tensor: the factors ride along in the grouped matrix products.

Shapes: N rows, C hidden, E experts, K experts a row, F expert width, R rank.
"""

from __future__ import annotations

from typing import Any

from peft.tuners.lora import layer
from torch import Tensor

from redraft.kernels.grouped import LowRank
from redraft.kernels.moe import routed_experts


class ParamWrapper(layer.ParamWrapper):
    """PEFT's wrapper of a stacked parameter: its tensors, its names, its files, but another way to compute.

    PEFT forms `weight + scale · b @ a` for all experts in every forward; autograd then keeps that sum, and takes a
    gradient of its size, in every layer. The name must stay PEFT's: it tells nested wrappers by it. One of them wraps
    `gate_up` and the other `down`, or only one is there; the outer one computes.
    """

    def forward(self, x_NC: Tensor, expert_NK: Tensor, weight_NK: Tensor) -> Tensor:  # type: ignore[override]
        experts: Any = self.get_base_layer()
        weights: dict[str, Tensor | LowRank] = {"gate_up": experts.gate_up, "down": experts.down}
        wrapper: object = self
        while isinstance(wrapper, ParamWrapper):
            if not wrapper.merged and not wrapper.disable_adapters:
                weights[wrapper.parameter_name] = wrapper.adapted()
            wrapper = wrapper.base_layer
        return routed_experts(x_NC, expert_NK, weight_NK, weights["gate_up"], weights["down"], experts.exchange)

    def adapted(self) -> LowRank:
        """The wrapped weight with the factors of the active adapter."""
        (name,) = self.active_adapters
        b_EOR, a_ERI, scale = self.get_delta_factors(name)
        return LowRank(self.get_param(), a_ERI, b_EOR, scale)
