from __future__ import annotations

import io

import pytest
from fakes import EOS, MASK, frames
from rich.cells import cell_len
from rich.console import Console

from redraft.cli.frames import Frame
from redraft.cli.view import Cell, ViewState, canvas, printable, render, shade


def state_after(count: int, prompt: str = "Max?") -> ViewState:
    state = ViewState(prompt=prompt, special_ids=frozenset({MASK, EOS}))
    for frame in frames()[:count]:
        state.feed(frame)
    return state


def picture(state: ViewState, width: int = 60, height: int = 20, color: bool = False) -> str:
    console = Console(
        file=io.StringIO(),
        width=width,
        height=height,
        force_terminal=True,
        color_system="256" if color else None,
        no_color=not color,
        legacy_windows=False,
    )
    console.print(render(state))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def plain(text: str) -> str:
    from rich.text import Text

    return Text.from_ansi(text).plain


def test_cells_tell_masked_drafted_and_settled_tokens() -> None:
    assert state_after(1).cells == [
        Cell("Max", "drafted", 0.99),
        Cell(" ", "drafted", 0.6),
        Cell("░", "masked", 0.0),
        Cell("░", "masked", 0.0),
    ]
    assert [cell.status for cell in state_after(2).cells] == ["settled", "settled", "drafted", "drafted"]


def test_an_edit_shows_the_old_token_for_one_frame() -> None:
    assert state_after(3).cells[2] == Cell("has", "edited", 0.3, old="had")
    shown = picture(state_after(3), color=True)
    struck = shown.index("had")
    assert ";9m" in shown[:struck] or "9;" in shown[:struck]
    assert "had" not in picture(state_after(4))


def test_frozen_text_replaces_the_block() -> None:
    state = state_after(4)
    assert state.text == "Max has "
    assert state.cells == []
    assert canvas(state).plain == "Max?\nMax has "


def test_several_blocks_may_be_open() -> None:
    state = ViewState()
    one = Frame(1, 0, 0.0, (2,), ("Max",), (0.9,), drafted=frozenset({0}))
    two = Frame(1, 1, 0.1, (3,), ("had",), (0.9,), drafted=frozenset({0}))
    for frame in (one, two):
        state.feed(frame)
    assert [(cell.text, cell.status) for cell in state.cells] == [("Max", "settled"), ("had", "drafted")]
    state.feed(Frame(2, 0, 0.2, (4,), ("Eve",), (0.9,), edited={0: "Max"}))
    assert [(cell.text, cell.status) for cell in state.cells] == [("Eve", "edited"), ("had", "settled")]
    state.feed(Frame(3, 0, 0.3, (4,), ("Eve",), (0.9,), frozen=True, text_delta="Eve "))
    assert canvas(state).plain == "Eve had"


def test_token_ids_end_where_the_answer_ends() -> None:
    assert state_after(5).token_ids == [2, 3, 4, 3, 6, 8, 1]


def test_summary_counts_steps_tokens_and_edits() -> None:
    running = state_after(3)
    running.seconds = 2.0
    assert running.summary() == "steps 3 · tokens 4 · TPF 1.33 · TPS 2 · edits 1"
    assert state_after(5).summary() == "steps 5 · tokens 7 · TPF 1.40 · TPS 14 · edits 1"
    assert ViewState().summary() == "steps 0 · tokens 0 · edits 0"


def test_prompt_positions_of_the_block_are_not_shown_twice() -> None:
    state = ViewState(prompt="Max", raw=True)
    state.feed(Frame(0, 0, 0.0, (2, 3, 0), ("Max", " ", "<mask>"), (1, 0.9, 0), frozenset({2}), prompt=frozenset({0})))
    assert canvas(state).plain == "Max ░"


def test_special_tokens_have_a_sign_of_their_own() -> None:
    state = ViewState(special_ids=frozenset({EOS}))
    state.feed(Frame(0, 0, 0.0, (2, EOS), ("Max", "<eos>"), (1.0, 1.0)))
    assert canvas(state).plain == "Max∎"


def test_a_fresh_line_break_is_visible() -> None:
    state = ViewState()
    state.feed(Frame(0, 0, 0.0, (2, 7), ("Max", "\n"), (1.0, 1.0), drafted=frozenset({1})))
    assert canvas(state).plain == "Max↵\n"


@pytest.mark.parametrize("width", [4, 10, 33, 200])
@pytest.mark.parametrize("height", [3, 5, 30])
def test_the_picture_fits_any_terminal(width: int, height: int) -> None:
    state = state_after(3, prompt="界" * 50 + " word " * 30)
    lines = plain(picture(state, width, height)).splitlines()
    assert len(lines) <= height
    assert max(map(cell_len, lines)) <= width


def test_the_end_of_a_long_canvas_is_what_is_shown() -> None:
    state = state_after(3)
    state.text = "\n".join(f"line {i}" for i in range(100))
    shown = plain(picture(state, height=8))
    assert "line 99" in shown
    assert "line 2\n" not in shown


def test_no_colour_without_colours() -> None:
    shown = picture(state_after(3))
    assert "38;5" not in shown
    assert "has" in shown


def test_control_characters_never_reach_the_terminal() -> None:
    assert printable("a\x1b[2J\x07\x9b\r\n\tb") == "a␛[2J␇\ufffd␍\n\tb"
    state = ViewState(prompt="\x1b]0;x\x07")
    state.feed(Frame(0, 0, 0.0, (9,), ("\x1b[2J",), (1.0,), edited={0: "\x1b[1m"}))
    state.text = "\x1b[3J"
    assert "\x1b" not in canvas(state).plain


def test_shade_goes_with_confidence() -> None:
    hues = [shade(value).color for value in (0.1, 0.6, 0.8, 0.95, 0.99)]
    assert len(set(hues)) == 5
