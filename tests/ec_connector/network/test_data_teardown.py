# SPDX-License-Identifier: Apache-2.0
"""What it takes to be sure that a READ is over (NoReuseUnderDMA, EC-6.2)."""

from __future__ import annotations

import contextlib
import gc

import pytest

from tests.needs import needs

needs("nixl")

from ec_connector.network.data import DataPlaneBusy, DataPlaneError
from ec_connector.network.data import library as nixl_library
from ec_protocol.errors import LocalProtocolError
from tests.ec_connector.network.data_driver import (
    Region,
    connected,
    events_until,
    poll_for,
    prepare,
    read,
)
from tests.world.processes import until

pytest_plugins = ["tests.ec_connector.network.data_fixtures"]
pytestmark = pytest.mark.e2e

BIG = 64 << 20


def midway(producers, readers, monkeypatch):
    """A large READ of which the first bytes have come and the last have not."""
    # TCP can be caught half-way; with CMA the bytes come in one go.
    monkeypatch.setenv("UCX_TLS", "tcp")
    region = Region(BIG)
    producer, reader = producers(BIG), readers(region)
    connected(reader, producer)
    read(reader, 1, producer, BIG)
    until(lambda: reader.poll() or region.bytes(8192, 64) != b"\xa5" * 64, "the first bytes")
    return producer, reader, region


def stuck(reader, producer):
    """READ 1 is posted, and its producer stands still."""
    connected(reader, producer)
    producer.stop()
    read(reader, 1, producer)


def test_a_stopped_producer_leaves_its_read_open_until_the_agent_is_gone(
    producers, shared, readers, monkeypatch
):
    producer, reader, region = midway(producers, readers, monkeypatch)
    producer.stop()
    assert poll_for(reader) == []
    assert region.bytes(BIG - 64, 64) == b"\xa5" * 64
    with pytest.raises(LocalProtocolError, match="until there is a proof"):
        reader.release(1)
    reader.abandon(1)
    assert reader.reap() == [1]
    assert reader.generations == 0
    after = region.bytes(0, BIG)
    producer.resume()
    # UCX may or may not survive in the producer; it has run when it answers or is dead.
    with contextlib.suppress(EOFError, BrokenPipeError):
        producer.tell("notices")
    # The producer runs and sends what it still has; a new agent is progressed. The
    # blocks belong to nobody's READ any more, and nothing arrives in them.
    region.memory[:BIG] = after
    other = shared
    reader.prepare(2, other.metadata, [(BIG - 8192, 4096)], [(other.address, 4096)], 0, b"s.2:h")
    reader.post(2)
    assert events_until(reader) == [(2, "done", "")]
    assert region.bytes(0, BIG - 8192) == after[: BIG - 8192]
    assert region.bytes(BIG - 64, 64) == b"\xa5" * 64


def test_a_killed_producer_fails_the_read_and_the_teardown_proves_its_end(
    producers, readers, monkeypatch
):
    producer, reader, _ = midway(producers, readers, monkeypatch)
    producer.kill()
    (event,) = events_until(reader)
    assert (event.attempt_id, event.outcome) == (1, "error")
    assert "nixlRemoteDisconnectError" in event.reason
    # An error is no proof; nothing is torn down under a READ that was not given up.
    assert reader.reap() == []
    reader.abandon(1)
    assert reader.reap() == [1]
    assert reader.reap() == []


def test_a_producer_dead_before_the_post_counts_as_posted(producers, readers, region):
    producer = producers()
    reader = readers(region)
    connected(reader, producer)
    producer.kill()
    prepare(reader, 1, producer)
    with pytest.raises(DataPlaneError, match="nixlRemoteDisconnectError"):
        reader.post(1)
    reader.abandon(1)
    assert reader.reap() == [1]
    assert region.bytes(0, 4096) == producer.content[:4096], "the READ before it"


def test_a_tainted_generation_lives_until_its_healthy_reads_are_over(
    producers, producer, readers, region
):
    sick, healthy = producers(name="sick"), producer
    reader = readers(region)
    stuck(reader, sick)
    prepare(reader, 2, healthy)
    reader.abandon(1)
    assert reader.tainted
    assert reader.reap() == []
    # New READs go elsewhere; the one that was there before still completes.
    read(reader, 3, healthy)
    assert reader.generations == 2
    assert reader.reap() == []
    reader.post(2)
    assert {event.attempt_id for event in events_until(reader, 2)} == {2, 3}
    assert reader.reap() == [1]
    assert reader.generations == 1
    # What was done before needs no proof and is named no second time.
    reader.release(2)
    reader.release(3)


def test_an_abandoned_read_that_completes_says_so(producer, readers, region):
    reader = readers(region)
    stuck(reader, producer)
    prepare(reader, 2, producer)
    reader.abandon(1)
    producer.resume()
    assert events_until(reader) == [(1, "done", "")]
    reader.release(1)
    reader.discard(2)
    assert reader.reap() == []
    assert reader.generations == 0


def test_a_sleeping_producer_gets_a_while_to_wake_up(producer, readers, region):
    now = [100.0]
    reader = readers(region, grace_s=30.0, clock=lambda: now[0])
    stuck(reader, producer)
    reader.abandon(1)
    for now[0] in (100.0, 129.9):
        assert reader.reap() == []
        assert reader.reads == 1
    # Asking again does not start the time anew.
    reader.abandon(1)
    now[0] = 130.0
    assert reader.reap() == [1]


def test_a_failed_read_needs_no_while(producers, readers, region):
    producer = producers()
    reader = readers(region, grace_s=1e9)
    stuck(reader, producer)
    reader.abandon(1)
    assert reader.reap() == []
    producer.kill()
    proven: list[int] = []
    until(lambda: reader.poll() or proven.extend(reader.reap()) or proven, "the failure")
    assert proven == [1]


def test_generations_are_bounded(producer, readers, region):
    reader = readers(region, max_generations=2)
    connected(reader, producer)
    producer.stop()
    for attempt in (1, 2):
        read(reader, attempt, producer)
        prepare(reader, 10 + attempt, producer)
        reader.abandon(attempt)
    assert reader.generations == 2
    with pytest.raises(DataPlaneBusy, match="at most 2"):
        prepare(reader, 3, producer)
    reader.discard(11)
    assert reader.reap() == [1]
    prepare(reader, 3, producer)


def test_what_cannot_be_confirmed_is_not_claimed(producer, readers, region):
    reader = readers(region)
    stuck(reader, producer)
    somebody_else = reader._reads[1].generation.agent.nixl.agent
    reader.abandon(1)
    assert reader.reap() == []
    assert reader.tainted
    assert reader.generations == 1
    del somebody_else
    gc.collect()
    assert reader.reap() == [1]
    assert not reader.tainted


def test_other_backends_prove_nothing_by_teardown(producer, readers, region, monkeypatch):
    monkeypatch.setattr(nixl_library, "TEARDOWN_PROVES", frozenset())
    reader = readers(region, max_generations=2)
    stuck(reader, producer)
    reader.abandon(1)
    assert reader.reap() == []
    assert reader.generations == 1, "kept: it may still report DONE"
    read(reader, 2, producer)
    reader.abandon(2)
    assert reader.reap() == []
    assert reader.generations == 0, "room is needed, and none of them is claimed"
    assert reader.counters["reads_unproven"] == 2
    assert reader.close() == []


def test_close_ends_everything_that_was_posted(producer, readers, region):
    reader = readers(region)
    stuck(reader, producer)
    prepare(reader, 2, producer)
    read(reader, 3, producer)
    reader.abandon(3)
    assert sorted(reader.close()) == [1, 3]
    assert reader.close() == []
    with pytest.raises(DataPlaneError, match="closed"):
        prepare(reader, 4, producer)


def test_the_reason_of_a_failure_keeps_no_agent_alive(producers, readers, region):
    producer = producers()
    reader = readers(region)
    connected(reader, producer)
    producer.kill()
    prepare(reader, 1, producer)
    with pytest.raises(DataPlaneError) as caught:
        reader.post(1)
    reader.abandon(1)
    assert reader.reap() == [1], f"while {caught.value!r} and its traceback are alive"
