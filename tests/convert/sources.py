"""Tiny checkpoints to convert: random Llama and Qwen3 of transformers with a tokenizer, as a folder or a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import quantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from redraft.model.attention import MaskedAttention, block_causal_mask
from redraft.model.network import LLaDA2

TEMPLATE = "{% for m in messages %}<|start|>{{ m.content }}<|end|>{% endfor %}"
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = [("a", "b"), ("ab", "c"), ("Ġ", "a"), ("1", "2"), ("Ġ", "Ġ"), ("ĠĠ", "1")]
ORDINARY = [*ALPHABET, *("".join(pair) for pair in MERGES)]
CONTROLS = ["<|start|>", "<|end|>"]
TOKENS = [*ORDINARY, *CONTROLS]
START, END = TOKENS.index("<|start|>"), TOKENS.index("<|end|>")


def tokenizer(controls: list[str] = CONTROLS) -> Tokenizer:
    made = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(ORDINARY)}, merges=MERGES))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in controls])
    return made


def write_tokenizer(folder: Path, controls: list[str] = CONTROLS, **config: Any) -> None:
    tokenizer(controls).save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<|start|>", "eos_token": "<|end|>", "chat_template": TEMPLATE} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(named))


def tiny(kind: str = "llama", *, dtype: torch.dtype = torch.float32, **changes: Any) -> PreTrainedModel:
    """A random network of transformers whose norms matter, too."""
    sizes: dict[str, Any] = {
        "vocab_size": len(TOKENS),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16 if kind == "qwen3" else 8,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "initializer_range": 0.2,
        "bos_token_id": START,
        "eos_token_id": END,
    }
    classes: dict[str, Any] = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}
    config, network = classes[kind]
    torch.manual_seed(1)
    model = network(config(**sizes | changes)).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model


def save(model: PreTrainedModel, folder: Path, **tokenizer_config: Any) -> Path:
    """A source folder; `save_pretrained` writes every setting."""
    model.save_pretrained(folder)
    write_tokenizer(folder, **tokenizer_config)
    return folder


def edit_json(path: Path, **changes: Any) -> None:
    """Changes keys of a JSON file; `...` removes one."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not ...}))


def causal_logits(model: LLaDA2, tokens_BT: Tensor) -> Tensor:
    """Logits of a converted network that reads from left to right: block length 1."""
    positions = torch.arange(tokens_BT.shape[1])
    attend = MaskedAttention(block_causal_mask(positions, positions, 1))
    with torch.no_grad():
        return model.head(model(tokens_BT, positions.expand_as(tokens_BT), attend))


def reference_logits(model: PreTrainedModel, tokens_BT: Tensor) -> Tensor:
    with torch.no_grad():
        return model(tokens_BT).logits


class _Rotary(nn.Module):
    """cos and sin in float64; that of transformers is float32 whatever the model is."""

    def __init__(self, width: int, theta: float) -> None:
        super().__init__()
        self.frequency = theta ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angle = position_ids[..., None].double() * self.frequency
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos(), angle.sin()


def exact(model: PreTrainedModel) -> PreTrainedModel:
    """A float64 network of transformers, with float64 also where its code says float32: norms and rotary angles."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                weight = child.get_parameter("weight")
                norm = nn.RMSNorm(weight.shape, model.config.rms_norm_eps, dtype=torch.float64)
                norm.weight = weight
                setattr(parent, name, norm)
    model.model.rotary_emb = _Rotary(model.config.head_dim, model.config.rope_parameters["rope_theta"])
    return model


def _paired(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp's converter stores those of queries and keys: the halves of a head become its even and odd."""
    return weight.reshape(heads, 2, -1, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(model: PreTrainedModel, path: Path, quantised: Kind | None = None, **fields: Any) -> Path:
    """A GGUF file as llama.cpp's converter writes it. quantised: kind of the matrices. fields: metadata to change,
    with __ for a dot; None leaves one out."""
    config = model.config
    kind = config.model_type
    writer = gguf.GGUFWriter(path, kind)
    metadata: dict[str, Any] = {
        f"{kind}__block_count": config.num_hidden_layers,
        f"{kind}__context_length": config.max_position_embeddings,
        f"{kind}__embedding_length": config.hidden_size,
        f"{kind}__feed_forward_length": config.intermediate_size,
        f"{kind}__attention__head_count": config.num_attention_heads,
        f"{kind}__attention__head_count_kv": config.num_key_value_heads,
        f"{kind}__attention__key_length": config.head_dim,
        f"{kind}__attention__value_length": config.head_dim,
        f"{kind}__attention__layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{kind}__rope__freq_base": config.rope_parameters["rope_theta"],
        "tokenizer__ggml__model": "gpt2",
        "tokenizer__ggml__pre": "smollm",
        "tokenizer__ggml__tokens": TOKENS,
        "tokenizer__ggml__token_type": [1] * len(ORDINARY) + [3] * len(CONTROLS),
        "tokenizer__ggml__merges": [" ".join(pair) for pair in MERGES],
        "tokenizer__ggml__bos_token_id": START,
        "tokenizer__ggml__eos_token_id": END,
        "tokenizer__chat_template": TEMPLATE,
    }
    for name, value in (metadata | fields).items():
        key = name.replace("__", ".")
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        array = tensor.float().numpy()
        part = name.split(".")[-2]
        if kind == "llama" and part in heads:
            array = _paired(array, heads[part])
        if name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            stem, _, suffix = rest.rpartition(".")
            name = f"blk.{layer}.{_GGUF_NAMES[stem]}.{suffix}"
        elif name == "lm_head.weight":
            if config.tie_word_embeddings:
                continue
            name = "output.weight"
        else:
            name = {"embed_tokens": "token_embd", "norm": "output_norm"}[part] + ".weight"
        if quantised is not None and array.ndim == 2:
            writer.add_tensor(name, quantize(array, quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
