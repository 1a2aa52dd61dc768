from __future__ import annotations

import pytest

from redraft.decoding.modes import policy_of
from redraft.errors import InvalidInput
from redraft.eval.settings import (
    AS_SERVED,
    DRAFT_ONLY,
    MULTIBLOCK,
    NAMED,
    QUALITY,
    SPEED,
    SPEED_UNEDITED,
    SWEEP,
    Setting,
    settings_named,
)
from redraft.types import SamplingParams


def test_names_are_the_modes() -> None:
    for setting, mode in ((DRAFT_ONLY, "draft-only"), (QUALITY, "quality"), (SPEED, "speed")):
        assert policy_of(setting.params) == policy_of(SamplingParams(mode=mode))
    assert policy_of(SPEED_UNEDITED.params) == policy_of(SamplingParams(mode="speed", edit_threshold="off"))


def test_labels() -> None:
    labels = [setting.label for setting in (DRAFT_ONLY, QUALITY, SPEED, SPEED_UNEDITED, Setting(0.3, 0.0))]
    assert labels == ["draft-only 0.95", "Q", "S", "S without editing", "0.3/0"]


@pytest.mark.parametrize("setting", SWEEP + MULTIBLOCK)
def test_keys_can_be_read_back(setting: Setting) -> None:
    assert Setting.parse(setting.key) == setting


def test_the_sweep_holds_each_point_once() -> None:
    assert len({setting.key for setting in SWEEP}) == len(SWEEP) == 18
    assert set(NAMED["standard"]) <= set(SWEEP)
    assert len({setting.key for setting in MULTIBLOCK}) == len(MULTIBLOCK) == 10


def test_modes_and_post_steps_have_names() -> None:
    few = Setting(0.5, 0.0, max_post_steps=4)
    assert settings_named("speed,quality,0.5/0/p4,as-served") == (SPEED, QUALITY, few, AS_SERVED)
    assert (few.key, few.params.max_post_steps) == ("0.5/0/p4", 4)
    both = Setting.parse("0.5/0/p4/2x5")
    assert both == Setting.parse("0.5/0/2x5/p4") and both.key == "0.5/0/2x5/p4"
    assert AS_SERVED.fields == {} and AS_SERVED.params == SamplingParams()


def test_a_window_reaches_the_request() -> None:
    params = Setting.parse("0.5/0/2x5").params
    assert (params.mbe_blocks, params.mbe_steps, params.edit_threshold) == (2, 5, 0.0)


def test_points_can_be_listed() -> None:
    assert settings_named("0.5/0, 0.95/off,0.50/0.0") == (SPEED, DRAFT_ONLY)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "all",
        "0.5",
        "0.5/",
        "0.5/never",
        "x/0",
        "-1/0",
        "0.5/2",
        "0.5/0,",
        "nan/0",
        "0.5/0/",
        "0.5/0/2",
        "0.5/0/0x3",
        "0.5/0/2x0",
        "0.5/off/1x3",
        "0.5/0/p",
        "0.5/0/p-1",
        "0.5/0/p4/p4",
        "fast",
    ],
)
def test_what_is_no_setting(text: str) -> None:
    with pytest.raises(InvalidInput):
        settings_named(text)
