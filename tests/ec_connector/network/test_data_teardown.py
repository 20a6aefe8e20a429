# SPDX-License-Identifier: Apache-2.0
"""What it takes to be sure that a READ is over (NoReuseUnderDMA, EC-6.2)."""

from __future__ import annotations

import pytest

from tests.needs import needs

needs("nixl")

from ec_connector.network.data import DataPlaneError
from ec_protocol.errors import LocalProtocolError
from tests.ec_connector.network.data_driver import (
    TCP,
    Region,
    connected,
    events_until,
    poll_for,
    prepare,
    read,
    until,
)

pytest_plugins = ["tests.ec_connector.network.data_fixtures"]
pytestmark = pytest.mark.e2e

BIG = 64 << 20


def test_a_stopped_producer_leaves_its_read_open(producers, readers, region, monkeypatch):
    # TCP can be caught half-way; with CMA the bytes come in one go.
    monkeypatch.setenv("UCX_TLS", TCP)
    region = Region(BIG)
    producer = producers(BIG)
    reader = readers(region)
    connected(reader, producer)
    read(reader, 1, producer, BIG)
    until(lambda: reader.poll() or region.bytes(8192, 64) != b"\xa5" * 64, "the first bytes")
    producer.stop()
    assert poll_for(reader) == []
    assert region.bytes(BIG - 64, 64) == b"\xa5" * 64
    with pytest.raises(LocalProtocolError, match="until there is a proof"):
        reader.release(1)
    reader.abandon(1)
    assert reader.reads == 1, "it is asked about on"
    with pytest.raises(LocalProtocolError, match="until there is a proof"):
        reader.release(1)
    producer.resume()
    assert events_until(reader) == [(1, "done", "")]
    assert region.bytes(0, BIG) == producer.content
    reader.release(1)


def test_a_killed_producer_fails_the_read_and_proves_nothing(
    producers, readers, region, monkeypatch
):
    monkeypatch.setenv("UCX_TLS", TCP)
    region = Region(BIG)
    producer = producers(BIG)
    reader = readers(region)
    connected(reader, producer)
    read(reader, 1, producer, BIG)
    until(lambda: reader.poll() or region.bytes(8192, 64) != b"\xa5" * 64, "the first bytes")
    producer.kill()
    (event,) = events_until(reader)
    assert (event.attempt_id, event.outcome) == (1, "error")
    assert "nixlRemoteDisconnectError" in event.reason
    # An error is no proof.
    with pytest.raises(LocalProtocolError, match="until there is a proof"):
        reader.release(1)
    reader.abandon(1)
    assert reader.poll() == []


def test_a_producer_dead_before_the_post_counts_as_posted(producers, readers, region):
    producer = producers()
    reader = readers(region)
    connected(reader, producer)
    producer.kill()
    prepare(reader, 1, producer)
    with pytest.raises(DataPlaneError, match="nixlRemoteDisconnectError"):
        reader.post(1)
    reader.abandon(1)
    with pytest.raises(LocalProtocolError, match="until there is a proof"):
        reader.release(1)
    assert region.bytes(0, 4096) == producer.content[:4096], "the READ before it"


def test_an_abandoned_read_that_completes_says_so(producer, readers, region):
    stuck = producer
    reader = readers(region)
    connected(reader, stuck)
    stuck.stop()
    read(reader, 1, stuck)
    prepare(reader, 2, stuck)
    reader.abandon(1)
    stuck.resume()
    assert events_until(reader) == [(1, "done", "")]
    reader.release(1)
    reader.discard(2)
    assert reader.reads == 0


def test_close_ends_everything_that_was_posted(producer, readers, region):
    reader = readers(region)
    connected(reader, producer)
    producer.stop()
    read(reader, 1, producer)
    prepare(reader, 2, producer)
    read(reader, 3, producer)
    reader.abandon(3)
    reader.close()
    reader.close()
    assert reader.reads == 0
    with pytest.raises(DataPlaneError, match="closed"):
        prepare(reader, 4, producer)
