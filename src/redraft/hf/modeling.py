"""The model class of transformers for `llada2_moe`: loading, saving, forward and the public `generate`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from redraft.engine.defaults import generation_config
from redraft.engine.generate import ControlIds
from redraft.engine.llm import LLM
from redraft.engine.settings import control_ids
from redraft.errors import InvalidInput
from redraft.hf import places
from redraft.hf.configuration import LLaDA2MoeConfig
from redraft.hf.generation import DEFAULT_STEPS, padded_rows, prompt_rows, refuse_unknown, sampling_params
from redraft.hf.masks import attention_pattern, checked_padding, positions_from_mask
from redraft.model.attention import MaskedAttention
from redraft.model.checkpoint import load_model, save_model
from redraft.model.network import LLaDA2

# Known arguments, and their values that ask for nothing.
_NOTHING = (None, False)
_FORWARD: dict[str, tuple[Any, ...]] = {
    "labels": _NOTHING,
    "inputs_embeds": _NOTHING,
    "past_key_values": _NOTHING,
    "use_cache": _NOTHING,
    "output_attentions": _NOTHING,
    "output_hidden_states": _NOTHING,
}
_LOAD: dict[str, tuple[Any, ...]] = {
    "trust_remote_code": (None, True, False),  # no code of a checkpoint runs either way
    "low_cpu_mem_usage": (None, True),  # always so
    "use_safetensors": (None, True),  # nothing else is read
    "_from_auto": (None, True),
}
_SAVE: dict[str, tuple[Any, ...]] = {
    "safe_serialization": (None, True),
    "state_dict": _NOTHING,  # handed over by Trainer
    "push_to_hub": _NOTHING,
    "token": _NOTHING,
}


class LLaDA2MoeModelLM(PreTrainedModel):
    """Block-diffusion language model. `forward` gives logits of every position; `generate` drafts and edits."""

    config_class = LLaDA2MoeConfig
    config: LLaDA2MoeConfig
    generation_config: GenerationConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _supports_sdpa = True
    _no_split_modules = ["Layer"]  # noqa: RUF012  (transformers' own convention)

    def __init__(self, config: LLaDA2MoeConfig, network: LLaDA2 | None = None):
        """network: one that exists already, for this configuration; None makes one with random weights."""
        super().__init__(config)
        if config._attn_implementation != "sdpa":
            raise InvalidInput(f"attn_implementation must be 'sdpa', got {config._attn_implementation!r}")
        self.model = LLaDA2(config.network()) if network is None else network
        config.dtype = self.model.dtype
        self.post_init()

    def init_weights(self) -> None:
        """Nothing: the network has initialised itself, or has its weights from a file."""

    def tie_weights(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: a tied network has one tensor only."""

    @classmethod
    def can_generate(cls) -> bool:
        return True

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.model.word_embeddings

    def get_output_embeddings(self) -> torch.nn.Module | None:
        return None if self.model.config.tie_word_embeddings else self.model.lm_head

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> torch.nn.Embedding:
        raise InvalidInput("resize_token_embeddings is not supported; vocab_size belongs to the checkpoint")

    @classmethod
    def from_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        config: PretrainedConfig | str | os.PathLike[str] | None = None,
        dtype: str | torch.dtype | None = None,
        torch_dtype: str | torch.dtype | None = None,
        device_map: Any = None,
        attn_implementation: str | None = None,
        **extra: Any,
    ) -> LLaDA2MoeModelLM:
        """Reads a checkpoint folder, or a repository of the hub, in evaluation mode, tensor by tensor.

        dtype (torch_dtype): of the weights; None and "auto" take the files'. device_map: a device, "auto" (the
        accelerator where there is one), or a map of the whole model to one device.
        Raises CheckpointError listing all that is missing, extra or mis-shaped; InvalidInput for an argument that
        would be ignored.
        """
        folder, extra = places.local_folder(pretrained_model_name_or_path, extra)
        if not isinstance(config, PretrainedConfig):
            read: Any = LLaDA2MoeConfig.from_pretrained(config or folder, return_unused_kwargs=True, **extra)
            config, extra = read
        adapter = extra.pop("adapter_kwargs", None)  # handed over by the Auto class, mostly empty
        if isinstance(adapter, Mapping) and any(value is not None for value in adapter.values()):
            raise InvalidInput(f"from_pretrained reads no adapters, got {dict(adapter)}; load it with peft.PeftModel")
        refuse_unknown("from_pretrained", extra, _LOAD)
        if not isinstance(config, LLaDA2MoeConfig):
            raise InvalidInput(f"config must be a LLaDA2MoeConfig, got {type(config).__name__}")
        if attn_implementation is not None:
            config._attn_implementation = attn_implementation
        generation = generation_config(folder)
        wanted = dtype if dtype is not None else torch_dtype
        network = load_model(
            folder,
            device=places.one_device(device_map),
            dtype=None if wanted == "auto" else wanted,
            config=config.network(),
        )
        config.name_or_path = str(pretrained_model_name_or_path)
        model = cls(config, network)
        if generation:
            model.generation_config = GenerationConfig.from_dict(generation)
        return model.eval()

    def save_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        max_shard_size: int | str = "4GB",
        **extra: Any,
    ) -> None:
        """Writes the official layout: weights in shards of at most `max_shard_size`, configuration, generation
        configuration. Loading it again gives the same bytes of every tensor."""
        refuse_unknown("save_pretrained", extra, _SAVE)
        if not is_main_process:
            return
        self.config.architectures = [type(self).__name__]
        content = self.config.to_diff_dict()
        content.pop("dtype", None)  # written under the name that every reader of the layout knows
        save_model(self.model, save_directory, config=content, shard_bytes=places.byte_count(max_shard_size))
        self.generation_config.to_json_file(os.path.join(save_directory, "generation_config.json"))

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        block_length: int | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        **extra: Any,
    ) -> CausalLMOutput | tuple[Tensor]:
        """Logits [B, T, V] in float32 (float64 in a float64 model) of `input_ids`, int64 [B, T].

        attention_mask: see `attention_pattern`; a 2-D one means block-causal attention plus padding.
        position_ids: int64 [B or 1, T]; None counts from each sequence's first real token. Blocks are
        `position // block_length`. block_length: None takes the configuration's.
        logits_to_keep: only the last so many positions; 0 for all.
        """
        refuse_unknown("forward", extra, _FORWARD)
        if input_ids is None or input_ids.ndim != 2:
            got = None if input_ids is None else list(input_ids.shape)
            raise InvalidInput(f"input_ids must be token ids of shape [batch, length], got {got}")
        length = self._block_length(block_length)
        if position_ids is None:
            position_ids = positions_from_mask(attention_mask, input_ids)
        elif position_ids.is_floating_point() or position_ids.shape not in (input_ids.shape, (1, input_ids.shape[1])):
            got = f"{position_ids.dtype} {list(position_ids.shape)}"
            raise InvalidInput(f"position_ids must be integers of shape {list(input_ids.shape)}, got {got}")
        if isinstance(logits_to_keep, bool) or not isinstance(logits_to_keep, int) or logits_to_keep < 0:
            raise InvalidInput(f"logits_to_keep must be a number of positions, 0 for all, got {logits_to_keep!r}")
        position_ids = position_ids.expand_as(input_ids)
        attend = MaskedAttention(attention_pattern(attention_mask, position_ids, length))
        hidden = self.model(input_ids, position_ids, attend, self._pools(attention_mask, position_ids, length))
        logits = self.model.head(hidden[:, -logits_to_keep:] if logits_to_keep else hidden)
        return (logits,) if return_dict is False else CausalLMOutput(logits=logits)

    def generate(
        self,
        inputs: Tensor | Mapping[str, Tensor] | None = None,
        temperature: float = 0.0,
        block_length: int | None = None,
        steps: int = DEFAULT_STEPS,
        gen_length: int = 2048,
        top_p: float | None = None,
        top_k: int | None = None,
        eos_early_stop: bool = False,
        minimal_topk: int = 1,
        threshold: float = 0.95,
        editing_threshold: float | str | None = 0.9,
        max_post_steps: int = 16,
        eos_id: int | list[int] | None = None,
        mask_id: int | None = None,
        num_to_transfer: int = 1,
        *,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        seed: int | None = None,
        **extra: Any,
    ) -> Tensor:
        """The new tokens only, int64 [B, longest answer], EOS included, shorter rows padded on the right.

        Arguments and defaults are those of the public LLaDA2.1 code; each row of a batch gets the tokens it gets alone.
        inputs (or input_ids): int64 [B, L], or a BatchEncoding; attention_mask marks padding, which is dropped.
        block_length, eos_id, mask_id: None takes the checkpoint's. num_to_transfer: tokens drafted a step at least.
        seed: of the draws when temperature > 0; None takes it from torch's default generator.
        """
        refuse_unknown("generate", extra, {"use_cache": (None, True)})
        if inputs is not None and input_ids is not None:
            raise InvalidInput("inputs and input_ids name the same thing; give one of them")
        rows = prompt_rows(input_ids if inputs is None else inputs, attention_mask)
        length = self._block_length(block_length)
        params = sampling_params(
            temperature=temperature,
            block_length=length,
            steps=steps,
            gen_length=gen_length,
            top_p=top_p,
            top_k=top_k,
            eos_early_stop=eos_early_stop,
            minimal_topk=minimal_topk,
            threshold=threshold,
            editing_threshold=editing_threshold,
            max_post_steps=max_post_steps,
            num_to_transfer=num_to_transfer,
            seed=seed,
        )
        if params.temperature > 0 and seed is None:
            several = [params.with_(seed=int(torch.randint(2**62, ()))) for _ in rows]
        else:
            several = [params] * len(rows)
        control = self._control(eos_id, mask_id)
        training = self.model.training
        try:
            running = max(1, min(16, len(rows)))
            llm = LLM.from_model(self.model, control=control, block_length=length, max_running=running)
            answers = [completion.token_ids for completion in llm.generate(rows, several)] if rows else []
        finally:
            self.model.train(training)
        pad = self.config.pad_token_id
        return padded_rows(answers, min(control.eos, default=0) if pad is None else pad, self.model.device)

    def _block_length(self, stated: int | None) -> int:
        length = self.config.block_length if stated is None else stated
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise InvalidInput(f"block_length must be a positive integer, got {length!r}")
        return length

    def _pools(self, attention_mask: Tensor | None, positions_BT: Tensor, length: int) -> Tensor | None:
        """Routing pools, one a block of a sequence; -1 for padding."""
        if self.model.config.block_routing is None:
            return None
        blocks_BT = positions_BT // length
        rows_B1 = torch.arange(len(blocks_BT), device=blocks_BT.device).unsqueeze(1)
        pools_BT = blocks_BT + rows_B1 * (blocks_BT.max() + 1)
        if attention_mask is None or attention_mask.ndim != 2:
            return pools_BT
        return pools_BT.masked_fill(~checked_padding(attention_mask, positions_BT), -1)

    def _control(self, eos_id: int | list[int] | None, mask_id: int | None) -> ControlIds:
        """The control ids stated, else the checkpoint's."""
        size = self.config.vocab_size
        if mask_id is not None and (type(mask_id) is not int or not 0 <= mask_id < size):
            raise InvalidInput(f"mask_id must be an id below vocab_size ({size}), got {mask_id!r}")
        stated = eos_id if eos_id is None or isinstance(eos_id, (list, tuple)) else [eos_id]
        if stated is not None and any(type(token) is not int for token in stated):
            raise InvalidInput(f"eos_id must be a token id or a list of them, got {eos_id!r}")
        if mask_id is not None and stated is not None:
            return ControlIds(mask_id, frozenset(stated))
        penalty = self.generation_config.repetition_penalty
        if penalty not in (None, 1.0):
            raise InvalidInput(f"repetition_penalty={penalty!r} in generation_config is not supported; it must be 1.0")
        eos = self.generation_config.eos_token_id
        generation = {"eos_token_id": eos.tolist() if isinstance(eos, Tensor) else eos}
        generation |= {"mask_token_id": getattr(self.generation_config, "mask_token_id", None)}
        own = control_ids(self.config.network(), generation)
        return ControlIds(own.mask if mask_id is None else mask_id, own.eos if stated is None else frozenset(stated))
