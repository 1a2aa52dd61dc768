"""The settings that an evaluation compares: points (threshold, edit threshold), some of which have names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from redraft.decoding.modes import MODES
from redraft.errors import InvalidInput
from redraft.types import OFF, SamplingParams


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of the sweep. edit_threshold: a number from 0 to 1, or "off". Both are checked by SamplingParams."""

    threshold: float
    edit_threshold: float | str = OFF

    def __post_init__(self) -> None:
        _ = self.params

    @classmethod
    def parse(cls, text: str) -> Setting:
        """The setting of a key: "0.5/0" or "0.95/off"."""
        threshold, slash, edit = text.strip().partition("/")
        try:
            if slash:
                return cls(float(threshold), OFF if edit == OFF else float(edit))
        except InvalidInput:
            raise
        except ValueError:
            pass  # not a number: the message below says what would be one
        raise InvalidInput(f"a setting must be THRESHOLD/EDIT_THRESHOLD such as 0.5/0 or 0.95/off, got {text!r}")

    @property
    def edits(self) -> bool:
        return self.edit_threshold != OFF

    @property
    def key(self) -> str:
        """What records and files call the setting."""
        edit = self.edit_threshold if isinstance(self.edit_threshold, str) else f"{self.edit_threshold:g}"
        return f"{self.threshold:g}/{edit}"

    @property
    def label(self) -> str:
        """What a reader calls the setting: its name where it has one."""
        return LABELS.get(self, self.key)

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(threshold=self.threshold, edit_threshold=self.edit_threshold)


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
NAMED: Final = {"standard": STANDARD, "sweep": SWEEP}


def settings_named(text: str) -> tuple[Setting, ...]:
    """The settings of "standard", "sweep", or a list of points such as "0.5/0,0.5/off"."""
    if text in NAMED:
        return NAMED[text]
    if "/" not in text:
        known = ", ".join(NAMED)
        raise InvalidInput(f"settings must be one of {known}, or points such as 0.5/0,0.95/off, got {text!r}")
    return tuple(dict.fromkeys(Setting.parse(part) for part in text.split(",")))
