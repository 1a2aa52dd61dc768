"""Redraft as a model of EleutherAI's lm-evaluation-harness: `--model redraft`, once this module is imported.

`redraft eval lm-eval` is the harness's command with it; in Python, import this and call `lm_eval.simple_evaluate`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from redraft.engine.llm import LLM
from redraft.engine.named import modes_of, with_mode
from redraft.errors import ContextLengthError, InvalidInput
from redraft.model.folder import checkpoint_folder
from redraft.training.likelihood import Estimator, estimate
from redraft.types import Sample, SamplingParams

try:
    import lm_eval.models  # noqa: F401 - registers the harness's own models, which an empty registry would do later
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError as error:
    raise InvalidInput("the harness is not installed: pip install 'redraft[lm-eval]'") from error

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

CHAT = "\x00redraft-chat\x00"  # begins a prompt that is a conversation as JSON; no text of a task has such characters
MAX_TOKENS = 256
PARAMS = ("mode", "threshold", "edit_threshold", "max_post_steps", "min_unmask", "stutter_penalty", "mbe_blocks",
          "mbe_steps", "mbe_edit_threshold")  # fmt: skip
SAMPLING = ("temperature", "top_p", "top_k", "seed")
HARMLESS = ("do_sample", "until", "max_gen_toks")


class RedraftLM(LM):
    """Answers requests on the engine, and scores them by the block-diffusion bound (docs/likelihood.md).

    model: checkpoint folder; None: the model inside the package. batch_size: answers at a time. samples: masks of each
    block, 0 for all of them (blocks of up to 4 positions); mask_seed: of the masks. block_length, dtype, device: as in
    `redraft.LLM`. modes: a file of `redraft tune`. Others: the fields of `SamplingParams` in PARAMS.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        batch_size: int | str = 16,
        max_batch_size: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        block_length: int | None = None,
        samples: int = 8,
        mask_seed: int = 0,
        modes: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        unknown = settings.keys() - set(PARAMS)
        if unknown:
            raise InvalidInput(f"unknown model argument {min(unknown)!r}; known settings: {', '.join(PARAMS)}")
        try:
            running = int(batch_size)
        except ValueError:
            raise InvalidInput(f"batch_size must be a number, got {batch_size!r}") from None
        if max_batch_size is not None:
            raise InvalidInput(
                f"max_batch_size goes with batch sizes that are found, got {max_batch_size}: --batch_size"
            )
        folder = checkpoint_folder(model)
        named = modes_of(folder, modes)
        self._params = SamplingParams(**with_mode(settings, named))
        self.llm = LLM(folder, device=device, dtype=dtype, block_length=block_length, max_running=running)
        if self.llm.tokenizer is None:
            raise InvalidInput(f"the harness needs a tokenizer, and {folder} has no tokenizer.json")
        self._tokenizer = self.llm.tokenizer
        self._estimator = Estimator(
            block_length=self.llm.block_length,
            mask_id=self.llm.control.mask,
            eos_ids=self._tokenizer.eos_ids,
            samples=samples,
            seed=mask_seed,
        )
        self._name = folder.name
        self._device = self.llm.model.device

    @property
    def tokenizer_name(self) -> str:
        return self._name

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation, marked: its control strings may only be written where the template writes them, and a text
        couldn't tell them from what a task says. Beginnings of answers (`gen_prefix`) are refused."""
        if not add_generation_prompt:
            raise InvalidInput(
                "this model can't go on with the beginning of an answer; the task must not have gen_prefix"
            )
        return CHAT + json.dumps(chat_history)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """What a task's cache of requests is known by. A template of another name is refused: there is one."""
        if isinstance(chat_template, str) and chat_template not in ("", "default"):
            raise InvalidInput(f"the checkpoint has one chat template, without a name, got {chat_template!r}")
        return self._tokenizer.chat_template or ""

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Raises ContextLengthError for a prompt that fills the context, InvalidInput for an unknown setting."""
        asked: list[Any] = [request.args for request in requests]
        prompts = [self._prompt(text) for text, _ in asked]
        params = [self._generation(given, prompt) for (_, given), prompt in zip(asked, prompts, strict=True)]
        answers = [completion.text for completion in self.llm.generate(prompts, params)] if prompts else []
        for request, text in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return answers

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """The bound of each continuation, and whether greedy decoding writes it after its context; that is not so for
        an empty context, after which nothing can be generated."""
        pairs = [self._split(*request.args) for request in requests]
        scores = self._bounds([(context + continuation, len(context)) for context, continuation in pairs])
        greedy = self._greedy(pairs)
        for request, pair in zip(requests, zip(scores, greedy, strict=True), strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, pair)
        return list(zip(scores, greedy, strict=True))

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The bound of whole texts; one that is longer than the context is scored in pieces of it, each by itself."""
        length, texts = self.llm.context_length, [self._tokenizer.encode(request.args[0]) for request in requests]
        pieces = [
            (number, text[i : i + length]) for number, text in enumerate(texts) for i in range(0, len(text), length)
        ]
        totals = [0.0] * len(texts)
        for (number, _), bound in zip(pieces, self._bounds([(piece, 0) for _, piece in pieces]), strict=True):
            totals[number] += bound
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def _prompt(self, text: str) -> list[int]:
        if text.startswith(CHAT):
            return self.llm.render(json.loads(text.removeprefix(CHAT)))
        return self._tokenizer.encode(text)

    def _split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Ids of both. White space at the end of a context belongs to the continuation, as its tokens have it."""
        if context.startswith(CHAT):
            return self._prompt(context), self._tokenizer.encode(continuation)
        kept = context.rstrip()
        before = self._tokenizer.encode(kept)
        whole = self._tokenizer.encode(kept + context[len(kept) :] + continuation)
        if whole[: len(before)] == before and len(whole) > len(before):
            return before, whole[len(before) :]
        return before, self._tokenizer.encode(context[len(kept) :] + continuation)

    def _bounds(self, documents: Sequence[tuple[list[int], int]]) -> list[float]:
        """Of each (ids, how many of them are given)."""
        samples = []
        for ids, given in documents:
            if len(ids) > self.llm.context_length:
                raise ContextLengthError(
                    f"a request of {len(ids)} tokens exceeds the context of {self.llm.context_length} tokens"
                )
            if len(ids) == given:
                raise InvalidInput("a continuation has no tokens to score")
            tokens = np.array(ids, dtype=np.int32)
            # Keyed by what is scored, so that a score doesn't depend on what else is.
            index = int.from_bytes(hashlib.sha256(tokens.tobytes()).digest()[:6])
            samples.append(Sample(tokens, np.arange(len(ids)) >= given, index))
        return [each.elbo for each in estimate(self.llm.model, samples, self._estimator)] if samples else []

    def _greedy(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[bool]:
        longest: dict[tuple[int, ...], int] = {}
        for context, continuation in pairs:
            if context:
                key = tuple(context)
                longest[key] = max(longest.get(key, 0), len(continuation))
        params = [self._params.with_(max_tokens=length, ignore_eos=True) for length in longest.values()]
        answers = self.llm.generate([list(key) for key in longest], params) if longest else []
        written = {key: answer.token_ids for key, answer in zip(longest, answers, strict=True)}
        return [
            bool(context) and written[tuple(context)][: len(continuation)] == continuation
            for context, continuation in pairs
        ]

    def _generation(self, given: Mapping[str, Any], prompt: list[int]) -> SamplingParams:
        for name in given:
            if name not in (*SAMPLING, *HARMLESS):
                known = ", ".join((*SAMPLING, *HARMLESS))
                raise InvalidInput(f"unknown generation setting {name!r}; known: {known}")
        fields = {name: given[name] for name in SAMPLING if given.get(name) is not None}
        if given.get("do_sample") is False or not fields.get("temperature"):
            fields = {}  # greedy, whatever else is said of drawing
        until = given.get("until") or ()
        stops = [until] if isinstance(until, str) else [stop for stop in until if stop]
        room = self.llm.context_length - len(prompt)
        if room < 1:
            raise ContextLengthError(
                f"a prompt of {len(prompt)} tokens fills the context of {self.llm.context_length} tokens"
            )
        most = min(int(given.get("max_gen_toks", MAX_TOKENS)), room)
        return self._params.with_(stop=stops, max_tokens=most, **fields)


register_model("redraft")(RedraftLM)
