"""The LLaDA2 network in plain PyTorch (spec/model.md; LLaDA2.0 report, arXiv 2512.15745).

Shapes: B sequences, T positions, C hidden, H query heads, G key-value heads, D head width, E experts, F expert width,
V vocabulary. The network knows positions and routing pools; masks, caches and pages live in the `attend` strategy.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from redraft.kernels.linear import Linear, linear, swiglu
from redraft.kernels.moe import Exchange, routed_experts
from redraft.model.attention import Attend
from redraft.model.config import ModelConfig
from redraft.model.precision import at_least_float32
from redraft.model.rotary import rotate, rotation
from redraft.model.router import Router


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32 (float64 in a float64 model)."""

    def __init__(self, size: int, eps: float, device=None, dtype=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, device=device, dtype=dtype))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = at_least_float32(x.dtype)
        return F.rms_norm(x.to(wide), self.weight.shape, None, self.eps).to(x.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, config: ModelConfig, layer: int, device=None, dtype=None):
        super().__init__()
        self.config, self.layer = config, layer
        heads = config.num_attention_heads + 2 * config.num_key_value_heads
        factory = {"device": device, "dtype": dtype}
        self.query_key_value = Linear(config.hidden_size, heads * config.head_dim, **factory)
        self.dense = Linear(config.num_attention_heads * config.head_dim, config.hidden_size, **factory)
        if config.use_qk_norm:
            self.query_layernorm = RMSNorm(config.head_dim, config.rms_norm_eps, **factory)
            self.key_layernorm = RMSNorm(config.head_dim, config.rms_norm_eps, **factory)

    def queries_keys_values(self, x_BTC: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """What `Attend` takes, rotated."""
        config = self.config
        groups = config.num_key_value_heads
        qkv = self.query_key_value(x_BTC).unflatten(-1, (-1, config.head_dim))
        q, k, v = qkv.split((config.num_attention_heads, groups, groups), dim=2)
        if config.use_qk_norm:
            q, k = self.query_layernorm(q), self.key_layernorm(k)
        return rotate(q, *turn), rotate(k, *turn), v


class SwiGLU(nn.Module):
    def __init__(self, hidden: int, width: int, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.gate_proj = Linear(hidden, width, **factory)
        self.up_proj = Linear(hidden, width, **factory)
        self.down_proj = Linear(width, hidden, **factory)

    def forward(self, x: Tensor, pools: Tensor | None = None) -> Tensor:
        gate, up, down = self.gate_proj, self.up_proj, self.down_proj
        if type(gate) is type(up) is type(down) is Linear:  # no adapter has taken the place of one
            return swiglu(x, gate.weight, up.weight, down.weight)
        return down(F.silu(gate(x)) * up(x))


class Experts(nn.Module):
    """All routed experts of a layer, packed: gate_up [E, 2F, C] (gate rows first), down [E, C, F].

    `exchange` is set where the experts lie over several processes (`model.parallel`).
    """

    exchange: Exchange | None = None

    def __init__(self, config: ModelConfig, device=None, dtype=None):
        super().__init__()
        experts, hidden, width = config.num_experts, config.hidden_size, config.moe_intermediate_size
        self.gate_up = nn.Parameter(torch.empty(experts, 2 * width, hidden, device=device, dtype=dtype))
        self.down = nn.Parameter(torch.empty(experts, hidden, width, device=device, dtype=dtype))

    def forward(self, x_NC: Tensor, expert_NK: Tensor, weight_NK: Tensor) -> Tensor:
        return routed_experts(x_NC, expert_NK, weight_NK, self.gate_up, self.down, self.exchange)


class MixtureOfExperts(nn.Module):
    def __init__(self, config: ModelConfig, device=None, dtype=None):
        super().__init__()
        self.gate = Router(config, device=device, dtype=dtype)
        self.experts = Experts(config, device=device, dtype=dtype)
        if config.num_shared_experts:
            width = config.moe_intermediate_size * config.num_shared_experts
            self.shared_experts = SwiGLU(config.hidden_size, width, device=device, dtype=dtype)

    def forward(self, x_BTC: Tensor, pools_BT: Tensor | None = None) -> Tensor:
        x_NC = x_BTC.flatten(0, 1)
        ids_NK, weight_NK = self.gate(x_NC, None if pools_BT is None else pools_BT.flatten())
        out = self.experts(x_NC, ids_NK, weight_NK).view_as(x_BTC)
        return out + self.shared_experts(x_BTC) if hasattr(self, "shared_experts") else out


class Layer(nn.Module):
    def __init__(self, config: ModelConfig, layer: int, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, **factory)
        self.attention = Attention(config, layer, **factory)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, **factory)
        if config.is_moe(layer):
            self.mlp = MixtureOfExperts(config, **factory)
        else:
            self.mlp = SwiGLU(config.hidden_size, config.intermediate_size, **factory)

    def forward(self, x_BTC: Tensor, turn: tuple[Tensor, Tensor], attend: Attend, pools_BT: Tensor | None) -> Tensor:
        q_BTHD, k_BTGD, v_BTGD = self.before(x_BTC, turn)
        x_BTC, normed_BTC = self.after(x_BTC, attend(self.attention.layer, q_BTHD, k_BTGD, v_BTGD))
        return x_BTC + self.mlp(normed_BTC, pools_BT)

    def before(self, x_BTC: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """All up to attention: its rotated queries, keys and values."""
        return self.attention.queries_keys_values(self.input_layernorm(x_BTC), turn)

    def after(self, x_BTC: Tensor, out_BTHD: Tensor) -> tuple[Tensor, Tensor]:
        """From attention to the MLP: the residual stream, and what the MLP reads."""
        x_BTC = x_BTC + self.attention.dense(out_BTHD.flatten(2))
        return x_BTC, self.post_attention_layernorm(x_BTC)


def reset_parameter(
    config: ModelConfig, name: str, parameter: Tensor, generator: torch.Generator | None = None
) -> None:
    """Normal(0, initializer_range) weights; the two projections back into the residual stream are scaled down by
    sqrt(2 · layers), as GPT-2 does, so that depth doesn't raise the variance. Norms are 1, but those of queries and
    keys start where the sharpest attention is that of heads 128 wide: narrow ones could hardly look at a neighbour
    otherwise. name: as in `named_parameters`."""
    if parameter.ndim == 1:
        sharp = name.endswith(("query_layernorm.weight", "key_layernorm.weight"))
        nn.init.constant_(parameter, (128 / config.head_dim) ** 0.25 if sharp else 1.0)
        return
    back = name.endswith(("attention.dense.weight", "down_proj.weight", "experts.down"))
    std = config.initializer_range / ((2 * config.num_hidden_layers) ** 0.5 if back else 1.0)
    nn.init.normal_(parameter, std=std, generator=generator)


class LLaDA2(nn.Module):
    """The whole network. `forward` gives hidden states, `head` turns those that are needed into logits."""

    def __init__(self, config: ModelConfig, device=None, dtype=None):
        super().__init__()
        self.config = config
        # Set by `load_model`: tensors of the file that are wider in memory, so that a save gives the same bytes.
        self.file_dtypes: dict[str, torch.dtype] = {}
        factory = {"device": device, "dtype": dtype}
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, device=device, dtype=dtype)
        self.layers = nn.ModuleList(Layer(config, layer, **factory) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, **factory)
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size, **factory)
        if self.word_embeddings.weight.device.type != "meta":
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Random weights, each by `reset_parameter`."""
        for name, parameter in self.named_parameters():
            reset_parameter(self.config, name, parameter)

    @property
    def dtype(self) -> torch.dtype:
        return self.word_embeddings.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.word_embeddings.weight.device

    def forward(
        self, tokens_BT: Tensor, positions_BT: Tensor, attend: Attend, pools_BT: Tensor | None = None
    ) -> Tensor:
        """Hidden states after the final norm, [B, T, C].

        tokens_BT, positions_BT: int64; positions count from the start of each sequence. pools_BT: int64, the
        routing pool (one block of one sequence) of each position, needed with block routing only.
        """
        x_BTC = self.word_embeddings(tokens_BT)
        turn = rotation(self.config, positions_BT, x_BTC.dtype)
        for layer in self.layers:
            x_BTC = layer(x_BTC, turn, attend, pools_BT)
        return self.norm(x_BTC)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., C], in float32 (float64 in a float64 model)."""
        weight = self.word_embeddings.weight if self.config.tie_word_embeddings else self.lm_head.weight
        return linear(hidden, weight, at_least_float32(hidden.dtype))
