"""A browser, and a server that it can look at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tests.server.web.fakes import FakeServer

PATIENCE = 60_000  # milliseconds; machines of continuous integration are slow
FLAGS = ["--no-sandbox", "--disable-background-networking"]
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium. Of a module and no longer: while playwright runs, its thread can run no other event loop."""
    path = shutil.which("chromium")
    if path is None:
        missing = "chromium is not installed (apt-get install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1200, "height": 800}, color_scheme="light")
    context.set_default_timeout(PATIENCE)
    yield context
    context.close()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def complaints() -> list[str]:
    """What the browser's console complains of: errors of scripts, and what the security policy forbids."""
    return []


@pytest.fixture
def page(context: BrowserContext, server: FakeServer, complaints: list[str]) -> Iterator[Page]:
    """The playground, when it has met its server."""
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(server.url)
    expect(page.locator("#model")).to_have_text("redraft-fake")
    yield page
    assert complaints == []
