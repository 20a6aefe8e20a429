# SPDX-License-Identifier: Apache-2.0
"""A machine that sleeps between the look at the fence and the READ (EC-7.1)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.needs import needs

needs("nixl")

from ec_connector import clock
from ec_connector.clock import boottime
from tests.ec_connector.network.inside import Inside
from tests.world.instance import BLOCK

pytestmark = pytest.mark.clause("EC-7.1")
LEASE_S = 30.0


class Sleeps:
    """A data plane whose machine sleeps just before a READ is given to NIXL."""

    def __init__(self, plane: Any, sleep: Callable[[], None]) -> None:
        self._plane = plane
        self._sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plane, name)

    def post(self, attempt_id: int) -> None:
        self._sleep()
        self._plane.post(attempt_id)


@pytest.mark.parametrize(("counted", "state"), [(True, "failed"), (False, "ready")])
def test_bytes_of_another_picture_are_taken_only_by_a_clock_that_slept(
    counted: bool, state: str
) -> None:
    """With a clock that stands still in a sleep the wrong bytes come in: hence ours."""
    slept = [0.0]
    begin = boottime()

    # A hundredth of the real pace: no busy machine makes an attempt too late.
    def ticking() -> float:
        return begin + (boottime() - begin) / 100

    def awake() -> float:
        return ticking() + slept[0]

    def sleep() -> None:
        if slept[0]:
            return
        slept[0] = 2 * LEASE_S
        producer.turn()
        assert producer.counters()["expired"] == 1
        for number in range(8):
            producer.save(f"other{number}", b"W" * BLOCK)

    extra = {"pin_lease_s": LEASE_S, "consumer_ack_timeout_s": 12.0, "read_timeout_s": 12.0}
    with (
        Inside("ec_producer", 8, clock=awake, extra=extra) as producer,
        Inside(
            "ec_consumer",
            8,
            clock=awake if counted else ticking,
            extra=extra,
            wrap_reader=lambda plane: Sleeps(plane, sleep),
        ) as consumer,
    ):
        producer.save("picture", b"R" * BLOCK)
        got = consumer.fetch("picture", producer.address, BLOCK)
        assert got == state
        if counted:
            counters = consumer.counters()
            assert counters["reads_done"] == 0
            # Its time was over, seen before or after the library said that it had ended.
            assert counters["read_timeouts"] + counters["late_reads"] == 1
        else:
            assert consumer.bytes_of("picture") == b"W" * BLOCK


def test_the_clock_is_the_one_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(clock.time, "clock_gettime", lambda which: asked.append(which) or 1.0)
    assert boottime() == 1.0
    assert asked == [time.CLOCK_BOOTTIME]
