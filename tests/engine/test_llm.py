"""The offline interface: what goes in, what comes out, and what is refused."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from redraft.engine.generate import ControlIds
from redraft.engine.llm import LLM
from redraft.errors import CheckpointError, ConfigError, ContextLengthError, InvalidInput, NumericalError
from redraft.model.checkpoint import save_model
from redraft.text.build import train_tokenizer
from redraft.types import SamplingParams

TEXTS = ["Max has 3 apples and gives 12 to Ann. Answer: 15", "def add(a, b):\n    return a + b\n"] * 4
MASK, EOS, B = 31, 30, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[..., Any]) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    tokenizer = train_tokenizer(TEXTS, 300, path)
    eos = tokenizer.eos_ids[0]
    model = tiny(0, torch.float32, vocab_size=300, mask_token_id=tokenizer.mask_id, eos_token_id=eos, block_length=B)
    save_model(model, path)
    return path


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, device="cpu")


@pytest.fixture(scope="module")
def ids_only(tiny: Callable[..., Any]) -> LLM:
    return LLM.from_model(tiny(1), block_length=B)


def test_text_ids_and_lists_of_either(llm: LLM) -> None:
    params = SamplingParams(max_tokens=10)
    ids = llm.tokenizer.encode("Max has 3") if llm.tokenizer else []
    one, other = llm.generate(["Max has 3", ids], params)
    alone = [llm.generate(prompt, params)[0] for prompt in ("Max has 3", ids)]
    assert one.token_ids == other.token_ids == alone[0].token_ids == alone[1].token_ids
    assert one.text == alone[0].text
    assert one.prompt_token_ids == ids
    assert one.stats.prompt_tokens == len(ids)
    assert one.stats.generated_tokens == len(one.token_ids) == 10
    assert 0 < one.stats.seconds_to_first_block <= one.stats.seconds


def test_parameters_may_differ_by_prompt(llm: LLM) -> None:
    short, long = llm.generate(["Max", "Ann"], [SamplingParams(max_tokens=2), SamplingParams(max_tokens=9)])
    assert (len(short.token_ids), len(long.token_ids)) == (2, 9)


def test_chat_is_generation_from_the_rendered_conversation(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Max has 3 apples"}]
    params = SamplingParams(max_tokens=8)
    answer = llm.chat(messages, params)[0]
    assert answer.prompt_token_ids == llm.render(messages)
    assert answer.token_ids == llm.generate(llm.render(messages), params)[0].token_ids
    assert [a.token_ids for a in llm.chat([messages, messages], params)] == [answer.token_ids] * 2


@pytest.mark.parametrize("prompt", ["Max", "Max has 3 apples and gives 12 to Ann."])
@pytest.mark.parametrize("stop", [(), ("a",), ("e", "1")])
def test_stream_is_the_completion_step_by_step(llm: LLM, prompt: str, stop: tuple[str, ...]) -> None:
    params = SamplingParams(mode="speed", max_tokens=30, stop=stop, ignore_eos=True)
    events = list(llm.stream(prompt, params))
    completion = events[-1].completion
    assert completion is not None and llm.tokenizer is not None
    assert all(event.completion is None for event in events[:-1])
    assert completion.token_ids == llm.generate(prompt, params)[0].token_ids
    assert "".join(event.text_delta for event in events) == completion.text
    assert all(event.frozen or not event.text_delta for event in events)
    if not stop:
        assert completion.text == llm.tokenizer.decode(completion.token_ids)
    assert not any(text in completion.text for text in stop)
    assert len(events) <= completion.stats.forwards
    assert sum(len(event.drafted) for event in events) == completion.stats.drafted
    assert sum(len(event.edited) for event in events) == completion.stats.edits
    first = events[0]
    assert len(first.tokens) == B and first.step == 1
    for before, after in itertools.pairwise(events):
        if before.block == after.block:
            assert not before.frozen and after.step > before.step
            changed = {i for i in range(B) if before.tokens[i] != after.tokens[i]}
            assert changed <= {*after.drafted, *after.edited}
            assert all(before.tokens[i] == old for i, old in after.edited.items())
        else:
            assert before.frozen and not before.masked and after.block == before.block + 1


def test_sampling_follows_its_seed(ids_only: LLM) -> None:
    hot = SamplingParams(temperature=2.0, max_tokens=24, ignore_eos=True, edit_threshold="off")
    first, again, other, fresh, fresh_too = (
        ids_only.generate([1, 2, 3], hot.with_(seed=seed))[0].token_ids for seed in (5, 5, 6, None, None)
    )
    assert first == again
    assert len({tuple(tokens) for tokens in (first, other, fresh, fresh_too)}) == 4


def test_stop_ids_and_eos_stay_in_the_ids_and_leave_the_text(scripted: Any) -> None:
    network = scripted(lambda tokens, positions: torch.eye(32)[[p % 32 for p in positions]] * 50)
    llm = LLM.from_model(network, control=ControlIds(MASK, frozenset({9, 20})), block_length=B)
    assert llm.generate([1] * 5)[0].token_ids == [5, 6, 7, 8, 9]
    assert llm.generate([1] * 5, SamplingParams(stop_token_ids=[6, 7]))[0].token_ids == [5, 6]
    assert llm.generate([9] * 5)[0].token_ids == [5, 6, 7, 8, 9], "an EOS of the prompt ends nothing"
    found = llm.generate([1] * 5, SamplingParams(ignore_eos=True, max_tokens=12))[0]
    assert (found.token_ids, found.finish_reason) == (list(range(5, 17)), "length")


# Several at once.


def held(llm: LLM) -> int:
    """Pages that requests hold now."""
    llm._engine._engine.check()
    return llm._engine._engine.statistics().pages.held


def test_a_list_is_answered_together_and_each_as_alone(tiny: Callable[..., Any]) -> None:
    model = tiny(1, torch.float64)
    llm, slow = LLM.from_model(model, block_length=B), LLM.from_model(model, block_length=B, use_cache=False)
    prompts = [[at % 29] * (5 * at + 1) for at in range(5)]
    several = [SamplingParams(max_tokens=8 + at, temperature=at % 2, seed=at, max_post_steps=2) for at in range(5)]
    assert [answer.token_ids for answer in llm.generate(prompts, several)] == [
        answer.token_ids for answer in slow.generate(prompts, several)
    ]
    statistics = llm._engine._engine.statistics()
    assert statistics.forwards < statistics.denoising_forwards, "forwards are shared"
    assert held(llm) == 0


@pytest.mark.parametrize("use_cache", [True, False])
def test_several_answers_to_one_prompt(tiny: Callable[..., Any], use_cache: bool) -> None:
    llm = LLM.from_model(tiny(1, torch.float64), block_length=B, use_cache=use_cache)
    hot = SamplingParams(temperature=2.0, max_tokens=12, ignore_eos=True, edit_threshold="off", n=3, seed=4)
    events = list(llm.stream([3] * 40, hot))
    completion = events[-1].completion
    assert completion is not None and not any(event.completion for event in events[:-1])
    assert {event.choice for event in events} == {0, 1, 2}
    answers = [choice.token_ids for choice in completion.choices]
    assert len(set(map(tuple, answers))) == 3
    assert completion.token_ids == llm.generate([3] * 40, hot.with_(n=1))[0].token_ids, "the first is that of n=1"
    assert [choice.token_ids for choice in llm.generate([3] * 40, hot)[0].choices] == answers
    unseeded = llm.generate([3] * 40, hot.with_(seed=None))[0].choices
    assert len({tuple(choice.token_ids) for choice in unseeded}) == 3


def test_the_next_prompt_uses_what_the_last_computed(ids_only: LLM) -> None:
    llm = LLM.from_model(ids_only.model, block_length=B)
    prompt, params = [3] * 70, SamplingParams(max_tokens=9)
    first, again, longer = (llm.generate(ids, params)[0] for ids in (prompt, prompt, [*prompt, 4]))
    assert first.token_ids == again.token_ids
    assert [answer.stats.cached_tokens for answer in (first, again, longer)] == [0, 64, 64]
    assert LLM.from_model(llm.model, block_length=B, prefix_cache=False).generate(prompt, params)[0].text == first.text
    llm.weights_changed()
    assert llm.generate(prompt, params)[0].stats.cached_tokens == 0


def test_streams_may_be_read_in_turn_and_left_open(ids_only: LLM) -> None:
    llm = LLM.from_model(ids_only.model, block_length=B)
    params = SamplingParams(max_tokens=40, threshold=2, edit_threshold="off", ignore_eos=True)
    one, other = (llm.stream([token] * 9, params) for token in (1, 2))
    left = llm.stream([3] * 9, params.with_(max_tokens=400))
    next(left)
    assert held(llm) > 0
    pairs = list(zip(one, other, strict=True))
    for index, token in enumerate((1, 2)):
        last = pairs[-1][index].completion
        assert last is not None and last.token_ids == llm.generate([token] * 9, params)[0].token_ids
    assert held(llm) > 0, "the third is still open"
    left.close()  # type: ignore[attr-defined]
    assert held(llm) == 0
    unread = llm.stream([1], params)
    del unread
    llm._engine._engine.check(idle=True)


def test_threads_may_share_a_model(ids_only: LLM) -> None:
    llm = LLM.from_model(ids_only.model, block_length=B)
    params = SamplingParams(max_tokens=16, max_post_steps=2)
    expected = [llm.generate([token] * 9, params)[0].token_ids for token in range(6)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda token: llm.generate([token] * 9, params)[0].token_ids, range(6)))
    assert found == expected and held(llm) == 0


def test_an_error_ends_its_call_and_the_model_goes_on(scripted: Any) -> None:
    def script(tokens: list[int], positions: list[int]) -> torch.Tensor:
        logits = torch.eye(32)[[p % 29 for p in positions]] * 50
        broken = (torch.tensor(tokens) == 30).view(-1, B).any(1).repeat_interleave(B)
        return logits.masked_fill(broken[:, None], torch.nan)

    llm = LLM.from_model(scripted(script), control=ControlIds(MASK), block_length=B, max_running=2)
    params = SamplingParams(max_tokens=20, min_unmask=1, threshold=2, edit_threshold="off")
    open_ = llm.stream([1, 2], params)
    next(open_)
    with pytest.raises(NumericalError, match="position 1 "):
        llm.generate([[1] * 9, [2, 3], [4] * 9, [30]] * 2, params)
    *_, last = open_
    assert last.completion is not None and last.completion.token_ids == list(range(2, 22))
    assert held(llm) == 0


def test_memory_that_cant_hold_a_request_refuses_it_before_any_is_answered(ids_only: LLM) -> None:
    llm = LLM.from_model(ids_only.model, block_length=B, cache_tokens=64)
    with pytest.raises(InvalidInput, match="together they must be at most 64 tokens"):
        llm.generate([[1], [2] * 60], SamplingParams(max_tokens=8))
    assert llm._engine._engine.statistics().forwards == 0 and held(llm) == 0
    assert len(llm.generate([[1] * 50] * 5, SamplingParams(max_tokens=14, ignore_eos=True))) == 5


# No prompt hangs.


def test_a_model_that_always_wants_the_mask_ends(scripted: Any) -> None:
    network = scripted(lambda tokens, positions: torch.eye(32)[[MASK] * len(tokens)] * 1000)
    llm = LLM.from_model(network, control=ControlIds(MASK), block_length=B)
    for mode in ("speed", "quality", "draft-only"):
        assert llm.generate([1], SamplingParams(mode=mode, max_tokens=20))[0].token_ids == [0] * 20


def test_a_literal_mask_id_in_the_prompt_stays(ids_only: LLM) -> None:
    prompt = [MASK] * 3 + [4] + [MASK] * (B + 1)
    events = list(ids_only.stream(prompt, SamplingParams(max_tokens=3)))
    for event in events:
        assert event.block == 1 and event.prompt == tuple(range(5))
        assert event.tokens[:5] == (MASK,) * 5
        assert not set(event.masked) & set(event.prompt)
    completion = events[-1].completion
    assert completion is not None and MASK not in completion.token_ids


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_a_clear_error(scripted: Any, bad: float) -> None:
    def script(tokens: list[int], positions: list[int]) -> torch.Tensor:
        logits = torch.zeros(len(tokens), 32)
        logits[-1, 3] = bad
        return logits

    llm = LLM.from_model(scripted(script), control=ControlIds(MASK), block_length=B)
    with pytest.raises(NumericalError, match="position 7 from block 1 on"):
        llm.generate([1] * 9)


def test_the_clock_stops_while_the_consumer_works(ids_only: LLM) -> None:
    stream = ids_only.stream([1, 2], SamplingParams(max_tokens=3, threshold=2, edit_threshold="off"))
    next(stream)
    began = time.perf_counter()
    time.sleep(1.5)
    *_, last = stream
    wall = time.perf_counter() - began
    assert last.completion is not None and last.completion.stats.seconds < wall


# What is refused.


@pytest.mark.parametrize("prompt", ["", [], [[]], ["Max", ""], [[1], []]])
def test_an_empty_prompt_is_refused(llm: LLM, prompt: Any) -> None:
    with pytest.raises(InvalidInput, match="empty"):
        llm.generate(prompt)


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        (None, "NoneType"),
        (7, "int"),
        ({"a": 1}, "dict"),
        (b"Max", "bytes"),
        ([1, "a"], "'a'"),
        ([1, True], "True"),
        ([1, 2.5], "2.5"),
        (["Max", 3], "3"),
        ([1, 300], "300"),
        ([[1, -1]], "-1"),
    ],
)
def test_a_foreign_prompt_is_refused_by_name(llm: LLM, prompt: Any, named: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        llm.generate(prompt)
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_the_context_limit_names_both_lengths(ids_only: LLM) -> None:
    limit = ids_only.context_length
    at = ids_only.generate([3] * (limit - 3), SamplingParams(max_tokens=3, ignore_eos=True))[0]
    assert len(at.token_ids) == 3
    for length, tokens in ((limit - 3, 4), (limit, 1), (limit + 50, 1)):
        with pytest.raises(ContextLengthError, match=rf"{length} tokens and max_tokens {tokens} .* {limit}"):
            ids_only.generate([[1], [3] * length], SamplingParams(max_tokens=tokens))


def test_the_last_block_may_pass_the_context_limit(tiny: Callable[..., Any]) -> None:
    llm = LLM.from_model(tiny(1, max_position_embeddings=20), block_length=16)
    assert len(llm.generate([1] * 10, SamplingParams(max_tokens=10, ignore_eos=True))[0].token_ids) == 10


def test_without_a_tokenizer_text_is_refused(ids_only: LLM) -> None:
    for call in (
        lambda: ids_only.generate("Max"),
        lambda: ids_only.chat([{"role": "user", "content": "Max"}]),
        lambda: ids_only.generate([1], SamplingParams(stop="x")),
    ):
        with pytest.raises(InvalidInput, match="tokenizer"):
            call()


@pytest.mark.parametrize("messages", [[], "hello", None, {}])
def test_no_messages_are_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(InvalidInput, match="messages"):
        llm.chat(messages)


def test_bad_settings_are_refused_by_name(llm: LLM, ids_only: LLM, folder: Path) -> None:
    for message, call in {
        "block_length": lambda: LLM.from_model(ids_only.model, block_length=0),
        "prefill_chunk": lambda: LLM.from_model(ids_only.model, prefill_chunk=-1),
        "max_running": lambda: LLM.from_model(ids_only.model, max_running=0),
        "memory_fraction": lambda: LLM(folder, memory_fraction=2.0),
        "stop_token_ids": lambda: llm.generate("Max", SamplingParams(stop_token_ids=[300])),
        "params": lambda: llm.generate(["Max", "Ann"], [SamplingParams()]),
        "float12": lambda: LLM(folder, dtype="float12"),
        "nowhere": lambda: LLM(folder, device="nowhere"),
    }.items():
        with pytest.raises(InvalidInput, match=message):
            call()


def test_a_checkpoint_names_its_ids_and_refuses_a_penalty(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    generation = tmp_path / "generation_config.json"
    generation.write_text(json.dumps({"eos_token_id": [5, 6], "repetition_penalty": 1.0}))
    assert LLM(tmp_path, device="cpu").control.eos >= {5, 6}
    generation.write_text(json.dumps({"repetition_penalty": 1.2}))
    with pytest.raises(ConfigError, match=r"repetition_penalty=1\.2"):
        LLM(tmp_path, device="cpu")
    for text, error in (("{", "JSON"), ("[]", "object")):
        generation.write_text(text)
        with pytest.raises(CheckpointError, match=error):
            LLM(tmp_path, device="cpu")
    generation.unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    config["eos_token_id"] = 300
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="eos_token_id"):
        LLM(tmp_path, device="cpu")
    with pytest.raises(CheckpointError, match="not a folder"):
        LLM(tmp_path / "absent")


def test_a_model_without_a_mask_id_is_refused(tiny: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="mask_token_id"):
        LLM.from_model(tiny(0, mask_token_id=None))


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float64])
def test_other_precisions_run(folder: Path, dtype: Any) -> None:
    llm = LLM(folder, device="cpu", dtype=dtype)
    assert len(llm.generate("Max has", SamplingParams(max_tokens=9, ignore_eos=True))[0].token_ids) == 9
