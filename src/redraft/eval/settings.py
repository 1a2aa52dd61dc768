"""The settings that an evaluation compares: points (threshold, edit threshold), some of which have names, with or
without multi-block editing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from redraft.decoding.modes import MODES
from redraft.errors import InvalidInput
from redraft.types import OFF, SamplingParams


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of the sweep. edit_threshold: a number from 0 to 1, or "off". mbe_blocks: 0 is no multi-block editing.
    All are checked by SamplingParams."""

    threshold: float
    edit_threshold: float | str = OFF
    mbe_blocks: int = 0
    mbe_steps: int = 3

    def __post_init__(self) -> None:
        _ = self.params

    @classmethod
    def parse(cls, text: str) -> Setting:
        """The setting of a key: "0.5/0", "0.95/off", or "0.5/0/2x3" with two blocks in the window and three steps."""
        threshold, slash, rest = text.strip().partition("/")
        edit, multi, window = rest.partition("/")
        try:
            if slash:
                blocks, steps = (int(part) for part in window.split("x")) if multi else (0, 3)
                if bool(multi) == bool(blocks):
                    return cls(float(threshold), OFF if edit == OFF else float(edit), blocks, steps)
        except InvalidInput:
            raise
        except ValueError:
            pass  # not a number: the message below says what would be one
        raise InvalidInput(
            "a setting must be THRESHOLD/EDIT_THRESHOLD such as 0.5/0 or 0.95/off, with /BLOCKSxSTEPS behind it for "
            f"multi-block editing, got {text!r}"
        )

    @property
    def edits(self) -> bool:
        return self.edit_threshold != OFF

    @property
    def key(self) -> str:
        """What records and files call the setting."""
        edit = self.edit_threshold if isinstance(self.edit_threshold, str) else f"{self.edit_threshold:g}"
        return f"{self.threshold:g}/{edit}" + (f"/{self.mbe_blocks}x{self.mbe_steps}" if self.mbe_blocks else "")

    @property
    def label(self) -> str:
        """What a reader calls the setting: its name where it has one."""
        return LABELS.get(self, self.key)

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(
            threshold=self.threshold,
            edit_threshold=self.edit_threshold,
            mbe_blocks=self.mbe_blocks,
            mbe_steps=self.mbe_steps,
        )


def _of_mode(name: str) -> Setting:
    mode = MODES[name]
    return Setting(mode.threshold, OFF if mode.edit_threshold is None else mode.edit_threshold)


DRAFT_ONLY: Final = _of_mode("draft-only")
QUALITY: Final = _of_mode("quality")
SPEED: Final = _of_mode("speed")
SPEED_UNEDITED: Final = Setting(SPEED.threshold, OFF)
LABELS: Final = {
    DRAFT_ONLY: f"draft-only {DRAFT_ONLY.threshold:g}",
    QUALITY: "Q",
    SPEED: "S",
    SPEED_UNEDITED: "S without editing",
}

STANDARD: Final = tuple(LABELS)
_GRID = [Setting(threshold / 10, edit) for edit in (0.0, 0.5) for threshold in range(3, 10)]
_UNEDITED = [Setting(threshold, OFF) for threshold in (0.3, 0.5, 0.7)]
# Points of the grid that have names are already there: a dict keeps the first of equals, and the order.
SWEEP: Final = tuple(dict.fromkeys((*STANDARD, *_GRID, *_UNEDITED)))
MULTIBLOCK: Final = (
    SPEED,
    *(replace(SPEED, mbe_blocks=blocks, mbe_steps=steps) for blocks in (1, 2, 4) for steps in (1, 3, 5)),
)
NAMED: Final = {"standard": STANDARD, "sweep": SWEEP, "multiblock": MULTIBLOCK}


def settings_named(text: str) -> tuple[Setting, ...]:
    """The settings of "standard", "sweep", "multiblock", or a list of points such as "0.5/0,0.5/off"."""
    if text in NAMED:
        return NAMED[text]
    if "/" not in text:
        known = ", ".join(NAMED)
        raise InvalidInput(f"settings must be one of {known}, or points such as 0.5/0,0.95/off, got {text!r}")
    return tuple(dict.fromkeys(Setting.parse(part) for part in text.split(",")))
