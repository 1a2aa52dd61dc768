"""`LLM`: the offline interface. Prompts in, completions or a stream of canvas events out."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from redraft.engine.checks import require_answerable, require_positive, token_ids
from redraft.engine.context import UncachedContext
from redraft.engine.engine import Engine
from redraft.engine.generate import ControlIds, generate
from redraft.engine.local import LocalEngine
from redraft.engine.request import EngineSettings, Request
from redraft.engine.settings import control_ids, load
from redraft.errors import InvalidInput
from redraft.model.network import LLaDA2
from redraft.text.detokenizer import Detokenizer
from redraft.text.tokenizer import Tokenizer
from redraft.types import CanvasEvent, Completion, SamplingParams

PREFILL_CHUNK = 1024
Prompt = str | Sequence[int]
Conversation = Sequence[Mapping[str, Any]]


class LLM:
    """A model ready to answer, many prompts at once: each gets the tokens that it would get alone. What prompts have in
    common at their beginning is computed once, also from one call to the next. Several streams may be open at the same
    time, and several threads may call.

    path: a checkpoint folder; None for the model inside the package. device: None takes the GPU where there is one.
    dtype: "float32", "bfloat16", "float16" or "float64"; None takes float32 on the CPU, bfloat16 elsewhere.
    block_length: None takes the checkpoint's; keys and values depend on it, so it belongs to the model.
    use_cache: False reads the whole sequence at every step, one answer after the other (slow; gives the same tokens).
    prefill_chunk: positions of prompts that one forward reads at most, rounded down to whole blocks.
    max_running: answers that are written at the same time; more wait.
    cache_tokens, memory_fraction: memory for keys and values, in positions or as a share of what is free on the
    device, set aside when the first prompt comes; None: for `max_running` answers of the whole context, but at most
    half of what is free. prefix_cache: whether what was computed is kept for the next prompt that begins with it.
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
        max_running: int = 16,
        cache_tokens: int | None = None,
        memory_fraction: float | None = None,
        prefix_cache: bool = True,
    ) -> None:
        settings = EngineSettings(
            max_running=max_running,
            forward_tokens=require_positive("prefill_chunk", prefill_chunk),
            cache_tokens=cache_tokens,
            memory_fraction=memory_fraction,
            prefix_cache=prefix_cache,
        )
        model, tokenizer, control = load(path, device, dtype)
        self._set(model, tokenizer, control, block_length, use_cache, settings)

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
        max_running: int = 16,
        cache_tokens: int | None = None,
        memory_fraction: float | None = None,
        prefix_cache: bool = True,
    ) -> LLM:
        """An LLM around a network in memory; control: None takes the ids of the configuration or the tokenizer."""
        self = cls.__new__(cls)
        control = control or control_ids(model.config, None, tokenizer)
        settings = EngineSettings(
            max_running=max_running,
            forward_tokens=require_positive("prefill_chunk", prefill_chunk),
            cache_tokens=cache_tokens,
            memory_fraction=memory_fraction,
            prefix_cache=prefix_cache,
        )
        self._set(model, tokenizer, control, block_length, use_cache, settings)
        return self

    def _set(
        self,
        model: LLaDA2,
        tokenizer: Tokenizer | None,
        control: ControlIds,
        block_length: int | None,
        use_cache: bool,
        settings: EngineSettings,
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.control = control
        length = model.config.block_length if block_length is None else block_length
        self.block_length = require_positive("block_length", length)
        self._use_cache = use_cache
        self._settings = settings

    @property
    def context_length(self) -> int:
        """Positions that prompt and answer may take together."""
        return self.model.config.max_position_embeddings

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Answers one prompt (text or token ids) or a list of them, all at once; the completions are in their order.

        params: one for all, or one for each prompt. Every prompt is checked before the first is answered: InvalidInput
        for an empty or foreign one, or one that all pages can't hold; ContextLengthError when prompt and max_tokens
        exceed the context. An error while one is answered (NumericalError) ends the call.
        """
        requests = self._requests(prompts, params)
        done = {event.request: event.completion for event in self._events(requests, steps=False) if event.completion}
        return [done[request.id] for request in requests]

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

    def stream(
        self,
        prompt: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[CanvasEvent]:
        """Answers one prompt step by step, or a list of them all at once: `event.request` is the place in the list, and
        params are as in `generate`. Text arrives when its block is frozen; the last event of a request has its
        completion. An iterator that is closed early ends its requests."""
        return self._events(self._requests(prompt, params), steps=True)

    def weights_changed(self) -> None:
        """To be called after every change of `model`'s weights in place; what was computed before is then not used for
        prompts to come."""
        if self._use_cache:
            self._engine.weights_changed()

    def change_weights(self, change: Callable[[], None]) -> None:
        """Changes `model`'s weights while requests are running. change: loads the new ones, in place.

        Each request first finishes its open block by the old weights. Its next block is written by the new ones, from
        keys and values computed anew for all that it has so far. To be called between two events of a stream,
        or from another thread. InvalidInput without a cache, where an answer has no engine that could hold it.
        """
        if not self._use_cache:
            raise InvalidInput("change_weights needs use_cache=True")
        self._engine.change_weights(change)

    def render(self, messages: Any, tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
        """Token ids of a conversation under the checkpoint's chat template, ready for the answer."""
        return self._need_tokenizer("messages").render_chat(messages, tools=tools)

    @cached_property
    def _engine(self) -> LocalEngine:
        tokenizer, length = self.tokenizer, self.block_length
        return LocalEngine(Engine(self.model, self.control, self._settings, block_length=length, tokenizer=tokenizer))

    def _events(self, requests: list[Request], *, steps: bool) -> Iterator[CanvasEvent]:
        if self._use_cache:
            return self._engine.stream(requests, events=steps)
        return (event for request in requests for event in self._one_by_one(request))

    def _one_by_one(self, request: Request) -> Iterator[CanvasEvent]:
        """The slow way: each answer alone, without cache."""
        params = request.params
        seed = secrets.randbits(63) if params.seed is None else params.seed
        seeded = replace(request, params=params.with_(seed=seed))
        choices = []
        for choice in range(params.n):
            context = UncachedContext(self.model, self.block_length)
            stream = Detokenizer(self.tokenizer) if self.tokenizer else None
            for event in generate(context, seeded, self.block_length, self.control, stream, choice):
                if event.completion is not None:
                    choices += event.completion.choices
                    all_ = Completion(list(request.prompt), choices) if len(choices) == params.n else None
                    event = replace(event, completion=all_)
                yield event

    def _requests(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[Request]:
        several = _as_list(prompts)
        pairs = zip(several, self._params(params, len(several)), strict=True)
        return [self._request(prompt, own, index) for index, (prompt, own) in enumerate(pairs)]

    def _request(self, prompt: Prompt, params: SamplingParams, index: int) -> Request:
        name, text = f"prompt {index}", self.tokenizer is not None
        ids = self._need_tokenizer("a text prompt").encode(prompt) if isinstance(prompt, str) else prompt
        checked = token_ids(name, ids)
        require_answerable(name, checked, params, self.model.config, text=text)
        return Request(checked, params, index)

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
