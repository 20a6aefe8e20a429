# SPDX-License-Identifier: Apache-2.0
"""How long the rest takes, from what was recorded and how this machine compares."""

from __future__ import annotations

import pytest

from ec_verify.estimate import Estimate, duration


def test_before_anything_is_done_it_is_what_was_recorded() -> None:
    assert Estimate({"a": 30.0, "b": 10.0}, 2).left_s == 20.0
    assert str(Estimate({"a": 300.0, "b": 100.0}, 2)) == ", about 3 min left"


def test_what_is_done_tells_how_slow_this_machine_is() -> None:
    estimate = Estimate({"a": 30.0, "b": 10.0, "c": 20.0}, 2)
    estimate.finished("a", 60.0)
    assert estimate.left_s == 30.0
    estimate.finished("b", 40.0)
    # Recorded 40, took 100; the last one has no other beside it.
    assert estimate.left_s == 50.0
    estimate.finished("c", 1.0)
    assert estimate.left_s == 0.0
    assert str(estimate) == ""


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (89.4, "89 s"), (90.0, "2 min"), (600.0, "10 min")]
)
def test_a_duration_is_rough(seconds: float, said: str) -> None:
    assert duration(seconds) == said
