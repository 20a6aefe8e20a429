# SPDX-License-Identifier: Apache-2.0
"""The parent blames nobody for time in which it stood still itself (EC-14.11)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.needs import needs

needs("zmq", "msgspec")

from ec_connector.processes import parent as parent_module
from ec_protocol.p2p import words

pytest_plugins = ["tests.ec_connector.processes.house"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]


class Later:
    """The parent's clock, which jumps when a test says so; its children's does not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        real = parent_module.boottime
        monkeypatch.setattr(parent_module, "boottime", lambda: real() + self.ahead)


@pytest.mark.clause("EC-14.11")
def test_time_that_it_slept_with_its_machine_kills_nobody(house: Any, monkeypatch) -> None:
    """It is the first to run again: no child has given a sign of life since."""
    later = Later(monkeypatch)
    made = house("ready(); parent.say(words.Working())", readers=1)
    made.until(lambda: len(made.of(words.Up)) == 2, "both")
    made.until(lambda: len(made.parent.processes.numbers("spare")) == 2, "who stands by")
    later.ahead = 3600.0
    made.turn()
    made.turn()
    assert made.parent.processes.counters["exits"] == 0
    assert made.parent.processes.numbers("killed") == []
    assert made.parent.processes.next_deadline() <= parent_module.boottime() + 20.0


@pytest.mark.clause("EC-14.11")
def test_nor_whoever_was_starting(house: Any, monkeypatch) -> None:
    later = Later(monkeypatch)
    made = house("wait(words.Take)")
    made.turn()
    assert len(made.parent.processes.numbers("starting")) == 2
    later.ahead = 3600.0
    made.turn()
    assert len(made.parent.processes.numbers("starting")) == 2


@pytest.mark.clause("EC-14.11")
def test_to_be_stopped_between_two_looks_at_the_clock_kills_nobody(house: Any, monkeypatch) -> None:
    """It reads what time it is, is stopped, and reads signs of life after that; or before."""
    later = Later(monkeypatch)
    made = house("ready(); parent.say(words.Working())")
    made.until(lambda: made.of(words.Up), "Up")
    hear = made.parent._hear

    def stopped(child: Any) -> None:
        later.ahead += 1800.0
        hear(child)
        later.ahead += 1800.0

    monkeypatch.setattr(made.parent, "_hear", stopped)
    made.turn()
    monkeypatch.undo()
    assert made.parent.processes.numbers("killed") == []
