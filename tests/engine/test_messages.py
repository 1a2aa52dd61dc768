"""What crosses between the engine's process and its caller arrives as it was, or is refused."""

from __future__ import annotations

import math
import struct
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft import errors
from redraft.engine import messages
from redraft.engine.messages import EngineSpec, Failed, Outputs, Problem, Start, Submit, TooLarge, pack
from redraft.engine.request import EngineSettings
from redraft.errors import EngineError, InvalidInput, NumericalError, RedraftError
from redraft.types import CanvasEvent, Choice, Completion, SamplingParams, Stats, TokenLogprob

NUMBERS = st.floats(allow_nan=False, width=64)
IDS = st.integers(0, 2**31)
PARAMS = st.builds(
    SamplingParams,
    mode=st.sampled_from(["speed", "quality", "draft-only"]),
    threshold=st.none() | st.floats(0, math.inf, allow_infinity=False),
    edit_threshold=st.none() | st.just("off") | st.floats(0, 1),
    max_post_steps=st.integers(0, 99),
    temperature=st.floats(0, 100),
    top_p=st.floats(0.01, 1),
    seed=st.none() | st.integers(0, 2**63 - 1),
    max_tokens=st.integers(1, 2**40),
    stop=st.lists(st.text(min_size=1)) | st.text(min_size=1),
    stop_token_ids=st.lists(IDS),
    logit_bias=st.none() | st.dictionaries(IDS, st.floats(-100, 100)),
    presence_penalty=st.floats(-2, 2),
    n=st.integers(1, 9),
    logprobs=st.none() | st.integers(0, 20),
)
LOGPROBS = st.builds(TokenLogprob, IDS, NUMBERS, st.lists(st.tuples(IDS, NUMBERS)).map(tuple))
CHOICES = st.builds(
    Choice,
    st.text(),
    st.lists(IDS),
    st.sampled_from(["stop", "length", "abort"]),
    st.builds(Stats, forwards=IDS, seconds=NUMBERS),
    st.none() | st.lists(LOGPROBS),
)
TUPLES = st.lists(IDS).map(tuple)
EVENTS = st.builds(
    CanvasEvent,
    IDS,
    IDS,
    IDS,
    IDS,
    tokens=TUPLES,
    confidence=st.lists(NUMBERS).map(tuple),
    masked=TUPLES,
    edited=st.dictionaries(IDS, IDS),
    prompt=TUPLES,
    frozen=st.booleans(),
    text_delta=st.text(),
    completion=st.none() | st.builds(Completion, st.lists(IDS), st.lists(CHOICES, min_size=1, max_size=2)),
)


def body(frame: bytes) -> bytes:
    assert messages.body_length(frame) == len(frame) - messages.HEADER
    return frame[messages.HEADER :]


@given(PARAMS, TUPLES, st.none() | NUMBERS, st.booleans())
def test_a_request_arrives_as_it_was(
    params: SamplingParams, prompt: tuple[int, ...], deadline: float, on: bool
) -> None:
    submit = Submit(3, prompt, params, deadline, on)
    assert messages.decode_to_worker(body(pack(submit))) == submit


@given(st.lists(EVENTS, max_size=3))
def test_events_arrive_as_they_were(events: list[CanvasEvent]) -> None:
    outputs = Outputs(events, [Failed(1, Problem("EngineError", "x"))])
    assert messages.decode_from_worker(body(pack(outputs))) == outputs


def test_a_spec_arrives_as_it_was() -> None:
    start = Start(EngineSpec(model="here", dtype="float64", settings=EngineSettings(pages=7, queue_limit=0)))
    assert messages.decode_to_worker(body(pack(start))) == start


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"model": 3}, "model"), ({"device": b"cpu"}, "device"), ({"block_length": 0}, "block_length"),
     ({"settings": {}}, "settings")],
)  # fmt: skip
def test_a_wrong_spec_is_refused_by_name(changes: dict, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        EngineSpec(**changes)


def kinds(root: type[RedraftError] = RedraftError) -> list[type[RedraftError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in kinds(child))]


def test_every_error_comes_out_as_its_own_kind() -> None:
    public = [kind for kind in kinds() if kind.__module__ == errors.__name__]
    assert len(public) > 8
    for kind in public:
        out = Problem.of(kind("what is wrong")).error()
        assert type(out) is kind
        assert str(out) == "what is wrong"


def test_other_errors_come_out_as_the_nearest_kind() -> None:
    class Private(NumericalError):
        pass

    assert type(Problem.of(Private("nan")).error()) is NumericalError
    assert repr(Problem.of(KeyError("a")).error()) == repr(EngineError("KeyError: 'a'"))
    assert type(Problem("print", "x").error()) is type(Problem("__name__", "x").error()) is EngineError


def test_a_message_of_an_error_always_fits_and_is_text() -> None:
    problem = Problem.of(InvalidInput("\udc80" + "a" * 10**6))
    assert problem.message.startswith("?a")
    assert len(pack(Outputs(failures=[Failed(0, problem)]))) < 2 * messages.MAX_TEXT


def test_what_is_too_large_is_neither_sent_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_FRAME", 100)
    with pytest.raises(TooLarge, match="100"):
        pack(Submit(0, tuple(range(200)), SamplingParams(), None, True))
    with pytest.raises(EngineError, match="at most 100 bytes, got 101"):
        messages.body_length(struct.pack(">I", 101))


@pytest.mark.parametrize(
    "foreign", [b"", b"\xc1", msgspec.msgpack.encode({"type": "Run"}), msgspec.msgpack.encode({"type": "Abort"}),
                msgspec.msgpack.encode({"type": "Abort", "number": "1"})],
)  # fmt: skip
def test_foreign_bytes_are_refused(foreign: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        messages.decode_to_worker(foreign)


def test_the_callers_side_needs_no_torch() -> None:
    code = "import sys, redraft.engine.async_engine, redraft.engine.worker; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
