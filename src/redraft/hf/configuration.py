"""The configuration class of transformers for `llada2_moe`, a view of `ModelConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from transformers import PretrainedConfig

from redraft.errors import ConfigError
from redraft.model.config import ModelConfig

_FIELDS = tuple(field.name for field in fields(ModelConfig))
_DEFAULT_ROPE = (None, "default")


class LLaDA2MoeConfig(PretrainedConfig):
    """Keys of `config.json` as attributes. Keys that the network doesn't know are kept and written back.

    An `auto_map` is dropped: it would point to code, and no code of a checkpoint runs.
    Raises ConfigError for what the network doesn't implement, such as scaled RoPE.
    """

    model_type = "llada2_moe"

    def __init__(self, **raw: Any):
        raw = _with_plain_rope(raw)
        raw.pop("auto_map", None)
        network = ModelConfig.from_dict(raw)
        raw.pop("model_type", None)  # the veomni variant reads as, and is written as, the official layout
        super().__init__(**{name: value for name, value in raw.items() if name not in _FIELDS})
        for name in _FIELDS:
            value = getattr(network, name)
            setattr(self, name, list(value) if isinstance(value, tuple) else value)
        if "use_cache" in raw:
            self.use_cache = raw["use_cache"]  # a generation setting to transformers, which drops it

    def network(self) -> ModelConfig:
        """The network's own configuration, from the attributes as they are now."""
        return ModelConfig.from_dict({name: getattr(self, name) for name in _FIELDS})

    def to_dict(self) -> dict[str, Any]:
        return {"rope_scaling": None} | super().to_dict() | {"model_type": self.model_type}


def _with_plain_rope(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_scaling` and its newer name `rope_parameters` are read when they mean plain RoPE, else refused by name."""
    out = dict(raw)
    for key in ("rope_scaling", "rope_parameters"):
        rope = out.pop(key, None)
        if rope is None:
            continue
        kind = rope.get("rope_type", rope.get("type")) if isinstance(rope, Mapping) else rope
        if not isinstance(rope, Mapping) or kind not in _DEFAULT_ROPE:
            raise ConfigError(f"{key}={rope!r} is not supported; it must be null or of type 'default'")
        for name, value in rope.items():
            if name in ("rope_type", "type"):
                continue
            if name not in ("rope_theta", "partial_rotary_factor") or out.setdefault(name, value) != value:
                raise ConfigError(f"{key}={rope!r} contradicts {name}={out.get(name)!r}; state plain RoPE once")
    return out
