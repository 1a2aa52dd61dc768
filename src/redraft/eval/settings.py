"""The settings that an evaluation compares: points (threshold, edit threshold), some of which have names, with or
without multi-block editing and with fewer post steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from redraft.decoding.modes import MODES
from redraft.errors import InvalidInput
from redraft.types import OFF, SamplingParams

POST_STEPS: Final = SamplingParams().max_post_steps


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of a sweep. threshold: None leaves thresholds to who answers (`AS_SERVED`). edit_threshold: a number
    from 0 to 1, or "off". mbe_blocks: 0 is no multi-block editing. All are checked by SamplingParams."""

    threshold: float | None
    edit_threshold: float | str | None = OFF
    mbe_blocks: int = 0
    mbe_steps: int = 3
    max_post_steps: int = 16

    def __post_init__(self) -> None:
        _ = self.params

    @classmethod
    def parse(cls, text: str) -> Setting:
        """The setting of a key: "0.5/0", "0.95/off", "0.5/0/2x3" with two blocks in the window and three steps, or
        "0.5/0/p4" with at most four post steps."""
        threshold, slash, rest = text.strip().partition("/")
        edit, *more = rest.split("/")
        try:
            if slash:
                return cls(float(threshold), OFF if edit == OFF else float(edit), **_options(more))
        except InvalidInput:
            raise
        except ValueError:
            pass  # not a number: the message below says what would be one
        raise InvalidInput(
            "a setting must be THRESHOLD/EDIT_THRESHOLD such as 0.5/0 or 0.95/off, with /BLOCKSxSTEPS behind it for "
            f"multi-block editing and /pSTEPS for the post steps, got {text!r}"
        )

    @property
    def edits(self) -> bool:
        return self.edit_threshold != OFF

    @property
    def key(self) -> str:
        """What records and files call the setting."""
        if self.threshold is None:
            return "as-served"
        window = f"/{self.mbe_blocks}x{self.mbe_steps}" if self.mbe_blocks else ""
        post = f"/p{self.max_post_steps}" if self.max_post_steps != POST_STEPS else ""
        return f"{self.threshold:g}/{self.edit}{window}{post}"

    @property
    def edit(self) -> str:
        """The edit threshold as text."""
        return f"{self.edit_threshold:g}" if isinstance(self.edit_threshold, (int, float)) else str(self.edit_threshold)

    @property
    def label(self) -> str:
        """What a reader calls the setting: its name where it has one."""
        return LABELS.get(self, self.key)

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of `SamplingParams` that make it, those left out that have the default's value."""
        if self.threshold is None:
            return {}
        fields: dict[str, Any] = {"threshold": self.threshold, "edit_threshold": self.edit_threshold}
        if self.mbe_blocks:
            fields |= {"mbe_blocks": self.mbe_blocks, "mbe_steps": self.mbe_steps}
        if self.max_post_steps != POST_STEPS:
            fields["max_post_steps"] = self.max_post_steps
        return fields

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(**self.fields)


def _options(parts: Sequence[str]) -> dict[str, int]:
    """What stands behind the thresholds, each kind once. Raises ValueError for anything else."""
    found: dict[str, int] = {}
    for part in parts:
        if part.startswith("p"):
            new = {"max_post_steps": int(part[1:])}
        else:
            blocks, steps = (int(number) for number in part.split("x"))
            if not blocks:
                raise ValueError(part)
            new = {"mbe_blocks": blocks, "mbe_steps": steps}
        if new.keys() & found.keys():
            raise ValueError(part)
        found |= new
    return found


def _of_mode(name: str) -> Setting:
    mode = MODES[name]
    return Setting(mode.threshold, OFF if mode.edit_threshold is None else mode.edit_threshold)


AS_SERVED: Final = Setting(None, None)
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


MODE_SETTINGS: Final = {"speed": SPEED, "quality": QUALITY, "draft-only": DRAFT_ONLY}


def settings_named(text: str) -> tuple[Setting, ...]:
    """The settings of "standard", "sweep", "multiblock", or a list of modes and points such as "quality,0.5/off"."""
    if text in NAMED:
        return NAMED[text]
    return tuple(dict.fromkeys(_setting_named(part.strip(), text) for part in text.split(",")))


def _setting_named(part: str, text: str) -> Setting:
    if part in MODE_SETTINGS:
        return MODE_SETTINGS[part]
    if part == AS_SERVED.key:
        return AS_SERVED
    if "/" not in part:
        known = ", ".join((*NAMED, *MODE_SETTINGS))
        raise InvalidInput(f"settings must be one of {known}, or points such as 0.5/0,0.95/off, got {text!r}")
    return Setting.parse(part)
