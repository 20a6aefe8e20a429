# SPDX-License-Identifier: Apache-2.0
"""Agent metadata of a peer is read strictly before NIXL sees it."""

from __future__ import annotations

import random
import struct

import pytest

from tests.needs import needs

needs("msgspec")

from ec_connector.network.data import BadAgentMetadata
from ec_connector.network.data.metadata import MemoryRange, parse_agent_metadata
from ec_protocol.errors import RemoteProtocolError
from tests.fuzz.metadata import blob, field, memory, number


def test_well_formed_metadata_says_who_and_what():
    found = parse_agent_metadata(blob(ranges=(memory(), memory(1 << 40, 8, 3))))
    assert found.name == "peer"
    assert found.backends == ("UCX",)
    assert found.ranges == (
        MemoryRange("UCX", 0, 4096, 65536, 0),
        MemoryRange("UCX", 0, 1 << 40, 8, 3),
    )


@pytest.mark.parametrize(
    ("address", "nbytes", "device"),
    [(4095, 10, 0), (4096 + 65536 - 9, 10, 0), (0, 1 << 62, 0), (4096, 10, 1)],
)
def test_memory_that_was_not_offered_is_refused(address, nbytes, device):
    with pytest.raises(BadAgentMetadata, match="has not registered"):
        parse_agent_metadata(blob()).check_covers(address, nbytes, device)


def test_memory_that_was_offered_is_not_refused():
    parse_agent_metadata(blob()).check_covers(4096, 65536, 0)
    with pytest.raises(BadAgentMetadata):
        parse_agent_metadata(blob(kind=1)).check_covers(4096, 65536, 0)


def test_bad_metadata_is_the_peers_fault():
    with pytest.raises(RemoteProtocolError):
        parse_agent_metadata(b"")


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"nixlSerDes|",
        b"\x00" * 500,
        blob() + b"x",
        blob(name=b""),
        blob(name=b"\xff\xfe"),
        blob(name=b"a\nb"),
        blob(name=b"n" * 257),
        blob(conns=()),
        blob(conns=((b"UCX", b"\x20a"), (b"UCX", b"\x20a"))),
        blob(conns=((b"UCX", b"\x2fa"),)),
        blob(ranges=()),
        blob(ranges=(memory(nbytes=0),)),
        blob(ranges=(memory(address=(1 << 64) - 1, nbytes=2),)),
        blob(ranges=(memory(key=b""),)),
        blob(ranges=(memory(key=b"\x01" + b"\x00" * 7 + b"\xf0" + b"\x00\xff"),)),
        blob(ranges=(field("", b"short"),)),
        b"nixlSerDes|" + b"Agent" + struct.pack("<Q", 1 << 63) + b"peer|",
        blob() + b"\x00" * (1 << 20),
    ],
)
def test_malformed_metadata_is_refused(bad):
    with pytest.raises(BadAgentMetadata):
        parse_agent_metadata(bad)


@pytest.mark.parametrize("count", [2, 17, 1 << 32, (1 << 64) - 1])
@pytest.mark.parametrize("tag", ["Conns", "nixlSecElms", "n"])
def test_counts_beyond_what_follows_are_refused(tag, count):
    good = blob()
    assert number(tag, 1) in good
    with pytest.raises(BadAgentMetadata):
        parse_agent_metadata(good.replace(number(tag, 1), number(tag, count)))


def test_every_truncation_is_refused():
    good = blob(ranges=(memory(), memory(1 << 40)))
    for size in range(len(good)):
        with pytest.raises(BadAgentMetadata):
            parse_agent_metadata(good[:size])


def test_no_damage_raises_anything_else():
    good = blob(ranges=(memory(), memory(1 << 40)))
    source = random.Random(0)
    for at in range(len(good)):
        for value in (0, 1, 127, 128, 255, source.randrange(256)):
            damaged = good[:at] + bytes([value]) + good[at + 1 :]
            try:
                parse_agent_metadata(damaged)
            except BadAgentMetadata:
                continue
