"""`LLM`: the offline interface. Prompts in, completions or a stream of canvas events out."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from redraft.engine.context import PREFILL_CHUNK, CachedContext, Context, UncachedContext
from redraft.engine.generate import ControlIds, Request, generate
from redraft.engine.settings import (
    control_ids,
    generation_config,
    resolve_device,
    resolve_dtype,
)
from redraft.errors import ContextLengthError, InvalidInput
from redraft.model.checkpoint import load_model
from redraft.model.folder import checkpoint_folder
from redraft.model.network import LLaDA2
from redraft.text.detokenizer import Detokenizer
from redraft.text.tokenizer import Tokenizer
from redraft.types import CanvasEvent, Completion, SamplingParams

Prompt = str | Sequence[int]
Conversation = Sequence[Mapping[str, Any]]


class LLM:
    """A model ready to answer.

    path: a checkpoint folder; None for the model inside the package. device: None takes the GPU where there is one.
    dtype: "float32", "bfloat16", "float16" or "float64"; None takes float32 on the CPU, bfloat16 elsewhere.
    block_length: None takes the checkpoint's; keys and values depend on it, so it belongs to the model.
    use_cache: False reads the whole sequence at every step (slow; gives the same tokens).
    prefill_chunk: positions of a prompt that one forward reads at most, rounded down to whole blocks.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        block_length: int | None = None,
        use_cache: bool = True,
        prefill_chunk: int = PREFILL_CHUNK,
    ) -> None:
        place = resolve_device(device)
        precision = resolve_dtype(dtype, place)
        folder = checkpoint_folder(path)
        generation = generation_config(folder)
        tokenizer = Tokenizer.load(folder) if (folder / "tokenizer.json").exists() else None
        model = load_model(folder, device=place, dtype=precision)
        control = control_ids(model.config, generation, tokenizer)
        self._set(model, tokenizer, control, block_length, use_cache, prefill_chunk)

    @classmethod
    def from_model(
        cls,
        model: LLaDA2,
        tokenizer: Tokenizer | None = None,
        *,
        control: ControlIds | None = None,
        block_length: int | None = None,
        use_cache: bool = True,
        prefill_chunk: int = PREFILL_CHUNK,
    ) -> LLM:
        """An LLM around a network in memory; control: None takes the ids of the configuration or the tokenizer."""
        self = cls.__new__(cls)
        control = control or control_ids(model.config, None, tokenizer)
        self._set(model, tokenizer, control, block_length, use_cache, prefill_chunk)
        return self

    def _set(
        self,
        model: LLaDA2,
        tokenizer: Tokenizer | None,
        control: ControlIds,
        block_length: int | None,
        use_cache: bool,
        prefill_chunk: int,
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.control = control
        length = model.config.block_length if block_length is None else block_length
        self.block_length = _positive("block_length", length)
        self._use_cache = use_cache
        self._prefill_chunk = _positive("prefill_chunk", prefill_chunk)

    @property
    def context_length(self) -> int:
        """Positions that prompt and answer may take together."""
        return self.model.config.max_position_embeddings

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Answers one prompt (text or token ids) or a list of them, in order.

        params: one for all, or one for each prompt. Every prompt is checked before the first is answered: InvalidInput
        for an empty or foreign one, ContextLengthError when prompt and max_tokens exceed the context.
        """
        several = _as_list(prompts)
        pairs = zip(several, self._params(params, len(several)), strict=True)
        requests = [self._request(prompt, own, index) for index, (prompt, own) in enumerate(pairs)]
        return [self._complete(request) for request in requests]

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Completion]:
        """Answers a conversation (a list of {"role", "content"}) or a list of conversations."""
        if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
            raise InvalidInput(f"messages must be a non-empty list of messages, got {messages!r}")
        single = isinstance(messages[0], Mapping)
        conversations = [messages] if single else messages
        return self.generate([self.render(conversation, tools) for conversation in conversations], params)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[CanvasEvent]:
        """Answers one prompt step by step. Text arrives when its block is frozen; the last event has the completion."""
        return self._events(self._request(prompt, params or SamplingParams(), 0))

    def render(self, messages: Any, tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
        """Token ids of a conversation under the checkpoint's chat template, ready for the answer."""
        return self._need_tokenizer("messages").render_chat(messages, tools=tools)

    def _complete(self, request: Request) -> Completion:
        *_, last = self._events(request)
        assert last.completion is not None
        return last.completion

    def _events(self, request: Request) -> Iterator[CanvasEvent]:
        stream = Detokenizer(self.tokenizer) if self.tokenizer else None
        return generate(self._context(request), request, self.block_length, self.control, stream)

    def _context(self, request: Request) -> Context:
        if not self._use_cache:
            return UncachedContext(self.model, self.block_length)
        blocks = -(-(len(request.prompt) + request.params.max_tokens) // self.block_length)
        capacity = blocks * self.block_length
        return CachedContext(self.model, capacity, self.block_length, prefill_chunk=self._prefill_chunk)

    def _request(self, prompt: Prompt, params: SamplingParams, index: int) -> Request:
        if isinstance(prompt, str):
            ids = tuple(self._need_tokenizer("a text prompt").encode(prompt))
        else:
            ids = self._checked(prompt, index)
        if not ids:
            raise InvalidInput(f"prompt {index} is empty; it must hold at least one token, got {prompt!r}")
        if params.stop:
            self._need_tokenizer("stop")
        for token in params.stop_token_ids:
            if token >= self.model.config.vocab_size:
                raise InvalidInput(f"stop_token_ids must be below {self.model.config.vocab_size}, got {token}")
        if len(ids) + params.max_tokens > self.context_length:
            raise ContextLengthError(
                f"prompt {index} of {len(ids)} tokens and max_tokens {params.max_tokens} exceed the context of "
                f"{self.context_length}; max_tokens can be at most {max(0, self.context_length - len(ids))}"
            )
        return Request(ids, params, index)

    def _checked(self, prompt: Sequence[int], index: int) -> tuple[int, ...]:
        last = self.model.config.vocab_size - 1
        ids = []
        for token in prompt:
            if isinstance(token, bool) or not hasattr(token, "__index__"):
                raise InvalidInput(f"prompt {index} must be text or token ids, got an item {token!r}")
            ids.append(operator.index(token))
            if not 0 <= ids[-1] <= last:
                raise InvalidInput(f"prompt {index} holds the token id {ids[-1]}; ids must be from 0 to {last}")
        return tuple(ids)

    def _need_tokenizer(self, what: str) -> Tokenizer:
        if self.tokenizer is None:
            raise InvalidInput(f"{what} needs a tokenizer, and this checkpoint has no tokenizer.json; give token ids")
        return self.tokenizer

    @staticmethod
    def _params(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [params or SamplingParams()] * count
        each = list(params)
        if len(each) != count or not all(isinstance(p, SamplingParams) for p in each):
            raise InvalidInput(f"params must be one SamplingParams or one for each of {count} prompts, got {params!r}")
        return each


def _as_list(prompts: Any) -> list[Prompt]:
    """A single prompt (text, or ids: a sequence whose first item is no text and no sequence) as a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise InvalidInput(f"prompts must be text, token ids, or a list of either, got {type(prompts).__name__}")
    if not prompts or not isinstance(prompts[0], (str, Sequence)):
        return [prompts]
    for index, prompt in enumerate(prompts):
        if not isinstance(prompt, (str, Sequence)) or isinstance(prompt, bytes):
            raise InvalidInput(f"prompt {index} must be text or token ids, got {prompt!r}")
    return list(prompts)


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{name} must be a positive integer, got {value!r}")
    return value
