"""The configuration of an LLaDA2 mixture-of-experts network, as `config.json` states it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from redraft.errors import CheckpointError, ConfigError

MODEL_TYPES = ("llada2_moe", "llada2_moe_veomni")

# What the family's files may state, with the only value this network implements.
_FIXED = {
    "use_bias": (False,),
    "use_qkv_bias": (False,),
    "norm_head": (False,),
    "hidden_act": ("silu",),
    "score_function": ("sigmoid",),
    "norm_topk_prob": (True,),
    "attention_dropout": (0.0, 0),
    "embedding_dropout": (0.0, 0),
    "output_dropout": (0.0, 0),
    "moe_router_enable_expert_bias": (True,),
    "sliding_window": (None,),
    "router_dtype": ("fp32", "float32", None),
}

# Where a file may describe its RoPE: the older and the newer name.
ROPE_KEYS = ("rope_scaling", "rope_parameters")
_ROPE_TYPES = ("rope_type", "type")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and constants of the network (spec/model.md). Field names are those of `config.json`.

    block_routing: number of experts a block admits (LLaDA2.2), None for token routing.
    """

    vocab_size: int = 157184
    hidden_size: int = 2048
    intermediate_size: int = 5120
    num_hidden_layers: int = 20
    num_attention_heads: int = 16
    num_key_value_heads: int = 4
    head_dim: int = 128
    first_k_dense_replace: int = 1
    moe_intermediate_size: int = 512
    num_experts: int = 256
    num_experts_per_tok: int = 8
    num_shared_experts: int = 1
    n_group: int = 8
    topk_group: int = 4
    routed_scaling_factor: float = 2.5
    rms_norm_eps: float = 1e-6
    rope_theta: float = 600000.0
    partial_rotary_factor: float = 0.5
    use_qk_norm: bool = True
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 16384
    initializer_range: float = 0.02
    block_length: int = 32
    block_routing: int | None = None
    mask_token_id: int | None = 156895
    eos_token_id: int | tuple[int, ...] | None = 156892
    pad_token_id: int | None = 156892

    def __post_init__(self) -> None:
        positive = (
            "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
            "head_dim block_length max_position_embeddings moe_intermediate_size"
        ).split()
        for name in positive:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a positive integer, got {value!r}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.rotary_dim % 2 or not 0 <= self.rotary_dim <= self.head_dim:
            raise ConfigError(
                f"head_dim * partial_rotary_factor must be even and at most head_dim, got {self.rotary_dim}"
            )
        if isinstance(self.eos_token_id, list):
            object.__setattr__(self, "eos_token_id", tuple(self.eos_token_id))
        if self.num_moe_layers:
            if self.num_experts % self.n_group:
                raise ConfigError(f"num_experts ({self.num_experts}) must be a multiple of n_group ({self.n_group})")
            if not 1 <= self.topk_group <= self.n_group:
                raise ConfigError(f"topk_group must be from 1 to n_group ({self.n_group}), got {self.topk_group}")
            reachable = self.topk_group * (self.num_experts // self.n_group)
            if not 1 <= self.num_experts_per_tok <= reachable:
                raise ConfigError(f"num_experts_per_tok must be from 1 to {reachable}, got {self.num_experts_per_tok}")
            if (
                self.block_routing is not None
                and not self.num_experts_per_tok <= self.block_routing <= self.num_experts
            ):
                raise ConfigError(
                    f"block_routing must be from num_experts_per_tok ({self.num_experts_per_tok}) to num_experts "
                    f"({self.num_experts}), got {self.block_routing}"
                )

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def num_moe_layers(self) -> int:
        return max(0, self.num_hidden_layers - self.first_k_dense_replace) if self.num_experts else 0

    def is_moe(self, layer: int) -> bool:
        return bool(self.num_experts) and layer >= self.first_k_dense_replace

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """All ids that end a sequence."""
        if self.eos_token_id is None:
            return ()
        return self.eos_token_id if isinstance(self.eos_token_id, tuple) else (self.eos_token_id,)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Reads the keys of a `config.json`; a value that this network does not honour is refused."""
        kind = raw.get("model_type")
        if kind is not None and kind not in MODEL_TYPES:
            raise ConfigError(f"model_type must be one of {', '.join(MODEL_TYPES)}, got {kind!r}")
        raw = _with_plain_rope(raw)
        for name, allowed in _FIXED.items():
            if name in raw and raw[name] not in allowed:
                raise ConfigError(f"{name}={raw[name]!r} is not supported; it must be {allowed[0]!r}")
        known = {f.name for f in fields(cls)}
        kwargs = {k: v for k, v in raw.items() if k in known and v is not None}
        if "head_dim" not in kwargs and {"hidden_size", "num_attention_heads"} <= kwargs.keys():
            kwargs["head_dim"] = kwargs["hidden_size"] // kwargs["num_attention_heads"]
        for absent in ("mask_token_id", "eos_token_id", "pad_token_id"):
            kwargs.setdefault(absent, None)  # ids come from the checkpoint, never from code
        return cls(**kwargs)

    @classmethod
    def from_json(cls, path: str | Path) -> ModelConfig:
        """Reads `config.json` (the file, or the folder that holds it)."""
        path = Path(path)
        path = path / "config.json" if path.is_dir() else path
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(f"{path} does not exist; a checkpoint folder holds config.json") from None
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise CheckpointError(f"{path} is not readable as JSON: {error}") from None
        if not isinstance(raw, dict):
            raise CheckpointError(f"{path} must hold a JSON object, got {type(raw).__name__}")
        return cls.from_dict(raw)

    def to_dict(self) -> dict[str, Any]:
        """The content of `config.json`, readable by every reader of the layout."""
        out = asdict(self)
        out["eos_token_id"] = list(self.eos_token_id) if isinstance(self.eos_token_id, tuple) else self.eos_token_id
        out |= {name: allowed[0] for name, allowed in _FIXED.items()} | {"rope_scaling": None}
        out |= {"model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"]}
        return out


def _with_plain_rope(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys without `ROPE_KEYS`, which are read when they mean plain RoPE, else refused by name."""
    out = {name: value for name, value in raw.items() if name not in ROPE_KEYS}
    for key in ROPE_KEYS:
        rope = raw.get(key)
        if rope is None:
            continue
        if not isinstance(rope, Mapping) or any(rope.get(name) not in (None, "default") for name in _ROPE_TYPES):
            raise ConfigError(f"{key}={rope!r} is not supported; it must be null or of type 'default'")
        for name, value in rope.items():
            if name in _ROPE_TYPES or value is None:
                continue
            if name not in ("rope_theta", "partial_rotary_factor"):
                raise ConfigError(f"{key}={rope!r} is not supported; plain RoPE has no {name}")
            if out.get(name) not in (None, value):
                raise ConfigError(f"{key}={rope!r} contradicts {name}={out[name]!r}; state it once")
            out[name] = value
    return out
