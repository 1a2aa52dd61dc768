"""The engine in its own process, from the caller's side: streams, ends of every kind, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.fake_engine import BUG, CRASH, LAWLESS, REFUSED, SICK, SLEEP, FakeEngine, over_process

from redraft.engine.async_engine import STEPS_KEPT, AsyncEngine, EngineSettings, EngineSpec, Mailbox
from redraft.engine.llm import LLM
from redraft.engine.worker import Channel, Disconnected, run
from redraft.errors import CheckpointError, EngineError, InvalidInput, NumericalError, QueueFull, RedraftError
from redraft.model.checkpoint import save_model
from redraft.types import CanvasEvent, Completion, SamplingParams

ENDLESS = (10**6, 2)


class InThread:
    """The engine's process as a thread of this one, which is there at once."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.thread = threading.Thread(target=self.loop)
        self.thread.start()

    def loop(self) -> None:
        with self.connection, suppress(Disconnected, RedraftError, ZeroDivisionError):
            run(Channel(self.connection), FakeEngine)

    def poll(self) -> int | None:
        return None if self.thread.is_alive() else 0

    def kill(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


async def over_thread(spec: EngineSpec = EngineSpec()) -> AsyncEngine:
    ours, theirs = socket.socketpair()
    return await AsyncEngine.over(InThread(theirs), ours, spec)


def within(seconds: float, main: Callable[[], Awaitable[None]]) -> None:
    """Runs it, and then nothing must be left: no process, no thread, no open file."""
    before = left()

    async def limited() -> None:
        async with asyncio.timeout(seconds):
            await main()

    asyncio.run(limited())
    assert left() == before


def left() -> tuple[list[int], list[threading.Thread], int]:
    return [child.pid for child in psutil.Process().children()], threading.enumerate(), len(os.listdir("/proc/self/fd"))


def ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def process_of(engine: AsyncEngine) -> int:
    return (await engine.statistics()).waiting


async def first(engine: AsyncEngine, *prompt: int, name: str | None = None) -> Any:
    """A stream that has begun."""
    stream = engine.stream(prompt, request_id=name)
    await anext(stream)
    return stream


async def rest(stream: Any) -> list[CanvasEvent]:
    return [event async for event in stream]


def test_a_stream_has_every_event_and_ends_with_the_completion() -> None:
    params = SamplingParams(mode="speed", stop=("\n",), logit_bias={3: -1.5}, seed=2**62, n=2)

    async def main() -> None:
        async with await over_thread() as engine:
            assert (engine.alive, engine.error, engine.block_length, engine.context_length) == (True, None, 4, 128)
            events = [event async for event in engine.stream((3, 2), params, deadline=1.5)]
            assert [(event.block, event.step, event.frozen) for event in events] == [
                (0, 0, False), (0, 1, True), (1, 0, False), (1, 1, True), (2, 0, False), (2, 1, True)
            ]  # fmt: skip
            assert [event.completion for event in events[:-1]] == [None] * 5
            assert events[0].edited == {3: 0}
            completion = events[-1].completion
            assert isinstance(completion, Completion)
            assert completion.text == repr((params, 1.5))
            assert completion == await engine.generate([3, 2], params, deadline=1.5)
            quiet = [event.frozen async for event in engine.stream([3, 2], events=False)]
            assert quiet == [True] * 3
            await engine.check()

    within(60, main)


def test_many_streams_at_once_over_two_engines() -> None:
    async def main() -> None:
        async with await over_process() as one, await over_process() as other:
            assert await process_of(one) != await process_of(other)
            calls = [engine.generate((1 + i % 7, 1 + i % 5)) for i in range(64) for engine in (one, other)]
            answers = await asyncio.gather(*calls)
            assert [a.prompt_token_ids for a in answers] == [
                [1 + i % 7, 1 + i % 5] for i in range(64) for _ in (one, other)
            ]

    within(60, main)


def test_large_messages_cross_both_ways() -> None:
    async def main() -> None:
        prompt = list(range(10**6, 10**6 + 300_000))
        async with await over_thread() as engine:
            answers = await asyncio.gather(*(engine.generate(prompt) for _ in range(3)))
            assert all(answer.prompt_token_ids == prompt for answer in answers)

    within(60, main)


def test_a_slow_reader_misses_steps_only_and_holds_up_nobody() -> None:
    async def main() -> None:
        async with await over_thread() as engine:
            slow = engine.stream((50, 40))
            events = [await anext(slow)]
            await engine.generate((60, 40))
            events += [event async for event in slow]
            frozen = [event for event in events if event.frozen]
            assert [event.block for event in frozen] == list(range(50))
            assert "".join(event.text_delta for event in frozen[:-1]) == "".join(f"{block} " for block in range(49))
            assert STEPS_KEPT <= len(events) - len(frozen) < 1000
            assert [(event.block, event.step) for event in events] == sorted((e.block, e.step) for e in events)
            assert events[-1].completion

    within(60, main)


@given(st.lists(st.sampled_from(["step", "text", "frozen", "read"]), max_size=300))
def test_a_mailbox_keeps_order_text_and_the_newest_steps(operations: list[str]) -> None:
    async def main() -> None:
        box, put, read = Mailbox(), [], []
        for operation in [*operations, "last"]:
            if operation == "read":
                if len(box) > 0:
                    read.append(await box.get())
                continue
            completion = Completion([], []) if operation == "last" else None
            text = "a" if operation == "text" else ""
            event = CanvasEvent(
                0, 0, len(put), 0, (), (), frozen=operation == "frozen", text_delta=text, completion=completion
            )
            put.append(event)
            box.put(event)
            steps = sum(not (e.frozen or e.text_delta or e.completion) for e in put if e not in read)
            assert len(box) <= len(put) - len(read)
            assert len(box) - (len([e for e in put if e not in read]) - steps) <= STEPS_KEPT
        while len(box):
            read.append(await box.get())
        assert [e.step for e in read] == sorted(e.step for e in read)
        missed = [e for e in put if e not in read]
        assert not [e for e in missed if e.frozen or e.text_delta or e.completion]
        if len(operations) <= STEPS_KEPT:
            assert not missed
        assert box.over

    asyncio.run(main())


def test_who_leaves_a_stream_ends_its_request_and_no_other() -> None:
    async def main() -> None:
        async with await over_thread() as engine:
            other = asyncio.create_task(engine.generate((200, 3)))
            closed = await first(engine, *ENDLESS, name="a")
            await closed.aclose()
            cancelled = asyncio.create_task(engine.generate(ENDLESS, request_id="a"))
            await asyncio.sleep(0.01)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            async with aclosing(engine.stream(ENDLESS, request_id="a")) as stream:
                async for _ in stream:
                    break
            assert (await other).prompt_token_ids == [200, 3]
            assert (await engine.statistics()).running == 0

    within(60, main)


def test_abort_ends_the_stream_with_a_completion() -> None:
    async def main() -> None:
        async with await over_thread() as engine:
            task = asyncio.create_task(engine.generate(ENDLESS, request_id="a"))
            await asyncio.sleep(0.01)
            with pytest.raises(InvalidInput, match="'a' is in use"):
                await engine.generate((1, 1), request_id="a")
            await engine.abort("nobody")
            await engine.abort("a")
            assert (await task).finish_reason == "abort"
            await engine.abort("a")
            assert (await engine.generate((1, 1), request_id="a")).finish_reason == "length"

    within(60, main)


def test_errors_come_out_as_themselves_and_are_of_one_request() -> None:
    async def main() -> None:
        async with await over_thread() as engine:
            other = await first(engine, *ENDLESS)
            expected: list[tuple[tuple[Any, ...], type[RedraftError], str]] = [
                ((REFUSED,), QueueFull, "3 answers wait"),
                ((SICK,), NumericalError, "logits are not finite"),
                ((BUG,), EngineError, "KeyError: 'edits'"),
                (("x",), InvalidInput, "an item 'x'"),
                ((2**70,), InvalidInput, "can't be sent"),
                (((1,), "quality"), InvalidInput, "params must be SamplingParams"),
                (((1,), SamplingParams(stop="\udc80")), InvalidInput, "can't be sent"),
                (((1,), SamplingParams(max_tokens=2**70)), InvalidInput, "can't be sent"),
                (((1,), None, "a", float("nan")), InvalidInput, "deadline"),
            ]
            for arguments, kind, message in expected:
                given_: Any = arguments if isinstance(arguments[0], tuple) else (arguments,)
                with pytest.raises(kind, match=message) as caught:
                    await engine.generate(*given_)
                assert type(caught.value) is kind
            await other.__anext__()
            lawless = await first(engine, LAWLESS)
            with pytest.raises(EngineError, match="a page is lost, idle=False"):
                await engine.check()
            await lawless.aclose()
            await engine.check()

    within(60, main)


def test_a_killed_process_is_seen_by_everyone_within_a_second() -> None:
    async def main() -> None:
        async with await over_process() as engine:
            pid = await process_of(engine)
            streams = [await first(engine, *ENDLESS) for _ in range(20)]
            sleeper = asyncio.create_task(engine.generate((SLEEP,)))
            await asyncio.sleep(0.05)
            calls: list[Awaitable[Any]] = [sleeper, engine.statistics(), engine.check(), *map(rest, streams)]
            waiting = [asyncio.ensure_future(call) for call in calls]
            await asyncio.sleep(0.05)
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            errors = await asyncio.gather(*waiting, return_exceptions=True)
            assert time.monotonic() - killed < 1
            told = {(type(error), str(error)) for error in errors}
            assert told == {(EngineError, "the engine's process was killed by signal 9 (Killed)")}
            assert len(set(map(id, errors))) == len(errors)
            assert not engine.alive
            for call in (engine.generate((1, 1)), engine.statistics(), engine.check(), engine.abort("a")):
                with pytest.raises(EngineError, match="signal 9"):
                    await call

    within(60, main)


def test_a_step_that_raises_ends_everything_with_its_message() -> None:
    async def main() -> None:
        async with await over_thread() as engine:
            other = asyncio.create_task(engine.generate(ENDLESS))
            with pytest.raises(EngineError, match="ZeroDivisionError: the step failed"):
                await engine.generate((CRASH,))
            with pytest.raises(EngineError, match="ZeroDivisionError: the step failed"):
                await other
            assert "ZeroDivisionError" in str(engine.error)

    within(60, main)


@pytest.mark.parametrize(
    ("model", "kind", "message", "traceback"),
    [
        ("missing", CheckpointError, "^missing is not a folder$", False),
        ("broken", EngineError, "^ZeroDivisionError: a bug$", True),
    ],
)
def test_what_loading_raises_start_raises(
    model: str, kind: type[RedraftError], message: str, traceback: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        with pytest.raises(kind, match=message):
            await over_process(EngineSpec(model=model))

    within(60, main)
    assert ("Traceback" in capfd.readouterr().err) == traceback


def test_a_process_that_does_not_speak_the_language_is_an_error() -> None:
    async def main(code: str, message: str) -> None:
        with pytest.raises(EngineError, match=message):
            await over_process(command=(sys.executable, "-c", code))

    within(60, lambda: main("raise SystemExit(3)", "ended with exit code 3"))
    foreign = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).sendall(b'HTTP/1.1 200 OK')"
    within(60, lambda: main(foreign, "can't be read"))


def test_interrupts_are_not_for_the_process() -> None:
    async def main() -> None:
        async with await over_process() as engine:
            pid = await process_of(engine)
            assert os.getpgid(pid) != os.getpgid(0)
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(pid, number)
            assert (await engine.generate((2, 2))).finish_reason == "length"

    within(60, main)


def test_stop_in_the_middle_of_a_step() -> None:
    async def main() -> None:
        engine = await over_process()
        waiting = asyncio.create_task(engine.generate((SLEEP,)))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        await asyncio.gather(engine.stop(seconds=0.2), engine.stop(seconds=0.2))
        assert time.monotonic() - began < 5
        for call in (waiting, engine.generate((1, 1))):
            with pytest.raises(EngineError, match="the engine was stopped"):
                await call
        await engine.stop()

    within(60, main)


def test_a_start_that_is_cancelled_and_an_engine_that_is_forgotten_leave_nothing() -> None:
    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await over_process()

    async def forgotten() -> None:
        engine = await over_process()
        asyncio.create_task(engine.generate(ENDLESS)).add_done_callback(lambda task: task.cancelled())
        await asyncio.sleep(0.02)

    within(60, cancelled)
    within(60, forgotten)


CALLER = """
import asyncio, sys
from tests.engine.fake_engine import over_process

async def main():
    engine = await over_process()
    print((await engine.statistics()).waiting, flush=True)
    task = asyncio.create_task(engine.generate([int(sys.argv[1])]))
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_the_process_dies_with_its_caller_even_in_a_long_step() -> None:
    command = [sys.executable, "-c", CALLER, str(SLEEP)]
    caller = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    with caller:
        assert caller.stdout
        pid = int(caller.stdout.readline())
        time.sleep(0.2)
        assert not ended(pid)
        caller.kill()
    deadline = time.monotonic() + 5
    while not ended(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_real_engine_gives_the_tokens_of_the_slow_path(tmp_path: Path, tiny: Callable[..., Any]) -> None:
    model = tiny(0, block_length=8)
    save_model(model, tmp_path)
    slow = LLM.from_model(model, block_length=8, use_cache=False)
    prompts = [[3, 5, 7 + i % 3] * (i + 1) for i in range(8)]
    params = [SamplingParams(max_tokens=20, mode=("speed", "quality")[i % 2]) for i in range(8)]

    async def main() -> None:
        spec = EngineSpec(model=str(tmp_path), device="cpu", settings=EngineSettings(pages=40, max_running=5))
        async with await AsyncEngine.start(spec) as engine:
            assert (engine.block_length, engine.context_length) == (8, 512)
            answers = await asyncio.gather(*map(engine.generate, prompts, params))
            assert [a.token_ids for a in answers] == [a.token_ids for a in slow.generate(prompts, params)]
            with pytest.raises(InvalidInput, match="the token id 32"):
                await engine.generate([32])
            stream = engine.stream(prompts[0], SamplingParams(max_tokens=400, ignore_eos=True))
            await anext(stream)
            await stream.aclose()
            statistics = await engine.statistics()
            assert (statistics.finished, statistics.running, statistics.pages.held) == (8, 0, 0)
            await engine.check()
            long = SamplingParams(max_tokens=400, threshold=2, edit_threshold="off", ignore_eos=True)
            waiting = [asyncio.create_task(engine.generate([i + 1], long)) for i in range(8)]
            while (await engine.statistics()).running < 5:
                pass
            [process] = psutil.Process().children()
            killed = time.monotonic()
            process.kill()
            errors = await asyncio.gather(*waiting, return_exceptions=True)
            assert time.monotonic() - killed < 1
            assert {str(error) for error in errors} == {"the engine's process was killed by signal 9 (Killed)"}

    within(400, main)
