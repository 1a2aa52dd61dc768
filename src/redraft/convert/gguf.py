"""A GGUF file as a source: its metadata and tensors under the names of Hugging Face.

The format is that of llama.cpp (its `gguf` package reads it). Quantised tensors are dequantised to float32, one at a
time; the others keep their dtype. For the architecture `llama` the converter of llama.cpp stores the rows of queries
and keys in pairs, because its rotary embedding turns neighbouring channels; here the two halves of a head turn
against each other, so the rows are put back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redraft.convert.gguf_tokenizer import write_tokenizer
from redraft.convert.source import TensorInfo
from redraft.errors import CheckpointError, ConfigError

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_PLAIN = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class GGUFSource:
    """A GGUF file of architecture llama or qwen3. Raises CheckpointError for one that is cut off or of another kind,
    ConfigError for settings that can't be carried over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        reader = _opened(path)
        self._metadata = {name: field.contents() for name, field in reader.fields.items()}
        self._architecture = str(self._metadata.get("general.architecture"))
        if self._architecture not in _ARCHITECTURES:
            known = ", ".join(_ARCHITECTURES)
            raise ConfigError(f"{path}: general.architecture must be one of {known}, got {self._architecture!r}")
        if self._metadata.get("split.count", 1) > 1:
            raise CheckpointError(f"{path} is one part of {self._metadata['split.count']}; merge them into one file")
        self._stored = {_hugging_face_name(tensor.name): tensor for tensor in reader.tensors}
        if "rope_freqs.weight" in self._stored:
            raise ConfigError(f"{path}: rope scaling (rope_freqs.weight) can't be carried over")
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(_shape(tensor), _PLAIN.get(tensor.tensor_type.name, torch.float32))
            for name, tensor in self._stored.items()
        }
        self.config: Mapping[str, Any] = self._config()

    def _config(self) -> dict[str, Any]:
        heads = self._of_model("attention.head_count")
        hidden = self._of_model("embedding_length")
        default_head = hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads > 0 else None
        head_dim = self._of_model("attention.key_length", default_head)
        refused = {
            "attention.value_length": (head_dim,),
            "rope.dimension_count": (head_dim,),
            "rope.scaling.type": ("none",),
            "rope.scale_linear": (1.0,),
            "rope.scaling.factor": (1.0,),
            "expert_count": (0,),
            "attention.sliding_window": (0,),
            "attention.causal": (True,),
            "attention.scale": (),
            "logit_scale": (1.0, 0.0),
            "embedding_scale": (1.0, 0.0),
            "residual_scale": (1.0, 0.0),
        }
        for name, allowed in refused.items():
            value = self._of_model(name, None)
            if value is not None and value not in allowed:
                wanted = f"it must be {allowed[0]!r}" if allowed else "it must be absent"
                raise ConfigError(f"{self._architecture}.{name}={value!r} can't be carried over; {wanted}")
        embedding = self.tensors.get(_OUTER["token_embd.weight"])
        if embedding is None:
            raise CheckpointError(f"{self._path} lacks token_embd.weight")
        return {
            "architectures": [_ARCHITECTURES[self._architecture]],
            "vocab_size": embedding.shape[0],
            "hidden_size": hidden,
            "intermediate_size": self._of_model("feed_forward_length"),
            "num_hidden_layers": self._of_model("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._of_model("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "rms_norm_eps": _short(self._of_model("attention.layer_norm_rms_epsilon")),
            "rope_theta": _short(self._of_model("rope.freq_base", 10000.0)),
            "max_position_embeddings": self._of_model("context_length"),
            "tie_word_embeddings": "lm_head.weight" not in self.tensors,
            "eos_token_id": self._eos_ids(),
            "pad_token_id": self._metadata.get("tokenizer.ggml.padding_token_id"),
        }

    def read(self, name: str) -> Tensor:
        stored = self._stored[name]
        kind = stored.tensor_type.name
        if kind in _PLAIN:
            raw = torch.from_numpy(np.array(stored.data))  # a copy: the file's pages can't be written
            tensor = raw.view(_PLAIN[kind]).reshape(_shape(stored))
        else:
            from gguf.quants import dequantize

            try:
                tensor = torch.from_numpy(dequantize(stored.data, stored.tensor_type)).reshape(_shape(stored))
            except NotImplementedError:
                raise CheckpointError(f"{self._path}: {stored.name} is {kind}, which gguf can't dequantise") from None
        paired = {"self_attn.q_proj.weight": "num_attention_heads", "self_attn.k_proj.weight": "num_key_value_heads"}
        count = paired.get(name.split(".", 3)[-1])
        if self._architecture == "llama" and count is not None:
            return tensor.unflatten(0, (self.config[count], -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()
        return tensor

    def write_tokenizer(self, folder: Path) -> None:
        write_tokenizer(self._metadata, folder)

    def _of_model(self, name: str, *default: Any) -> Any:
        key = f"{self._architecture}.{name}"
        if key not in self._metadata and not default:
            raise ConfigError(f"{self._path} lacks {key}")
        return self._metadata.get(key, *default)

    def _eos_ids(self) -> list[int] | None:
        ids = [self._metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot")]
        return list(dict.fromkeys(index for index in ids if index is not None)) or None


def _opened(path: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ConfigError("GGUF files are read with the gguf package: pip install 'redraft[convert]'") from None
    try:
        return GGUFReader(path)
    except (ValueError, IndexError, KeyError, OSError) as error:  # how the reader fails on a file that is cut off
        raise CheckpointError(f"{path} is not a complete GGUF file: {error}") from None


def _hugging_face_name(name: str) -> str:
    """A name without a counterpart stays, and is reported as one too many."""
    block = _BLOCK.fullmatch(name)
    if block is not None and block[2] in _LAYER:
        return f"model.layers.{block[1]}.{_LAYER[block[2]]}.{block[3]}"
    return _OUTER.get(name, name)


def _shape(tensor: Any) -> tuple[int, ...]:
    """GGUF states the fastest dimension first."""
    return tuple(int(size) for size in reversed(tensor.shape))


def _short(value: Any) -> Any:
    """The shortest decimal number that is this float32: 1e-5 instead of 9.999999747378752e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value
