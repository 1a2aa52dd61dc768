"""The playground and `redraft chat` with the real server: over a parrot, and once over the embedded model."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect
from rich.console import Console
from tests.server.fakes import Live, live
from tests.server.web.test_chat import ended, send

from redraft.cli.chat import converse
from redraft.cli.conversation import Conversation
from redraft.cli.remote import RemoteSession
from redraft.cli.trace import read_trace
from redraft.errors import RemoteError

QUESTION = "There are 23 lemons in the box of Uma. Then Uma throws 12 away. How many lemons does Uma have?"
SAID = "Say <b>this</b>: " + "one two three 界 " * 8


@pytest.fixture(scope="module")
def parrot() -> Iterator[Live]:
    with live() as running:
        yield running


@contextmanager
def served() -> Iterator[str]:
    """The address of `redraft serve` with the embedded model, in a process of its own."""
    command = [sys.executable, "-m", "redraft", "serve", "--port", "0", "--drain-seconds", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(r"listening on (http://127\.0\.0\.1:\d+)", line):
                    break
            else:
                pytest.fail("the server has ended")
            yield found[1]
        finally:
            process.terminate()
            process.communicate(timeout=120)


def test_a_conversation_on_the_page(parrot: Live, context: BrowserContext) -> None:
    complaints: list[str] = []
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto(parrot.url)
    send(page, SAID)
    ended(page)
    expect(page.locator("#turns .frozen")).to_have_text(SAID.strip())
    expect(page.locator("#turns .note")).to_be_hidden()
    expect(page.locator("#turns .edits dd")).not_to_have_text("0")
    assert complaints == []


def test_a_stop_on_the_page_ends_the_work(parrot: Live, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(parrot.url)
    before = len(parrot.engine.aborted)
    parrot.engine.gate.clear()
    send(page, "!forever")
    expect(page.locator("#go")).to_have_text("Stop")
    page.keyboard.press("Escape")
    ended(page)
    parrot.engine.gate.set()
    send(page, "And now this.")
    ended(page)
    expect(page.locator("#turns .frozen").last).to_have_text("And now this.")
    assert len(parrot.engine.aborted) == before + 1


def test_a_conversation_in_the_terminal(parrot: Live, tmp_path: Path) -> None:
    backend = RemoteSession.connect(parrot.url)
    conversation = Conversation(backend.model, backend.special_ids)
    trace = tmp_path / "t.jsonl"
    console = Console(file=io.StringIO(), width=1000)
    lines = ["/mode speed", "/set max_tokens 200", "first", SAID.strip(), f"/trace {trace}"]
    converse(backend, conversation, lines, console, forgiving=False)
    assert isinstance(console.file, io.StringIO)
    assert f"first\n{SAID.strip()}\n" in console.file.getvalue()
    params = parrot.engine.submitted[-1].params
    assert (params.mode, params.max_tokens) == ("speed", 200)
    header, frames = read_trace(trace)
    assert header.special_ids == tuple(sorted(backend.special_ids)) and header.special_ids
    finish = frames[-1].finish
    assert finish is not None
    assert (finish.reason, finish.forwards) == ("stop", len(frames))


def test_what_the_server_refuses_is_told_in_the_terminal(parrot: Live) -> None:
    backend = RemoteSession.connect(parrot.url)
    with pytest.raises(RemoteError, match=r"400: .*stop_token_ids"):
        list(backend.reply([{"role": "user", "content": "Hi"}], {"stop_token_ids": [5]}))


def test_the_embedded_model_is_seen_at_work(context: BrowserContext) -> None:
    page = context.new_page()
    with served() as url:
        page.goto(url)
        expect(page.locator("#model")).to_have_text("redraft-nano", timeout=300_000)
        page.fill("#max-tokens", "64")
        send(page, QUESTION)
        ended(page)
        expect(page.locator("#turns .frozen")).not_to_be_empty()
        page.get_by_role("slider", name="Step").press("Home")
        expect(page.locator("#turns .cell").first).to_be_visible()
        page.click("#tab-race")
        send(page, QUESTION)
        ended(page)
        for lane in range(2):
            expect(page.locator("#lanes .frozen").nth(lane)).not_to_be_empty()
            expect(page.locator("#lanes .tpf dd").nth(lane)).not_to_have_text("0.00")
