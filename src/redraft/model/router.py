"""The router: which experts a position uses, and with which weights (spec/model.md, "Router" and "Block routing").

Shapes: N positions, C hidden, E experts, K experts a position, P pools (one a block).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from redraft.kernels.linear import linear
from redraft.model.config import ModelConfig
from redraft.model.precision import at_least_float32


class Router(nn.Module):
    """Sigmoid scores, group-limited top-k on biased scores, unbiased normalised weights.

    `weight` and `expert_bias` stay in float32 (float64 in a float64 model) whatever the rest is cast to.
    `load`: pairs routed to each expert since the trainer last read it; counted in training forwards only.
    `observe`: if it is set, called in every forward with the scores [N, E] and the chosen ids [N, K].
    """

    expert_bias: Tensor
    load: Tensor
    observe: Callable[[Tensor, Tensor], None] | None = None

    def __init__(self, config: ModelConfig, device=None, dtype=None):
        super().__init__()
        self.config = config
        dtype = at_least_float32(dtype or torch.get_default_dtype())
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size, device=device, dtype=dtype))
        self.register_buffer("expert_bias", torch.zeros(config.num_experts, device=device, dtype=dtype))
        self.register_buffer("load", torch.zeros(config.num_experts, device=device, dtype=dtype), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True):
        def keep_precision(tensor: Tensor) -> Tensor:
            out = fn(tensor)
            return tensor.to(out.device) if out.dtype.itemsize < 4 and out.is_floating_point() else out

        return super()._apply(keep_precision, recurse)

    def forward(self, x_NC: Tensor, pools_N: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns (expert ids int64 [N, K], weights [N, K] in the router's dtype)."""
        config = self.config
        score_NE = torch.sigmoid(linear(x_NC.to(self.weight.dtype), self.weight))
        with torch.no_grad():
            biased_NE = score_NE + self.expert_bias
            if config.block_routing is not None and config.block_routing < config.num_experts:
                ids_NK = self._pooled(biased_NE, pools_N)
            else:
                ids_NK = self._grouped(biased_NE)
        if self.training and torch.is_grad_enabled():
            counted = ids_NK if pools_N is None else ids_NK[pools_N >= 0]  # padding is no load
            self.load += torch.bincount(counted.flatten(), minlength=config.num_experts).to(self.load.dtype)
        if self.observe is not None:
            self.observe(score_NE, ids_NK)
        weight_NK = score_NE.gather(1, ids_NK)
        weight_NK = weight_NK / (weight_NK.sum(dim=-1, keepdim=True) + 1e-20) * config.routed_scaling_factor
        return ids_NK, weight_NK

    def _kept_groups(self, biased_NE: Tensor) -> Tensor:
        """bool [N, E]: the experts inside the `topk_group` best groups; a group's score is the sum of its two best."""
        config = self.config
        per_group = biased_NE.view(-1, config.n_group, config.num_experts // config.n_group)
        group_score = per_group.topk(min(2, per_group.shape[-1]), dim=-1).values.sum(dim=-1)
        kept = torch.zeros_like(group_score, dtype=torch.bool)
        kept.scatter_(1, group_score.topk(config.topk_group, dim=-1).indices, True)
        return kept.repeat_interleave(per_group.shape[-1], dim=1)

    def _grouped(self, biased_NE: Tensor) -> Tensor:
        if self.config.topk_group < self.config.n_group:
            biased_NE = biased_NE.masked_fill(~self._kept_groups(biased_NE), -torch.inf)
        return biased_NE.topk(self.config.num_experts_per_tok, dim=-1).indices

    def _pooled(self, biased_NE: Tensor, pools_N: Tensor | None) -> Tensor:
        """Block routing: only the pool's best `block_routing` experts may be chosen."""
        if pools_N is None:
            raise ValueError("block routing needs the pool of every position")
        config = self.config
        pools, pool_of_N = pools_N.unique(return_inverse=True)
        best_PE = biased_NE.new_full((len(pools), config.num_experts), -torch.inf)
        best_PE.scatter_reduce_(0, pool_of_N.unsqueeze(1).expand_as(biased_NE), biased_NE, "amax")
        admitted_PE = torch.zeros_like(best_PE, dtype=torch.bool)
        admitted_PE.scatter_(1, best_PE.topk(config.block_routing or 0, dim=-1).indices, True)
        pooled_NE = biased_NE.masked_fill(~admitted_PE[pool_of_N], -torch.inf)
        kept_NE = self._kept_groups(pooled_NE)
        enough_N = (kept_NE & admitted_PE[pool_of_N]).sum(dim=-1) >= config.num_experts_per_tok
        grouped_NE = pooled_NE.masked_fill(~kept_NE, -torch.inf)
        return (
            torch.where(enough_N.unsqueeze(1), grouped_NE, pooled_NE).topk(config.num_experts_per_tok, dim=-1).indices
        )


def routers(module: nn.Module) -> list[Router]:
    """Those inside a module; with adapters also the ones that a trained copy stands in for."""
    return [part for part in module.modules() if isinstance(part, Router)]
