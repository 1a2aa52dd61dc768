"""What is around the chat: settings, errors, the race, themes, keys, narrow screens, and when things are drawn."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from tests.server.web.fakes import FakeServer
from tests.server.web.test_chat import ANSWER, LONG, ended, send

from redraft.decoding.modes import MODES


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_brings_its_thresholds(mode: str, page: Page, server: FakeServer) -> None:
    page.locator(f"input[value={mode}]").check(force=True)
    edit = MODES[mode].edit_threshold
    assert float(page.input_value("#threshold")) == MODES[mode].threshold
    assert page.locator("#edit-off").is_checked() == (edit is None)
    assert edit is None or float(page.input_value("#edit")) == edit
    send(page)
    ended(page)
    assert server.seen[0]["redraft"] == {"events": True, "mode": mode}
    page.reload()
    expect(page.locator(f"input[value={mode}]")).to_be_checked()


def test_a_mode_of_the_server_can_be_chosen(page: Page, server: FakeServer) -> None:
    server.modes = {"code": {"threshold": 0.4, "edit_threshold": 0.0}, "<b>": {"edit_threshold": "off"}}
    page.reload()
    expect(page.locator("#modes label")).to_have_count(5)
    expect(page.locator("#modes b")).to_have_count(0)
    page.locator("input[value=code]").check(force=True)
    expect(page.locator("#threshold-value")).to_have_text("0.40")
    send(page)
    ended(page)
    assert server.seen[0]["redraft"] == {"events": True, "mode": "code"}
    page.reload()
    expect(page.locator("input[value=code]")).to_be_checked()
    server.modes = {}
    page.reload()
    expect(page.locator("input[value=quality]")).to_be_checked()


def test_settings_that_were_chosen_are_sent(page: Page, server: FakeServer) -> None:
    page.fill("#threshold", "0.6")
    expect(page.locator("#threshold-value")).to_have_text("0.60")
    page.check("#edit-off")
    expect(page.locator("#edit-value")).to_have_text("never")
    for name, value in [("max-tokens", "40"), ("temperature", "0.5"), ("seed", "7"), ("mbe", "1")]:
        page.fill(f"#{name}", value)
    send(page)
    ended(page)
    body = server.seen[0]
    own = {"events": True, "mode": "quality", "threshold": 0.6, "edit_threshold": "off", "mbe_blocks": 1}
    assert body["redraft"] == own
    assert (body["max_tokens"], body["temperature"], body["seed"]) == (40, 0.5, 7)
    page.reload()
    expect(page.locator("#seed")).to_have_value("7")
    expect(page.locator("#threshold-value")).to_have_text("0.60")
    page.get_by_role("button", name="Back to the mode's thresholds").click()
    expect(page.locator("#reset")).to_be_hidden()
    send(page)
    ended(page)
    assert server.seen[1]["redraft"] == {"events": True, "mode": "quality", "mbe_blocks": 1}


def test_a_number_that_is_none_is_not_sent(page: Page, server: FakeServer) -> None:
    page.fill("#max-tokens", "0")
    send(page)
    expect(page.locator("#max-tokens")).to_be_focused()
    assert server.seen == []


def test_a_key_is_asked_for_and_forgotten_with_the_tab(
    page: Page, server: FakeServer, complaints: list[str], context: BrowserContext
) -> None:
    expect(page.locator("#key-row")).to_be_hidden()
    server.key = "secret"
    send(page)
    expect(page.locator("#turns .note")).to_have_text("This server wants an API key.")
    expect(page.locator("#key")).to_be_focused()
    page.keyboard.type("secret")
    page.keyboard.press("Tab")
    send(page)
    expect(page.locator("#turns .frozen").last).to_have_text(ANSWER)
    assert "secret" not in page.evaluate("JSON.stringify(localStorage)")
    page.reload()
    expect(page.locator("#model")).to_have_text("redraft-fake")
    other = context.new_page()
    other.goto(server.url)
    expect(other.locator("#model")).to_have_text("This server wants an API key.")
    expect(other.locator("#key")).to_have_value("")
    complaints.clear()  # a browser reports every 401


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        ((400, "top_k must be an integer of at least 0"), "top_k must be an integer of at least 0"),
        ((429, "The queue is full."), "The queue is full; try again in 7 s"),
    ],
)
def test_a_refusal_is_told(
    refusal: tuple[int, str], said: str, page: Page, server: FakeServer, complaints: list[str]
) -> None:
    server.refusal = refusal
    send(page)
    expect(page.get_by_role("alert")).to_have_text(said)
    ended(page)
    server.refusal = None
    send(page, "Again")
    ended(page)
    expect(page.locator("#turns .frozen").last).to_have_text(ANSWER)
    assert len(server.seen[1]["messages"]) == 1
    complaints.clear()


def test_a_model_that_loads_is_waited_for(page: Page, server: FakeServer, complaints: list[str]) -> None:
    server.loading = True
    page.reload()
    expect(page.locator("#model")).to_have_text("redraft-fake: the model is being loaded")
    server.loading = False
    expect(page.locator("#model")).to_have_text("redraft-fake")
    complaints.clear()


def test_a_stream_that_breaks_off_is_told(page: Page, server: FakeServer, complaints: list[str]) -> None:
    server.cut = True
    send(page)
    expect(page.get_by_role("alert")).to_have_text("The server broke off in the middle of the answer.")
    ended(page)
    complaints.clear()


def test_a_server_that_is_gone_is_told(page: Page, server: FakeServer, complaints: list[str]) -> None:
    page.route("**/v1/**", lambda route: route.abort())
    send(page)
    expect(page.get_by_role("alert")).to_have_text("The server can't be reached.")
    complaints.clear()


def test_a_race_asks_in_both_modes_and_shows_both(page: Page, server: FakeServer) -> None:
    page.fill("#threshold", "0.6")
    page.click("#tab-race")
    expect(page.locator("#chat")).to_be_hidden()
    expect(page.locator("#modes")).to_be_hidden()
    server.answer = LONG
    server.hold()
    send(page)
    server.step(8)
    lanes = page.locator("#lanes .answer")
    expect(lanes).to_have_count(2)
    for lane in range(2):
        expect(lanes.nth(lane).locator(".cell").first).to_be_visible()
    server.release()
    ended(page)
    for lane, mode in enumerate(("Speed", "Quality")):
        expect(lanes.nth(lane).locator(".label")).to_contain_text(mode)
        expect(lanes.nth(lane).locator(".frozen")).to_have_text(LONG.rstrip())
        expect(lanes.nth(lane).locator(".tpf dd")).not_to_have_text("0.00")
        expect(lanes.nth(lane).locator(".edits dd")).to_have_text("2")
        expect(page.locator("#spoken")).to_contain_text(f"{mode} has finished")
    expect(page.locator("#lanes .first")).to_have_count(1)
    asked = sorted((body["redraft"] for body in server.seen), key=lambda own: own["mode"])
    assert asked[0] == {"events": True, "mode": "quality", "threshold": 0.6}  # the thresholds are those of this mode
    assert asked[1] == {"events": True, "mode": "speed"}


def test_a_race_can_be_replayed_and_stopped(page: Page, server: FakeServer) -> None:
    page.click("#tab-race")
    send(page)
    ended(page)
    moments = page.get_by_role("slider", name="Step")
    moments.focus()
    page.keyboard.press("Home")
    expect(page.locator("#lanes .cell.masked").first).to_be_visible()
    expect(page.locator("#lanes .frozen").first).to_be_empty()
    page.get_by_role("button", name="Replay").click()
    for lane in range(2):
        expect(page.locator("#lanes .frozen").nth(lane)).to_have_text(ANSWER)
    assert page.locator("#lanes").get_by_role("button", name="Trace").count() == 2
    server.answer = LONG
    server.hold()
    send(page, "Once more")
    server.step(4)
    expect(page.locator("#lanes .cell").first).to_be_visible()
    page.keyboard.press("Escape")
    ended(page)
    expect(page.locator("#lanes .note").first).to_have_text("Stopped.")
    page.click("#tab-chat")
    expect(page.locator("#empty")).to_be_visible()


def test_themes(page: Page, context: BrowserContext) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(colour)
    assert light != dark
    page.get_by_role("button", name="Theme: as the system").click()
    assert page.evaluate(colour) == light
    page.get_by_role("button", name="Theme: light").click()
    page.emulate_media(color_scheme="light")
    assert page.evaluate(colour) == dark
    page.reload()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert page.evaluate(colour) == dark


def test_all_of_it_can_be_done_by_keyboard(page: Page, server: FakeServer) -> None:
    page.locator("#theme").focus()
    page.keyboard.press("/")
    expect(page.locator("#message")).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#message")).to_have_value("/")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("input[value=speed]")).to_be_checked()
    page.locator("#tab-chat").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-race")).to_be_focused()
    expect(page.locator("#race")).to_be_visible()
    expect(page.locator("#tab-race")).to_have_attribute("aria-selected", "true")


def test_everything_that_can_be_used_has_a_name(page: Page) -> None:
    send(page)
    ended(page)
    named = """all => all.filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim()
        || [...one.labels ?? []].some((label) => label.textContent.trim()))).map((one) => one.outerHTML)"""
    assert page.locator("button, input, textarea, select").evaluate_all(named) == []


def test_a_phone_has_all_of_it(browser: Browser, server: FakeServer) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 700}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(server.url)
    server.answer = "x" * 200 + " " + LONG
    expect(page.locator("#side")).to_be_hidden()
    page.get_by_role("button", name="Chats and settings").tap()
    expect(page.locator("#threshold")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#side")).to_be_hidden()
    send(page)
    ended(page)
    fits = "['html', '#chat', '#race'].every((part) => document.querySelector(part).scrollWidth <= innerWidth)"
    assert page.evaluate(fits)
    expect(page.get_by_role("slider", name="Step")).to_be_visible()
    page.locator("#tab-race").tap()
    send(page)
    ended(page)
    assert page.evaluate(fits)
    context.close()


def test_a_stream_is_read_whether_or_not_the_page_is_drawn(context: BrowserContext, page: Page) -> None:
    """Display frames that never come stand for a page in the background, or one that is far too slow."""
    context.add_init_script("window.requestAnimationFrame = () => 0;")
    page.reload()
    send(page)
    ended(page)
    expect(page.locator("#spoken")).to_have_text(ANSWER)
    expect(page.locator("#turns .frozen")).to_be_empty()


def test_drawing_takes_at_most_half_of_the_time(page: Page) -> None:
    """A painter on a clock of the test: a display frame every 10 ms, and drawing that takes 25."""
    drawn: Any = page.evaluate(
        """async () => {
          const { Painter } = await import("/painter.js");
          let now = 0, waiting = null;
          const drawn = [];
          performance.now = () => now;
          window.requestAnimationFrame = (callback) => { waiting = callback; };
          const painter = new Painter(() => { drawn.push(now); now += 25; });
          for (let i = 0; i < 20; i++) {
            painter.request();
            painter.request();
            now += 10;
            const callback = waiting;
            waiting = null;
            callback?.();
          }
          return drawn;
        }"""
    )
    pauses = [later - earlier for earlier, later in itertools.pairwise(drawn)]
    assert len(drawn) > 3
    assert min(pauses) >= 50


@pytest.mark.parametrize("still", [False, True])
def test_several_blocks_may_be_open(still: bool, page: Page) -> None:
    """Multi-block editing: a step of an earlier block comes after one of a later block. In a running answer an edit can
    be seen for a while, in one that is gone through only at its step."""
    seen: Any = page.evaluate(
        """async (still) => {
          const { Picture } = await import("/picture.js");
          const { AnswerView } = await import("/answer.js");
          const empty = { masked: [], drafted: [], edited: {}, deleted: [], inserted: [], prompt: [], text: "" };
          const frame = (block, texts, change) => ({ ...empty, block, texts, step: 1, time: 0.1, frozen: false,
            ids: texts.map(() => 5), confidence: texts.map(() => 0.9), ...change });
          const frames = [
            frame(4, ["a", "b"], { drafted: [0, 1] }),
            frame(5, ["c"], { drafted: [0] }),
            frame(4, ["a", "B"], { edited: { 1: ["b", "B"] } }),
            frame(5, ["c"], {}),
            frame(4, ["a", "B"], { frozen: true, text: "aB" }),
          ];
          const figures = { tpf: 0, tps: 0, edits: 0, forwards: 0, tokens: 0 };
          const recording = { specialTexts: new Set(), figures: () => figures };
          const picture = new Picture();
          const view = new AnswerView("x");
          const look = (cell) => `${cell.lastChild.data} ${cell.className}`;
          const shown = frames.map((next) => {
            picture.feed(next);
            view.draw(recording, picture, still);
            return [...view.element.querySelectorAll(".cell")].map(look);
          });
          const text = view.element.querySelector(".frozen").textContent;
          return { shown, text, tokens: picture.tokens, edits: picture.edits };
        }""",
        still,
    )
    assert seen["shown"] == [
        ["a cell drafted", "b cell drafted"],
        ["a cell settled", "b cell settled", "c cell drafted"],
        ["a cell settled", "B cell edited", "c cell settled"],
        ["a cell settled", f"B cell {'settled' if still else 'edited'}", "c cell settled"],
        ["c cell settled"],
    ]
    assert (seen["text"], seen["tokens"], seen["edits"]) == ("aB", 3, 1)
