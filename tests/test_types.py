from __future__ import annotations

from typing import Any

import pytest

from redraft.errors import InvalidInput
from redraft.types import SamplingParams


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("logit_bias", [(1, 2.0)]),
        ("logit_bias", {1: 100.5}),
        ("logit_bias", {1: float("nan")}),
        ("logit_bias", {-1: 2.0}),
        ("logit_bias", {"1": 2.0}),
        ("logit_bias", {1: True}),
        ("presence_penalty", 2.5),
        ("presence_penalty", "much"),
        ("frequency_penalty", -2.5),
        ("frequency_penalty", None),
        ("stutter_penalty", -0.1),
        ("stutter_penalty", float("inf")),
        ("n", 0),
        ("n", True),
        ("n", 1.0),
        ("logprobs", 21),
        ("logprobs", -1),
        ("logprobs", True),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, bad: Any) -> None:
    with pytest.raises(InvalidInput, match=name) as caught:
        SamplingParams(**{name: bad})
    assert "\n" not in str(caught.value)


def test_a_bias_is_copied_and_leaves_the_settings_hashable() -> None:
    bias = {5: -3}
    params = SamplingParams(logit_bias=bias)
    bias[5] = 9
    assert params.logit_bias == {5: -3.0}
    assert params == SamplingParams(logit_bias={5: -3.0}) != SamplingParams()
    assert len({params, SamplingParams(logit_bias={5: -3.0})}) == 1
