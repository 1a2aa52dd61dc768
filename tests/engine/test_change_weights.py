"""New weights in the middle of running requests: old ones up to the border of a block, new ones behind it."""

from __future__ import annotations

import copy
from collections import defaultdict

import pytest
import torch
from tests.tiny import tiny_model

from redraft.engine.llm import LLM
from redraft.errors import InvalidInput
from redraft.types import CanvasEvent, SamplingParams

B = 8
PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)
PROMPTS = [[token] * length for token, length in ((3, 5), (4, 19), (5, 8), (7, 11))]


def frozen(events: list[CanvasEvent]) -> dict[int, list[int]]:
    """The generated tokens of each request's frozen blocks."""
    out: dict[int, list[int]] = defaultdict(list)
    for event in events:
        if event.frozen:
            out[event.request] += [t for i, t in enumerate(event.tokens) if i not in event.prompt]
    return out


@pytest.mark.parametrize(("read", "max_running"), [(1, 6), (7, 2), (25, 2), (25, 6)])
def test_blocks_are_written_by_one_network_each(read: int, max_running: int) -> None:
    old, new = (tiny_model(seed, torch.float64) for seed in (1, 2))
    before = LLM.from_model(copy.deepcopy(old), block_length=B)
    after = LLM.from_model(new, block_length=B)
    llm = LLM.from_model(old, block_length=B, max_running=max_running)
    stream = llm.stream(PROMPTS, PARAMS)
    events = [next(stream) for _ in range(read)]
    written: dict[int, list[int]] = {}

    def change() -> None:
        engine = llm._engine._engine
        engine.check()
        for sequence in [*engine._scheduler._running, *engine._scheduler._admission._waiting]:
            assert sequence.at_border and not sequence.pages
            written[sequence.request.id] = list(sequence.ending.token_ids)
        old.load_state_dict(new.state_dict())

    llm.change_weights(change)
    events += stream
    assert 0 < len(written) <= len(PROMPTS)
    completions = {event.request: event.completion for event in events if event.completion}
    changed = 0
    for index, prompt in enumerate(PROMPTS):
        done = completions[index].token_ids
        first = before.generate(prompt, PARAMS)[0].token_ids
        if index not in written:  # it had ended
            assert done == first
            continue
        kept = written[index]
        changed += 0 < len(kept) < len(done)
        assert (kept == first[: len(kept)] and (len(prompt) + len(kept)) % B == 0) or not kept
        rest = after.generate([*prompt, *kept], PARAMS.with_(max_tokens=24 - len(kept)))[0].token_ids
        assert done == [*kept, *rest]
        assert frozen(events)[index][: len(done)] == done
    assert changed or read == 1
    llm._engine._engine.check(idle=True)
    llm.change_weights(lambda: None)  # nobody is there


def test_a_change_that_fails_lets_the_requests_go_on() -> None:
    llm = LLM.from_model(tiny_model(1, torch.float64), block_length=B)
    expected = [answer.token_ids for answer in llm.generate(PROMPTS, PARAMS)]
    stream = llm.stream(PROMPTS, PARAMS)
    events = [next(stream) for _ in range(9)]

    def fails() -> None:
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        llm.change_weights(fails)
    events += stream
    done = {event.request: event.completion.token_ids for event in events if event.completion}
    assert [done[index] for index in range(len(PROMPTS))] == expected


def test_without_a_cache_nothing_can_be_held() -> None:
    llm = LLM.from_model(tiny_model(1), block_length=B, use_cache=False)
    with pytest.raises(InvalidInput, match="use_cache=True"):
        llm.change_weights(lambda: None)
