"""The canvas as a terminal picture: `ViewState` is fed with frames, `render` draws it. No terminal is touched here.

Prompt dim; frozen text plain; in the open block a mask is a shaded cell, a token drafted in this step is bold, an
edited one is reversed with its old text struck out before it, and the hue of each token tells its confidence. With
multi-block editing several blocks are open.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.style import Style
from rich.text import Text

from redraft.cli.frames import Finish, Frame

Status = Literal["masked", "drafted", "edited", "settled"]

MASK = "░"
END = "∎"
NEWLINE = "↵"
PROMPT_LIMIT = 600

PROMPT_STYLE = Style(dim=True)
MASK_STYLE = Style(dim=True)
OLD_STYLE = Style(color="red", strike=True, dim=True)
EDITED_STYLE = Style(color="magenta", bold=True, reverse=True)
FOOTER_STYLE = Style(dim=True)

# (confidence below, hue): mid-tones that can be read on dark and on light backgrounds.
_SHADES = ((0.5, "color(167)"), (0.7, "color(173)"), (0.9, "color(143)"), (0.97, "color(72)"))
_SURE = "color(32)"

# A model may write any byte: control characters must not reach the terminal. Newline and tab stay.
_CONTROLS = dict.fromkeys(range(0x7F, 0xA0), "\ufffd")
_CONTROLS |= {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """The text with control characters (escape sequences too) replaced by visible signs."""
    return text.translate(_CONTROLS)


@dataclass(frozen=True, slots=True)
class Cell:
    """One generated token of an open block as it is shown; `old` is the text that an edit replaced."""

    text: str
    status: Status
    confidence: float
    old: str = ""


@dataclass
class ViewState:
    """All that the picture depends on; `feed` moves it one step on.

    text, token_ids: those of frozen blocks. open: the latest frame of every block that isn't frozen. latest: the frame
    of the last step.
    """

    prompt: str = ""
    raw: bool = False
    special_ids: frozenset[int] = frozenset()
    text: str = ""
    open: dict[int, Frame] = field(default_factory=dict)
    latest: Frame | None = None
    token_ids: list[int] = field(default_factory=list)
    steps: int = 0
    edits: int = 0
    seconds: float = 0.0
    finish: Finish | None = None

    def feed(self, frame: Frame) -> None:
        self.steps += 1
        self.edits += frame.edits
        self.seconds = frame.seconds
        self.text += frame.text_delta
        self.latest = frame
        self.open[frame.block] = frame
        if frame.frozen:
            del self.open[frame.block]
            self.token_ids += [token for i, token in enumerate(frame.tokens) if i not in frame.prompt]
        if frame.finish is not None:
            self.finish = frame.finish
            del self.token_ids[frame.finish.tokens :]  # the last block is drafted whole

    @property
    def cells(self) -> list[Cell]:
        """The generated part of the open blocks."""
        frames = [self.open[block] for block in sorted(self.open)]
        return [self._cell(frame, i) for frame in frames for i in range(len(frame.tokens)) if i not in frame.prompt]

    def _cell(self, frame: Frame, i: int) -> Cell:
        if i in frame.masked:
            return Cell(MASK, "masked", 0.0)
        text = self._shown(frame.tokens[i], frame.texts[i])
        if frame is not self.latest:
            return Cell(text, "settled", frame.confidence[i])
        if i in frame.edited:
            return Cell(text, "edited", frame.confidence[i], old=frame.edited[i])
        return Cell(text, "drafted" if i in frame.drafted else "settled", frame.confidence[i])

    def _shown(self, token: int, text: str) -> str:
        return END if token in self.special_ids else text

    def summary(self) -> str:
        """Steps, tokens per forward, tokens per second and edits so far, or of the whole answer once it is there."""
        if self.finish is not None:
            steps, tokens = self.finish.forwards, self.finish.tokens
            edits, seconds = self.finish.edits, self.finish.seconds
        else:
            tokens = len(self.token_ids) + sum(frame.filled for frame in self.open.values())
            steps, edits, seconds = self.steps, self.edits, self.seconds
        rates = [f"TPF {tokens / steps:.2f}"] if steps else []
        rates += [f"TPS {tokens / seconds:.0f}"] if seconds else []
        return " · ".join([f"steps {steps}", f"tokens {tokens}", *rates, f"edits {edits}"])


def shade(confidence: float) -> Style:
    """The hue of a confidence, from red (unsure) over yellow and green to blue (sure)."""
    return Style(color=next((hue for limit, hue in _SHADES if confidence < limit), _SURE))


def canvas(state: ViewState) -> Text:
    """Prompt, frozen text and open blocks as one styled text."""
    text = transcript(state)
    for cell in state.cells:
        if cell.old:
            text.append(printable(cell.old), OLD_STYLE)
        text.append(_visible(cell), _style(cell))
    return text


def transcript(state: ViewState) -> Text:
    """Prompt and frozen text: what stays when the live view is gone."""
    text = Text()
    if state.prompt:
        text.append(printable(_elided(state.prompt)) + ("" if state.raw else "\n"), PROMPT_STYLE)
    return text.append(printable(state.text))


def render(state: ViewState) -> RenderableType:
    """The picture of a state: the end of the canvas that fits the terminal, and the line of numbers below."""
    footer = Text(state.summary(), FOOTER_STYLE, no_wrap=True, overflow="ellipsis")
    return Group(_Tail(canvas(state), reserve=2), footer)


class _Tail:
    """The last lines of a text, as many as the terminal is high less `reserve`."""

    def __init__(self, text: Text, reserve: int) -> None:
        self.text = text
        self.reserve = reserve

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = self.text.wrap(console, options.max_width)
        yield from lines[-max(1, console.height - self.reserve) :]


def _visible(cell: Cell) -> str:
    """A cell's text; a line break that was just written gets a sign, or nothing of the change could be seen."""
    text = printable(cell.text)
    return text.replace("\n", f"{NEWLINE}\n") if cell.status in ("drafted", "edited") else text


def _style(cell: Cell) -> Style:
    match cell.status:
        case "masked":
            return MASK_STYLE
        case "edited":
            return EDITED_STYLE
        case "drafted":
            return shade(cell.confidence) + Style(bold=True)
        case "settled":
            return shade(cell.confidence)


def _elided(text: str) -> str:
    """A long text without its middle."""
    half = PROMPT_LIMIT // 2
    return text if len(text) <= PROMPT_LIMIT else f"{text[:half]} … {text[-half:]}"
