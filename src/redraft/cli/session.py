"""A loaded model as the verbs use it: prompts in, frames out."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from redraft.cli.frames import Finish, Frame
from redraft.cli.options import set_threads
from redraft.cli.view import ViewState
from redraft.errors import CheckpointError
from redraft.types import SamplingParams

if TYPE_CHECKING:
    from redraft.engine.llm import LLM
    from redraft.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Session:
    """An LLM with the tokenizer that the command can't do without. model: its name, as traces and people read it."""

    llm: LLM
    tokenizer: Tokenizer
    model: str = "redraft-nano"

    @classmethod
    def load(cls, model: str | None, device: str | None, dtype: str | None, threads: int | None) -> Session:
        """Loads the checkpoint that the options name. Bad values and broken checkpoints raise a RedraftError."""
        set_threads(threads)
        from redraft.engine.llm import LLM

        llm = LLM(model, device=device, dtype=dtype)
        if llm.tokenizer is None:
            raise CheckpointError(f"{model} has no tokenizer.json, which the command needs to read and write text")
        return cls(llm, llm.tokenizer) if model is None else cls(llm, llm.tokenizer, model)

    @property
    def special_ids(self) -> frozenset[int]:
        return self.tokenizer.special_ids

    def chat_ids(self, text: str, tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """Token ids of a conversation of one user message (and the tools offered with it), ready for the answer."""
        return self.llm.render([{"role": "user", "content": text}], list(tools) or None)

    def frames(self, prompt: str | list[int], params: SamplingParams) -> Iterator[Frame]:
        """Frames of one request as the model makes them; the last one has `finish`."""
        events = self.llm.stream(prompt, params)
        began = time.monotonic()
        return (Frame.of(event, self._text, time.monotonic() - began) for event in events)

    def reply(self, messages: Sequence[Mapping[str, str]], given: Mapping[str, Any]) -> Generator[Frame]:
        """Frames of the answer to a conversation. given: settings by the names of SamplingParams."""
        yield from self.frames(self.llm.render(messages), SamplingParams(**given))

    def answers(self, prompt: str | list[int], params: SamplingParams) -> list[ViewState]:
        """All answers to one request, finished."""
        return [
            ViewState(text=choice.text, token_ids=choice.token_ids, finish=Finish.of(choice))
            for choice in self.llm.generate([prompt], params)[0].choices
        ]

    def _text(self, token: int) -> str:
        if token not in self._texts:
            self._texts[token] = self.tokenizer.decode([token], skip_special=False)
        return self._texts[token]

    @cached_property
    def _texts(self) -> dict[int, str]:
        return {}
