# SPDX-License-Identifier: Apache-2.0
"""READs between two real processes, and inputs that must not reach NIXL."""

from __future__ import annotations

import random
import threading

import pytest

from tests.needs import needs

needs("nixl")

from ec_connector.network.data import (
    BadAgentMetadata,
    DataPlaneConfigError,
    DataPlaneError,
    NixlReader,
    NixlServer,
)
from ec_connector.network.data.metadata import parse_agent_metadata
from ec_protocol.errors import ConfigError, LocalProtocolError
from tests.ec_connector.network.data_driver import connected, events_until, poll_for, prepare, read
from tests.world.processes import until

pytest_plugins = ["tests.ec_connector.network.data_fixtures"]
pytestmark = pytest.mark.e2e


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
    until(lambda: reader.poll() == [] and "s.1:gone" in producer.tell("notices"), "the notice")


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


def test_a_restarted_producer_does_not_disturb_reads_of_the_old_one(producers, readers, region):
    old = producers(seed=1, name="same")
    reader = readers(region)
    connected(reader, old)
    old.stop()
    read(reader, 1, old)
    new = producers(seed=2, name="same")
    there = ([(8192, 4096)], [(new.address, 4096)], 0, b"s.2:h")
    # One agent knows one process by that name: the new one has to wait, or another reader.
    with pytest.raises(DataPlaneError, match="are not over"):
        reader.prepare(2, new.metadata, *there)
    old.resume()
    assert events_until(reader) == [(1, "done", "")]
    reader.release(1)
    reader.prepare(2, new.metadata, *there)
    reader.post(2)
    assert events_until(reader) == [(2, "done", "")]
    assert region.bytes(0, 4096) == old.content[:4096]
    assert region.bytes(8192, 4096) == new.content[:4096]


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
    server.close()
    server.close()
    with pytest.raises(DataPlaneError, match="closed"):
        server.poll_notices()
