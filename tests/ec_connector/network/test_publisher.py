# SPDX-License-Identifier: Apache-2.0
"""The publisher's sockets: bounded, and not to be filled by strangers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs

needs("zmq", "msgspec")

import zmq

from ec_connector.config.settings import EventSettings
from ec_connector.events.codec import decode
from ec_connector.network import publisher as publisher_module
from ec_connector.network.publisher import EventPublisher
from ec_connector.network.stats import NetworkStats

pytestmark = pytest.mark.clause("EC-13.5")


@pytest.fixture
def context() -> Iterator[Any]:
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def publisher(context: Any, tmp_path: Path) -> Iterator[EventPublisher]:
    settings = EventSettings(
        endpoint=f"ipc://{tmp_path}/e",
        replay_endpoint=f"ipc://{tmp_path}/r",
        topic="ec",
        buffer=32,
        queue=4,
    )
    made = EventPublisher(
        context,
        settings,
        engine_id="e",
        incarnation="i",
        address=None,
        sign_of_life_s=1.0,
        stats=NetworkStats(),
    )
    yield made
    made.close()
    made.close()


def test_every_socket_is_bounded(publisher: EventPublisher) -> None:
    for sock in (publisher._publish, *publisher.sockets):
        assert sock.getsockopt(zmq.MAXMSGSIZE) == publisher_module._MAX_REQUEST_BYTES
        assert sock.getsockopt(zmq.LINGER) == 0
    assert publisher._publish.getsockopt(zmq.SNDHWM) == 32
    (replay,) = publisher.sockets
    assert replay.getsockopt(zmq.SNDHWM) == 32 + publisher_module._BURST


def test_what_it_is_told_is_bounded_and_the_rest_is_said_to_be_missing(
    publisher: EventPublisher,
) -> None:
    for _ in range(2):
        publisher.add([("stored", f"h{n}", 1, None) for n in range(3)], missing=0)
    publisher.add([], missing=5)
    assert publisher.turn(0.0)
    ((_, payload),) = publisher._kept
    heard = decode(payload).events
    assert [event.event for event in heard] == ["stored"] * 4 + ["dropped", "dropped"]
    assert [event.count for event in heard][-2:] == [2, 5]


def test_a_quiet_publisher_gives_signs_of_life(publisher: EventPublisher) -> None:
    assert not publisher.turn(10.0)
    assert publisher.next_deadline() == 11.0
    publisher.add([("stored", "h", 1, None)])
    assert publisher.turn(10.5)
    assert publisher.next_deadline() == 11.5
