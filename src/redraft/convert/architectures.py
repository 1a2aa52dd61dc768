"""How the networks that can be converted say what LLaDA2's says: their settings, and where each tensor comes from.

A dense Llama or Qwen3 is an LLaDA2 without experts: every layer is a SwiGLU one, the rotary embedding turns whole
heads, and the fused projection holds the rows of query, key and value one after the other. Ling-2.0 has LLaDA2's own
layout (LLaDA2.0 report, arXiv 2512.15745, section 3). What the network has no part for is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from redraft.errors import ConfigError
from redraft.model.config import ROPE_KEYS, ModelConfig

Raw = Mapping[str, Any]
Pieces = dict[str, tuple[str, ...]]

EMBEDDING, HEAD = "model.word_embeddings.weight", "lm_head.weight"

_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_MIXTURE = (
    *_SIZES,
    *("num_key_value_heads", "first_k_dense_replace", "moe_intermediate_size", "num_experts", "num_experts_per_tok"),
    *("num_shared_experts", "n_group", "topk_group", "routed_scaling_factor", "max_position_embeddings"),
)
# Settings of the sources, with the values that ask for nothing that LLaDA2 lacks.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "hidden_act": ("silu", None),
    "use_sliding_window": (False, None),
    "rope_interleaved": (False, None),
    "quantization_config": (None,),
    "num_nextn_predict_layers": (0, None),
    "norm_softmax": (False, None),
    "use_rmsnorm": (True, None),
}
_DENSE_NAMES = {
    "input_layernorm.weight": ("input_layernorm.weight",),
    "post_attention_layernorm.weight": ("post_attention_layernorm.weight",),
    "attention.query_key_value.weight": tuple(f"self_attn.{part}_proj.weight" for part in "qkv"),
    "attention.query_layernorm.weight": ("self_attn.q_norm.weight",),
    "attention.key_layernorm.weight": ("self_attn.k_norm.weight",),
    "attention.dense.weight": ("self_attn.o_proj.weight",),
    "mlp.gate_proj.weight": ("mlp.gate_proj.weight",),
    "mlp.up_proj.weight": ("mlp.up_proj.weight",),
    "mlp.down_proj.weight": ("mlp.down_proj.weight",),
}
_DENSE_OUTER = {EMBEDDING: "model.embed_tokens.weight", "model.norm.weight": "model.norm.weight", HEAD: HEAD}


@dataclass(frozen=True, slots=True)
class Architecture:
    """config: settings as LLaDA2's, its special ids still unset. source: names of the tensors whose rows, one after
    the other, make the tensor of a name."""

    config: Callable[[Raw], ModelConfig]
    source: Callable[[str], tuple[str, ...]]


def architecture_of(raw: Raw) -> Architecture:
    """The architecture that a `config.json` names. Raises ConfigError for one that can't be converted."""
    names = raw.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    found = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if found is None:
        raise ConfigError(f"architectures must be one of {', '.join(ARCHITECTURES)}, got {name!r}")
    return found


def _llama(raw: Raw) -> ModelConfig:
    return _dense(raw, qk_norm=False, head_dim=None)


def _qwen3(raw: Raw) -> ModelConfig:
    return _dense(raw, qk_norm=True, head_dim=128)


def _dense(raw: Raw, *, qk_norm: bool, head_dim: int | None) -> ModelConfig:
    """qk_norm: queries and keys are normalised. head_dim: where the file states none; None is hidden_size / heads.
    All other defaults are those that the two classes of transformers share."""
    _require(raw, _SIZES)
    _refuse(raw)
    stated = {name: value for name, value in raw.items() if value is not None}
    sizes = {name: stated[name] for name in _SIZES}
    defaults: dict[str, Any] = {
        "num_key_value_heads": sizes["num_attention_heads"],
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "attention_dropout": 0.0,
    }
    target = sizes | {name: stated.get(name, value) for name, value in defaults.items()}
    target |= {name: stated[name] for name in ("rope_theta", *ROPE_KEYS) if name in stated}
    if (head_dim := stated.get("head_dim", head_dim)) is not None:
        target["head_dim"] = head_dim
    rotated = [raw, *(raw[key] for key in ROPE_KEYS if isinstance(raw.get(key), Mapping))]
    for factor in (holder.get("partial_rotary_factor") for holder in rotated):
        if factor not in (None, 1, 1.0):
            raise ConfigError(f"partial_rotary_factor={factor!r} is not supported here; it must be 1.0")
    if not any(holder.get("rope_theta") is not None for holder in rotated):
        target["rope_theta"] = 10000.0
    target |= {
        "max_position_embeddings": stated.get("max_position_embeddings", 2048),
        "partial_rotary_factor": 1.0,
        "use_qk_norm": qk_norm,
        "num_experts": 0,
        "num_shared_experts": 0,
        "num_experts_per_tok": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "moe_intermediate_size": sizes["intermediate_size"],
        "first_k_dense_replace": sizes["num_hidden_layers"],
    }
    return _checked(target)


def _ling(raw: Raw) -> ModelConfig:
    """The settings of Ling-2.0 are LLaDA2's; none that matters is left to a default, since the two differ there."""
    _require(raw, _MIXTURE)
    _refuse(raw)
    holders = [raw, *(raw[key] for key in ROPE_KEYS if isinstance(raw.get(key), Mapping))]
    for name in ("rope_theta", "partial_rotary_factor"):
        if all(holder.get(name) is None for holder in holders):
            raise ConfigError(f"config.json lacks {name}")
    unset = ("architectures", "model_type", "mask_token_id", "eos_token_id", "pad_token_id")
    return _checked({name: value for name, value in raw.items() if name not in unset})


def _require(raw: Raw, names: tuple[str, ...]) -> None:
    missing = [name for name in names if raw.get(name) is None]
    if missing:
        raise ConfigError(f"config.json lacks {', '.join(missing)}")


def _refuse(raw: Raw) -> None:
    for name, allowed in _PLAIN.items():
        if raw.get(name) not in allowed:
            raise ConfigError(f"{name}={raw[name]!r} can't be carried over; it must be {allowed[0]!r}")
    # Qwen3 states a window's width even where it uses none.
    if raw.get("sliding_window") is not None and "use_sliding_window" not in raw:
        raise ConfigError(f"sliding_window={raw['sliding_window']!r} can't be carried over; it must be None")
    other = {kind for kind in raw.get("layer_types") or () if kind != "full_attention"}
    if other:
        raise ConfigError(f"layer_types {sorted(other)} can't be carried over; every layer must be 'full_attention'")


def _checked(target: dict[str, Any]) -> ModelConfig:
    """The configuration, once its numbers are known to be some."""
    config = ModelConfig.from_dict({name: value for name, value in target.items() if name != "sliding_window"})
    for name in ("rope_theta", "rms_norm_eps", "routed_scaling_factor", "partial_rotary_factor"):
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise ConfigError(f"{name} must be a number above 0, got {value!r}")
    return config


def _dense_source(target: str) -> tuple[str, ...]:
    if target in _DENSE_OUTER:
        return (_DENSE_OUTER[target],)
    model, layers, index, part = target.split(".", 3)
    return tuple(f"{model}.{layers}.{index}.{name}" for name in _DENSE_NAMES[part])


def _same(target: str) -> tuple[str, ...]:
    return (target,)


ARCHITECTURES = {
    "LlamaForCausalLM": Architecture(_llama, _dense_source),
    "Qwen3ForCausalLM": Architecture(_qwen3, _dense_source),
    "BailingMoeV2ForCausalLM": Architecture(_ling, _same),
}
