# SPDX-License-Identifier: Apache-2.0
"""What strangers can do who reach a control socket, or whom a request names: little."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.needs import needs

needs("nixl", "zmq")

import zmq

from ec_protocol.items import Item, make_item
from ec_protocol.p2p import wire
from tests.ec_connector.attacks.victim import BLOCK, COMPAT, Victim

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def item(name: str) -> Item:
    return make_item(name, 1, BLOCK, 1)


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


def _announced(name: str, address: tuple[str, int]) -> dict[str, Any]:
    return {name: {"peer_host": address[0], "peer_port": address[1], "size_bytes": BLOCK}}


@pytest.mark.clause("EC-15.8")
def test_a_client_that_names_a_peer_of_its_own_poisons_nobody_elses_request() -> None:
    """The name of a picture, and bytes that are not its encoding."""
    name = "sha-of-the-victims-picture"
    with (
        Victim("ec_producer") as evil,
        Victim("ec_producer") as honest,
        Victim("ec_consumer") as decoder,
    ):
        evil.save(name, b"\x66" * BLOCK)
        honest.save(name, b"\x77" * BLOCK)
        assert decoder.fetch(name, evil.address, BLOCK) == "ready"
        node = decoder.node
        # Another client, same picture, with its media and without parameters.
        assert not node.promise(name, waiter="victim")
        assert node.tier.get(name) is None
        # A third, whose request comes from the orchestrator.
        third = _announced(name, honest.address)
        wanted = item(name)
        decoder.until(lambda: node.want(wanted, third, "third", decoder.now()) == "ready")
        assert node.promise(name, [wanted], "third")
        copy = node.plan(wanted, "third")
        assert copy is not None
        assert decoder.content(copy.entry.mm_hash) == b"\x77" * BLOCK
        node.build_step(decoder.now())
        node.report(copy.copy_id, 0, landed=True)


@pytest.mark.clause("EC-15.6")
def test_a_request_leads_to_no_other_host_and_nobody_there_hears_of_it() -> None:
    with Victim("ec_consumer") as decoder:
        for host in ("10.255.255.1", "169.254.169.254", "metadata.google.internal", "0.0.0.0"):
            announced = {"h": {"peer_host": host, "peer_port": 80, "size_bytes": BLOCK}}
            state = decoder.node.want(item("h"), announced, host, decoder.now())
            assert state == "failed"
        assert decoder.node.counters["params_foreign_peer_host"] == 4
        assert decoder.node.tier.free_blocks == decoder.node.tier.num_blocks


@pytest.mark.clause("EC-15.5", "EC-15.7")
def test_nothing_of_an_instance_listens_where_other_hosts_reach_it() -> None:
    with Victim("ec_both") as victim, Victim("ec_producer") as other:
        other.save("h", b"h" * BLOCK)
        assert victim.fetch("h", other.address, BLOCK) == "ready"
        pids = [*victim.processes("server"), *victim.processes("reader")]
        assert len(pids) == 3
        for pid in pids:
            listens = {
                c.laddr.ip for c in psutil.Process(pid).net_connections() if c.status == "LISTEN"
            }
            assert listens == {"127.0.0.1"}
