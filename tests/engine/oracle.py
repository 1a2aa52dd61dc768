"""What each request gets alone: the slow path, one answer at a time, the whole sequence read at every step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import pytest
import torch
from tests.engine.catalogue import EOS, MASK, POISON
from tests.tiny import tiny_model

from redraft.engine.engine import Engine, EngineSettings, Failure, Request
from redraft.engine.generate import ControlIds
from redraft.engine.llm import LLM
from redraft.errors import NumericalError
from redraft.model.network import LLaDA2
from redraft.text.tokenizer import Tokenizer
from redraft.types import CanvasEvent, Choice, Completion, SamplingParams

CONTROL = ControlIds(MASK, frozenset({EOS}))


class Letters:
    """What a detokenizer needs of a tokenizer: the text of an id is a letter."""

    special_ids = frozenset(CONTROL.eos | {MASK})

    def token(self, index: int) -> str:
        return chr(ord("a") + index)


LETTERS = cast(Tokenizer, Letters())


@dataclass(frozen=True)
class World:
    """A network in float64 and its blocks. changes: of the tiny configuration. poisoned: who reads the token POISON
    gets logits that are not finite."""

    block_length: int
    changes: tuple[tuple[str, Any], ...] = ()
    poisoned: bool = False

    @property
    def network(self) -> LLaDA2:
        return _network(self.changes, self.poisoned)

    def engine(self, settings: EngineSettings, **more: Any) -> Engine:
        return Engine(self.network, CONTROL, settings, block_length=self.block_length, tokenizer=LETTERS, **more)

    def alone(self, prompt: tuple[int, ...], params: SamplingParams) -> list[Choice] | NumericalError:
        """The choices, or what the request fails with."""
        return _alone(self, prompt, params)


TOKEN_ROUTING, BLOCK_ROUTING, DENSE, POISONED = WORLDS = (
    World(4),
    World(4, (("block_routing", 3),)),
    World(8, (("num_experts", 0), ("use_qk_norm", False))),
    World(4, poisoned=True),
)


@cache
def _network(changes: tuple[tuple[str, Any], ...], poisoned: bool) -> LLaDA2:
    model = tiny_model(0, torch.float64, **dict(changes))
    if poisoned:
        model.word_embeddings.weight.data[POISON] = torch.nan
        model.lm_head.weight.data[POISON] = 0.0  # rarely drafted
    return model


@cache
def _alone(world: World, prompt: tuple[int, ...], params: SamplingParams) -> list[Choice] | NumericalError:
    llm = LLM.from_model(world.network, LETTERS, control=CONTROL, block_length=world.block_length, use_cache=False)
    try:
        return llm.generate(list(prompt), params)[0].choices
    except NumericalError as error:
        return error


def drain(engine: Engine, most: int = 10_000) -> tuple[dict[int, Completion], dict[int, Failure]]:
    """Steps until there is nothing to do; completions and failures by request."""
    completions, failures = {}, {}
    for _ in range(most):
        if not engine.busy:
            engine.check(idle=True)
            return completions, failures
        for output in engine.step():
            if isinstance(output, Failure):
                failures[output.request] = output
            elif output.completion is not None:
                completions[output.request] = output.completion
    raise AssertionError(f"the engine is still busy after {most} steps")


def require_as_alone(world: World, request: Request, found: Completion | Failure, *, aborted: bool = False) -> None:
    """aborted: whether it may have ended early."""
    expected = world.alone(request.prompt, request.params)
    if isinstance(found, Failure):
        assert isinstance(expected, NumericalError) and isinstance(found.error, NumericalError)
        return
    assert len(found.choices) == request.params.n
    if isinstance(expected, NumericalError):
        assert any(choice.finish_reason == "abort" for choice in found.choices) and aborted
        return
    for own, other in zip(found.choices, expected, strict=True):
        if own.finish_reason == "abort":
            assert aborted and own.token_ids == other.token_ids[: len(own.token_ids)]
        else:
            require_equal(own, other)


def require_equal(own: Choice, other: Choice) -> None:
    assert (own.token_ids, own.text, own.finish_reason) == (other.token_ids, other.text, other.finish_reason)
    ours, theirs = own.stats, other.stats
    assert (ours.forwards, ours.drafted, ours.edits) == (theirs.forwards, theirs.drafted, theirs.edits)
    assert (own.logprobs is None) == (other.logprobs is None)
    for mine, its in zip(own.logprobs or (), other.logprobs or (), strict=True):
        assert mine.token == its.token and mine.logprob == pytest.approx(its.logprob, abs=1e-9)
        assert [token for token, _ in mine.top] == [token for token, _ in its.top]
        assert [value for _, value in mine.top] == pytest.approx([value for _, value in its.top], abs=1e-9)


def require_told(events: Iterable[CanvasEvent], completion: Completion) -> None:
    """The frozen blocks of the stream are the tokens of the completion, its text deltas the text."""
    tokens: list[list[int]] = [[] for _ in completion.choices]
    texts = [""] * len(completion.choices)
    for event in events:
        texts[event.choice] += event.text_delta
        if event.frozen:
            assert not event.masked
            tokens[event.choice] += event.tokens[len(event.prompt) :]
    for choice, block, text in zip(completion.choices, tokens, texts, strict=True):
        assert choice.token_ids == block[: len(choice.token_ids)] and choice.text == text
