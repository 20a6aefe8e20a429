# SPDX-License-Identifier: Apache-2.0
"""What strangers can do who reach a control socket, or whom a request names: little."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.needs import needs

needs("nixl", "zmq")

import zmq

from ec_protocol.p2p import wire
from tests.ec_connector.attacks.victim import BLOCK, COMPAT, Victim

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def context() -> Iterator[Any]:
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.mark.clause("EC-15.1", "EC-5.10")
def test_one_process_under_many_names_and_addresses_pins_the_share_of_one_peer(
    context: Any,
) -> None:
    """A hundred sockets, each with an identity and a loopback address of its own."""
    blocks = 100
    with Victim("ec_producer", blocks) as victim:
        for number in range(blocks):
            victim.save(f"h{number}", b"x" * BLOCK)
        sockets = []
        for number in range(blocks):
            sock = context.socket(zmq.DEALER)
            sock.setsockopt(zmq.IDENTITY, b"somebody-%d" % number)
            sock.connect(f"tcp://127.0.1.{number + 1}:0;127.0.0.1:{victim.address[1]}")
            request = wire.XferReq(f"h{number}", COMPAT, f"evil{number}.1", 2, 1)
            sock.send_multipart([b"", wire.encode(request)])
            sockets.append(sock)
        acks = []
        for sock in sockets:
            assert sock.poll(60_000)
            acks.append(wire.decode_ack(sock.recv_multipart()).status)
        assert acks.count(wire.XferStatus.OK) == blocks // 2
        assert acks.count(wire.XferStatus.NACK_NOT_READY) == blocks // 2
        # While all these leases run the engine has room for what it encodes.
        tier = victim.node.tier
        for number in range(4):
            entry = tier.alloc(f"new{number}", 11 * BLOCK)
            assert entry is not None
            victim.data.turn()
            tier.cancel(entry)
            victim.data.turn()
