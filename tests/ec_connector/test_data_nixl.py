# SPDX-License-Identifier: Apache-2.0
"""READs between two real processes, and what it takes to be sure that one is over."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("nixl")

from ec_connector.data import (
    BadAgentMetadata,
    DataPlaneBusy,
    DataPlaneConfigError,
    DataPlaneError,
    NixlReader,
    NixlServer,
)
from ec_connector.data import library as nixl_library
from ec_connector.data.metadata import parse_agent_metadata
from ec_protocol.errors import ConfigError, LocalProtocolError
from tests.ec_connector.data_driver import Producer, Region, events_until, poll_for, until

pytestmark = pytest.mark.e2e

BIG = 64 << 20


@pytest.fixture
def producers() -> Iterator[Callable[..., Producer]]:
    made: list[Producer] = []

    def make(*args, **kwargs) -> Producer:
        made.append(Producer(*args, **kwargs))
        return made[-1]

    yield make
    for producer in made:
        producer.kill()


@pytest.fixture(scope="module")
def shared() -> Iterator[Producer]:
    made = Producer(name="shared", seed=4)
    yield made
    made.kill()


@pytest.fixture
def producer(shared: Producer) -> Iterator[Producer]:
    """One that is neither killed nor replaced; starting one takes a second."""
    shared.tell("poll")
    yield shared
    shared.resume()


@pytest.fixture
def region() -> Region:
    return Region()


@pytest.fixture
def readers() -> Iterator[Callable[..., NixlReader]]:
    made: list[NixlReader] = []

    def make(region: Region, **kwargs) -> NixlReader:
        kwargs.setdefault("grace_s", 0.0)
        made.append(NixlReader("consumer", region.address, region.nbytes, **kwargs))
        return made[-1]

    yield make
    for reader in made:
        reader.close()


def prepare(reader: NixlReader, attempt: int, producer: Producer, nbytes: int = 4096) -> None:
    reader.prepare(
        attempt,
        producer.metadata,
        [(0, nbytes)],
        [(producer.address, nbytes)],
        0,
        f"s.{attempt}:h".encode(),
    )


def read(reader: NixlReader, attempt: int, producer: Producer, nbytes: int = 4096) -> None:
    prepare(reader, attempt, producer, nbytes)
    reader.post(attempt)


def connected(reader: NixlReader, producer: Producer) -> None:
    """A READ that completes, so that later ones do not wait for a connection."""
    read(reader, 0, producer)
    assert events_until(reader)[0].outcome == "done"
    reader.release(0)


# --------------------------------------------------------------------------- it works
def test_pieces_arrive_bit_for_bit_and_the_notice_with_them(producer, readers, region):
    reader = readers(region)
    source = random.Random(3)
    cuts = sorted(source.sample(range(1, 300_000), 9))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, 300_000], strict=True)]
    local, remote, offset = [], [], 0
    starts = source.sample(range(10), 10)
    for size, slot in zip(sizes, starts, strict=True):
        local.append((offset + 1000, size))
        remote.append((producer.address + slot * 70_000 + 5, size))
        offset += size
    reader.prepare(7, producer.metadata, local, remote, 0, b"s.7:hash")
    reader.post(7)
    assert events_until(reader) == [(7, "done", "")]
    for (to, size), (address, _) in zip(local, remote, strict=True):
        at = address - producer.address
        assert region.bytes(to, size) == producer.content[at : at + size]
    assert region.bytes(0, 1000) == b"\xa5" * 1000
    assert region.bytes(301_000, 1000) == b"\xa5" * 1000
    until(lambda: "s.7:hash" in producer.tell("notices"), "the notice")
    assert reader.poll() == []
    reader.release(7)
    reader.release(7)


def test_a_notice_needs_no_read(producer, readers, region):
    reader = readers(region)
    reader.notify(producer.metadata, b"s.1:gone")
    assert reader.sending
    until(
        lambda: reader.poll() == [] and "s.1:gone" in producer.tell("notices"),
        "the notice",
    )


def test_a_read_moves_only_while_the_producer_polls(producer, readers, region):
    reader = readers(region)
    connected(reader, producer)
    producer.tell("rest")
    read(reader, 1, producer)
    assert poll_for(reader) == []
    producer.tell("poll")
    assert events_until(reader) == [(1, "done", "")]


def test_a_restarted_producer_is_another_one_even_under_its_old_name(producers, readers, region):
    old = producers(seed=1, name="same")
    reader = readers(region)
    connected(reader, old)
    old.kill()
    new = producers(seed=2, name="same")
    assert old.metadata != new.metadata
    read(reader, 1, new)
    assert events_until(reader)[0].outcome == "done"
    assert region.bytes(0, 4096) == new.content[:4096]
    assert reader.generations == 1


def test_a_restarted_producer_does_not_disturb_reads_of_the_old_one(producers, readers, region):
    old = producers(seed=1, name="same")
    reader = readers(region)
    connected(reader, old)
    old.stop()
    read(reader, 1, old)
    new = producers(seed=2, name="same")
    reader.prepare(2, new.metadata, [(8192, 4096)], [(new.address, 4096)], 0, b"s.2:h")
    reader.post(2)
    assert events_until(reader) == [(2, "done", "")]
    assert reader.generations == 2
    assert reader.reap() == []
    old.resume()
    assert events_until(reader) == [(1, "done", "")]
    assert region.bytes(0, 4096) == old.content[:4096]
    assert region.bytes(8192, 4096) == new.content[:4096]
    # The generation that could not serve both goes as soon as nobody needs it.
    assert reader.reap() == []
    assert reader.generations == 1


# --------------------------------------------------------------- NoReuseUnderDMA (EC-6.2)
def test_a_stopped_producer_leaves_its_read_open_until_the_agent_is_gone(
    producers, shared, readers, region, monkeypatch
):
    # TCP can be caught half-way; with CMA the bytes come in one go.
    monkeypatch.setenv("UCX_TLS", "tcp")
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
    assert reader.reap() == [1]
    assert reader.generations == 0
    after = region.bytes(0, BIG)
    producer.resume()
    # UCX may or may not survive in the producer; it has run when it answers or is dead.
    with contextlib.suppress(AssertionError, BrokenPipeError):
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
    producers, readers, region, monkeypatch
):
    monkeypatch.setenv("UCX_TLS", "tcp")
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
    stuck, healthy = producers(name="stuck"), producer
    reader = readers(region)
    connected(reader, stuck)
    stuck.stop()
    read(reader, 1, stuck)
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
    assert reader.reap() == []
    assert reader.generations == 0


def test_a_sleeping_producer_gets_a_while_to_wake_up(producer, readers, region):
    now = [100.0]
    reader = readers(region, grace_s=30.0, clock=lambda: now[0])
    connected(reader, producer)
    producer.stop()
    read(reader, 1, producer)
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
    connected(reader, producer)
    producer.stop()
    read(reader, 1, producer)
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
    connected(reader, producer)
    producer.stop()
    read(reader, 1, producer)
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
    connected(reader, producer)
    producer.stop()
    read(reader, 1, producer)
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
    connected(reader, producer)
    producer.stop()
    read(reader, 1, producer)
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


# ----------------------------------------------------------------------- refused inputs
def test_memory_beyond_what_was_registered_is_never_asked_for(producer, readers, region):
    reader = readers(region)
    end = producer.address + producer.nbytes
    for remote, device in (((end - 4095, 4096), 0), ((end, 4096), 0), ((producer.address, 9), 3)):
        with pytest.raises(BadAgentMetadata, match="has not registered"):
            reader.prepare(1, producer.metadata, [(0, remote[1])], [remote], device, b"s:h")
    for local in ((-1, 8), (region.nbytes - 7, 8), (0, 0)):
        with pytest.raises(LocalProtocolError):
            reader.prepare(1, producer.metadata, [local], [(producer.address, local[1])], 0, b"s:h")
    with pytest.raises(LocalProtocolError, match="pair up"):
        reader.prepare(1, producer.metadata, [(0, 8)], [(producer.address, 9)], 0, b"s:h")
    assert reader.reads == 0
    connected(reader, producer)


def test_damaged_metadata_is_refused_and_the_true_one_still_works(producer, readers, region):
    reader = readers(region)
    address = producer.metadata.index(b"|c") + 2
    size = int.from_bytes(producer.metadata[address : address + 8], "little")
    opaque = range(address + 8, address + 8 + size)
    source = random.Random(5)
    refused = 0
    for trial in range(300):
        damaged = bytearray(producer.metadata)
        if trial % 3 == 0:
            del damaged[source.randrange(len(damaged)) :]
        for _ in range(source.randrange(1, 4)):
            at = source.randrange(len(damaged)) if damaged else -1
            # Only UCX can judge its own address; see the module docstring of `metadata`.
            if at >= 0 and at not in opaque:
                damaged[at] ^= 1 << source.randrange(8)
        if bytes(damaged) == producer.metadata:
            continue
        try:
            reader.prepare(trial, bytes(damaged), [(0, 64)], [(producer.address, 64)], 0, b"s:h")
            reader.discard(trial)
        except DataPlaneError:
            refused += 1
        reader.reap()
    assert refused > 150
    connected(reader, producer)


def test_an_address_of_noise_is_refused(producer, readers, region):
    reader = readers(region)
    at = producer.metadata.index(b"|c") + 2
    size = int.from_bytes(producer.metadata[at : at + 8], "little")
    start = at + 8
    noise = bytearray(producer.metadata)
    noise[start + 1 : start + size] = bytes(size - 1)
    parse_agent_metadata(bytes(noise))
    with pytest.raises(BadAgentMetadata, match="agent metadata"):
        reader.prepare(1, bytes(noise), [(0, 64)], [(producer.address, 64)], 0, b"s:h")
    reader.reap()
    connected(reader, producer)


def test_an_attempt_is_prepared_once_and_posted_once(producer, readers, region):
    reader = readers(region)
    prepare(reader, 1, producer)
    with pytest.raises(LocalProtocolError, match="prepared already"):
        prepare(reader, 1, producer)
    reader.post(1)
    for wrong in (reader.post, reader.discard):
        with pytest.raises(LocalProtocolError, match="is posted"):
            wrong(1)
    with pytest.raises(LocalProtocolError, match="unknown"):
        reader.post(2)
    assert events_until(reader)[0].outcome == "done"


def test_an_unknown_backend_names_those_there_are(region):
    with pytest.raises(ConfigError, match=r"'NOPE' is not among .*\bUCX\b") as caught:
        NixlReader("consumer", region.address, region.nbytes, ["UCX", "NOPE"])
    assert isinstance(caught.value, DataPlaneConfigError)


def test_a_backend_that_cannot_start_is_named(region, monkeypatch):
    monkeypatch.setenv("UCX_TLS", "nosuchtransport")
    with pytest.raises(DataPlaneConfigError, match=r"'UCX' cannot be started .*UCX_TLS"):
        NixlServer("producer", region.address, region.nbytes)


def test_only_the_thread_that_made_it_may_use_it(readers, region):
    reader = readers(region)
    caught: list[BaseException] = []

    def use() -> None:
        try:
            reader.poll()
        except LocalProtocolError as exc:
            caught.append(exc)

    thread = threading.Thread(target=use, name="intruder")
    thread.start()
    thread.join()
    assert "intruder" in str(caught[0])


def test_a_closed_server_is_gone(region):
    server = NixlServer("producer", region.address, region.nbytes)
    assert parse_agent_metadata(server.agent_metadata).ranges[0].nbytes == region.nbytes
    assert server.poll_notices() == []
    assert server.close()
    assert server.close()
    with pytest.raises(DataPlaneError, match="closed"):
        server.poll_notices()
