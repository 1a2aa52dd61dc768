"""The chat of the playground in a browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect
from tests.server.web.fakes import FakeServer

from redraft.cli.main import run
from redraft.cli.trace import read_trace

ANSWER = "Max has 5 apples."
LONG = "One two three. " * 8


def send(page: Page, text: str = "How many?") -> None:
    page.fill("#message", text)
    page.press("#message", "Enter")


def ended(page: Page) -> None:
    expect(page.locator("#go")).to_have_text("Send")


def figure(page: Page, name: str) -> str | None:
    return page.locator(f"#turns .{name} dd").last.text_content()


def test_a_message_is_answered(page: Page, server: FakeServer) -> None:
    send(page)
    ended(page)
    expect(page.locator("#turns .asked")).to_have_text("How many?")
    expect(page.locator("#turns .frozen")).to_have_text(ANSWER)
    expect(page.locator("#turns .cells")).to_be_empty()
    expect(page.locator("#message")).to_have_value("")
    expect(page.locator("#message")).to_be_focused()
    assert (figure(page, "tpf"), figure(page, "tps"), figure(page, "edits")) == ("2.25", "45", "1")
    assert (figure(page, "forwards"), figure(page, "tokens")) == ("4", "9")
    assert server.seen == [
        {
            "model": "redraft-fake",
            "messages": [{"role": "user", "content": "How many?"}],
            "redraft": {"events": True, "mode": "quality"},
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_a_message_goes_with_those_before_it_and_the_system_prompt(page: Page, server: FakeServer) -> None:
    page.fill("#system", "Be brief.")
    send(page)
    ended(page)
    send(page, "And now?")
    ended(page)
    assert [(message["role"], message["content"]) for message in server.seen[1]["messages"]] == [
        ("system", "Be brief."),
        ("user", "How many?"),
        ("assistant", ANSWER),
        ("user", "And now?"),
    ]


def test_every_step_shows(page: Page, server: FakeServer) -> None:
    server.hold()
    send(page)
    expect(page.locator("#go")).to_have_text("Stop")
    cells = page.locator("#turns .cell")
    server.step()  # the role
    server.step()
    expect(page.locator("#turns .cell.masked")).to_have_count(9)
    expect(page.locator("#turns .cell.drafted")).to_have_count(21)
    expect(cells).to_have_count(30)  # the prompt's two tokens are not shown
    expect(cells.first).to_have_text("Wrong")
    expect(page.locator("#turns .strip .block.open i.masked")).to_have_count(9)
    shades = cells.evaluate_all("cells => cells.map((cell) => cell.style.getPropertyValue('--sure'))")
    assert len(set(shades)) > 3
    server.step()
    expect(page.locator("#turns .cell.masked")).to_have_count(0)
    expect(page.locator("#turns .cell.drafted")).to_have_count(9)
    server.step()
    edited = page.locator("#turns .cell.edited")
    expect(edited).to_have_text("WrongMax")
    expect(edited.locator("s")).to_have_text("Wrong")
    expect(page.locator("#turns .frozen")).to_be_empty()
    expect(cells.last).to_have_text("∎")
    server.step()
    expect(cells).to_have_count(0)
    expect(page.locator("#turns .frozen")).to_have_text(ANSWER)
    expect(page.locator("#turns .strip i.edited")).to_have_count(1)
    server.release()
    ended(page)


def test_only_frozen_text_is_read_out(page: Page, server: FakeServer) -> None:
    server.hold()
    send(page)
    server.step(4)
    expect(page.locator("#turns .cell.edited")).to_be_visible()
    expect(page.locator("#spoken")).to_be_empty()
    for part in (".cells", ".strip"):
        expect(page.locator(f"#turns {part}")).to_have_attribute("aria-hidden", "true")
    server.release()
    expect(page.locator("#spoken")).to_have_text(ANSWER)
    assert page.locator("#spoken").get_attribute("aria-live") == "polite"
    ended(page)


@pytest.mark.parametrize("way", ["button", "Escape"])
def test_an_answer_can_be_stopped(way: str, page: Page, server: FakeServer) -> None:
    server.answer = LONG
    server.hold()
    send(page)
    server.step(7)  # one block whole, and the first step of the next
    expect(page.locator("#turns .cell").first).to_be_visible()
    frozen = page.locator("#turns .frozen").text_content()
    if way == "button":
        page.click("#go")
    else:
        page.keyboard.press("Escape")
    ended(page)
    expect(page.locator("#turns .note")).to_have_text("Stopped.")
    server.pause = 0.05  # a server sees that nobody reads when it has written twice
    server.release()
    assert server.gone.wait(60)
    send(page, "Go on.")
    ended(page)
    assert frozen and LONG.startswith(frozen)
    assert [message["content"] for message in server.seen[1]["messages"]] == ["How many?", frozen, "Go on."]


def test_the_steps_of_an_answer_can_be_gone_through(page: Page) -> None:
    send(page)
    ended(page)
    steps = page.get_by_role("slider", name="Step")
    expect(steps).to_have_attribute("aria-valuetext", "step 4 of 4, block 0, 0.20 seconds")
    steps.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#turns .cell.edited s")).to_have_text("Wrong")
    expect(page.locator("#turns .frozen")).to_be_empty()
    page.keyboard.press("Home")
    expect(page.locator("#turns .cell.masked")).to_have_count(9)
    assert (figure(page, "forwards"), figure(page, "edits")) == ("1", "0")
    page.keyboard.press("End")
    expect(page.locator("#turns .frozen")).to_have_text(ANSWER)
    assert figure(page, "forwards") == "4"


def test_an_answer_can_be_replayed(page: Page) -> None:
    send(page)
    ended(page)
    page.get_by_label("Speed of the replay").select_option("0.1")
    page.get_by_role("button", name="Replay").click()
    expect(page.locator("#turns .cell.masked")).to_have_count(9)
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(page.locator("#turns .cell.edited")).to_have_count(1)
    expect(page.locator("#turns .frozen")).to_have_text(ANSWER)
    expect(page.get_by_role("button", name="Replay")).to_be_visible()


def test_the_trace_is_one_that_redraft_replays(page: Page, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    send(page)
    ended(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Trace").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    header, frames = read_trace(path)
    assert (header.model, header.prompt, header.special_ids) == ("redraft-fake", "How many?", (0, 1))
    assert header.params == {"mode": "quality"}
    assert len(frames) == 4 and frames[2].edited == {2: "Wrong"}
    finish = frames[-1].finish
    assert finish is not None
    assert (finish.reason, finish.tokens, finish.forwards, finish.edits, finish.seconds) == ("stop", 9, 4, 1, 0.2)
    assert run(["replay", str(path)]) == 0
    assert capsys.readouterr().out == f"{ANSWER}\n"


def test_text_of_a_model_is_never_markup(page: Page, server: FakeServer) -> None:
    server.answer = '<img src=x onerror="document.title=1"><b>bold</b>'
    send(page, "<i>me</i>")
    ended(page)
    expect(page.locator("#turns .frozen")).to_have_text(server.answer)
    expect(page.locator("#turns .asked")).to_have_text("<i>me</i>")
    assert page.locator("#chat :is(img, b, i i)").count() == 0
    assert page.title() == "Redraft"


def test_chats_are_remembered(page: Page, server: FakeServer) -> None:
    send(page)
    ended(page)
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#empty")).to_be_visible()
    send(page, "Another one")
    ended(page)
    assert [len(body["messages"]) for body in server.seen] == [1, 1]
    page.reload()
    chats = page.locator("#chats li")
    expect(chats).to_have_count(2)
    chats.get_by_role("button", name="How many?", exact=True).click()
    expect(page.locator("#turns .frozen")).to_have_text(ANSWER)
    assert figure(page, "tpf") == "2.25"
    send(page, "And now?")
    ended(page)
    assert len(server.seen[-1]["messages"]) == 3
    page.get_by_role("button", name="Delete the chat: How many?").click()
    expect(chats).to_have_count(1)
    expect(page.locator("#empty")).to_be_visible()
    stored = json.loads(page.evaluate("localStorage.getItem('redraft.chats')"))
    assert [chat["turns"][0]["asked"] for chat in stored] == ["Another one"]


def test_a_browser_that_keeps_nothing_is_no_error(context: BrowserContext, page: Page) -> None:
    context.add_init_script("for (const name of ['localStorage', 'sessionStorage']) delete window[name];")
    context.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new Error('forbidden') } });"
    )
    page.reload()
    send(page)
    ended(page)
    expect(page.locator("#turns .frozen")).to_have_text(ANSWER)


def test_an_example_is_asked_with_a_click(page: Page, server: FakeServer) -> None:
    example = page.locator("#examples button").first
    text = example.text_content()
    example.click()
    ended(page)
    assert server.seen[0]["messages"][0]["content"] == text


def test_shift_enter_breaks_the_line_and_nothing_is_not_sent(page: Page, server: FakeServer) -> None:
    page.press("#message", "Enter")
    page.click("#go")
    page.locator("#message").press_sequentially("a")
    page.press("#message", "Shift+Enter")
    page.locator("#message").press_sequentially("b")
    page.press("#message", "Enter")
    ended(page)
    assert [body["messages"][0]["content"] for body in server.seen] == ["a\nb"]
