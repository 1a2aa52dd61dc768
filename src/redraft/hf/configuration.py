"""The configuration class of transformers for `llada2_moe`, a view of `ModelConfig`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from transformers import PretrainedConfig

from redraft.model.config import ROPE_KEYS, ModelConfig

_FIELDS = tuple(field.name for field in fields(ModelConfig))
# Read, but not kept: the veomni variant is written as the official layout, and the RoPE is plain.
_DROPPED = ("auto_map", "model_type", *ROPE_KEYS)


class LLaDA2MoeConfig(PretrainedConfig):
    """Keys of `config.json` as attributes. Keys that the network doesn't know are kept and written back.

    An `auto_map` is dropped: it would point to code, and no code of a checkpoint runs.
    Raises ConfigError for what the network doesn't implement, such as scaled RoPE.
    """

    model_type = "llada2_moe"

    def __init__(self, **raw: Any):
        network = ModelConfig.from_dict(raw)
        super().__init__(**{name: value for name, value in raw.items() if name not in (*_FIELDS, *_DROPPED)})
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
