# SPDX-License-Identifier: Apache-2.0
"""The guide's protocol section, statement by statement."""

from __future__ import annotations

import hashlib
import time

import pytest

from tests.needs import needs

needs("msgspec", "nixl", "zmq")

import zmq

from ec_connector.network.control import ControlClient, ControlServer
from ec_protocol.p2p import wire
from ec_protocol.p2p.wire import RETRYABLE_NACKS, XferReq, XferStatus
from ec_protocol.tables.timing import Timing
from tests.guide.inside_peers import InsidePeers
from tests.world.engine import Engine, engine
from tests.world.host import BLOCK, request
from tests.world.instance import wait_for
from tests.world.peers import RealPeers
from tests.world.processes import until

pytestmark = pytest.mark.timeout(120)


def ask(address: tuple[str, int], **change: object) -> wire.XferAck:
    """Send one XferReq as an old consumer would, and return the answer."""
    fields = {
        "mm_hash": "a",
        "compatibility_hash": wire.compatibility_hash("0", "harness", "torch.bfloat16", BLOCK),
        "session_id": "s1",
        "connector_version": 1,
        **change,
    }
    context = zmq.Context()
    try:
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"tcp://{address[0]}:{address[1]}")
        dealer.send_multipart([b"", wire.encode(XferReq(**fields))])
        wait_for(lambda: dealer.poll(0), "an answer", 20.0)
        return wire.decode_ack(dealer.recv_multipart())
    finally:
        context.destroy(linger=0)


@pytest.fixture
def served():
    """A producer that holds ``a`` and serves it."""
    with engine(role="ec_producer", p2p=InsidePeers()) as p:
        p.run(request("encode", ("a", 3)))
        yield p


def grants_keep(producer: Engine, mm_hash: str) -> bool:
    """Whether a grant keeps the encoding from being evicted."""
    producer.p2p.turn()
    entry = producer.tier.get(mm_hash)
    assert entry.state == "ready", "nothing else keeps it"
    return not producer.tier.gate.may_evict(entry)


# ------------------------------------------------------------------------ control plane
def test_heartbeats_2_s_interval_4_s_timeout_8_s_ttl():
    timing = Timing()
    assert (timing.heartbeat_interval_s, timing.heartbeat_timeout_s, timing.heartbeat_ttl_s) == (
        2.0,
        4.0,
        8.0,
    )


def test_heartbeats_are_set_on_the_sockets():
    context = zmq.Context()
    server = ControlServer(context, "127.0.0.1", 0, Timing())
    try:
        for sock in server.sockets:
            assert sock.getsockopt(zmq.TYPE) == zmq.ROUTER
            options = (zmq.HEARTBEAT_IVL, zmq.HEARTBEAT_TIMEOUT, zmq.HEARTBEAT_TTL)
            assert [sock.getsockopt(option) for option in options] == [2000, 4000, 8000]
    finally:
        server.close()
        context.destroy(linger=0)


def test_engine_id_names_the_nixl_agents():
    """The agent's metadata, which an ack brings, say whose they are."""
    with engine(role="ec_producer", p2p=RealPeers()) as p:
        p.run(request("encode", ("a", 3)))
        agent = f"{p.p2p.engine_id}-".encode()
        assert agent in ask(p.p2p.address, connector_version=2, attempt_id=1).agent_metadata


def test_a_router_answers_on_the_announced_address(served):
    ack = ask(served.p2p.address)
    assert ack.status == XferStatus.OK
    assert ack.src_block_indices == [
        b for s, n in served.tier.get("a").extents for b in range(s, s + n)
    ]
    assert ack.session_id == "s1"
    served.drain()


@pytest.mark.parametrize("version", [1, 2])
def test_versions_1_and_2_are_served(served, version):
    assert ask(served.p2p.address, connector_version=version).status == XferStatus.OK
    served.drain()


def test_a_version_mismatch_is_nacked(served):
    assert ask(served.p2p.address, connector_version=9).status == XferStatus.NACK_VERSION


# ---------------------------------------------------------------------- compatibility
def test_compatibility_hash_is_sha_256_over_the_four_facts():
    expected = hashlib.sha256(b'["0.32.0","m","torch.bfloat16",4096]').hexdigest()
    assert wire.compatibility_hash("0.32.0", "m", "torch.bfloat16", 4096) == expected


@pytest.mark.parametrize(
    "facts",
    [
        ("1", "harness", "torch.bfloat16", BLOCK),
        ("0", "other", "torch.bfloat16", BLOCK),
        ("0", "harness", "torch.float16", BLOCK),
        ("0", "harness", "torch.bfloat16", 2 * BLOCK),
    ],
)
def test_a_different_hash_is_nack_incompat(served, facts):
    ack = ask(served.p2p.address, compatibility_hash=wire.compatibility_hash(*facts))
    assert ack.status == XferStatus.NACK_INCOMPAT


# ------------------------------------------------------------------------ ack statuses
def test_nack_missing_when_it_is_no_longer_held(served):
    assert ask(served.p2p.address, mm_hash="gone").status == XferStatus.NACK_MISSING


def test_nack_not_ready_while_the_save_has_not_landed(served):
    served.host.add(request("encode b", ("b", 2)))
    served.schedule()
    assert ask(served.p2p.address, mm_hash="b").status == XferStatus.NACK_NOT_READY
    served.drain()
    assert ask(served.p2p.address, mm_hash="b").status == XferStatus.OK
    served.drain()


def test_only_nack_not_ready_is_retryable():
    assert frozenset({XferStatus.NACK_NOT_READY}) == RETRYABLE_NACKS
    assert {status.name for status in XferStatus} == {
        "OK",
        "NACK_MISSING",
        "NACK_NOT_READY",
        "NACK_INCOMPAT",
        "NACK_VERSION",
        "NACK_INTERNAL",
    }


# ------------------------------------------------------------------------- data plane
def test_the_consumer_reads_and_the_producer_never_pushes(served):
    """The bytes come out of the producer's region while its engine does nothing."""
    host, port = served.p2p.address
    params = {"a": {"peer_host": host, "peer_port": port, "size_bytes": 3 * BLOCK}}
    with engine(role="ec_consumer", p2p=InsidePeers()) as c:
        steps = served.host.steps
        r = request("decode", ("a", 3), params=params, has_media=False)
        c.run(r)
        assert r.finished == "length"
        assert served.host.steps == steps
    served.drain()


def test_one_connection_per_producer_however_many_reads(monkeypatch):
    """A DEALER for each producer that is named, not for each encoding."""
    opened: list[tuple[str, int]] = []
    connect = ControlClient.open

    def counting(self: ControlClient, peer: tuple[str, int], now: float) -> None:
        opened.append(peer)
        connect(self, peer, now)

    monkeypatch.setattr(ControlClient, "open", counting)
    with (
        engine(role="ec_producer", p2p=InsidePeers()) as one,
        engine(role="ec_producer", p2p=InsidePeers()) as other,
        engine(role="ec_consumer", p2p=InsidePeers()) as c,
    ):
        for producer, names in ((one, "abc"), (other, "de")):
            for name in names:
                producer.run(request(f"encode-{name}", (name, 1)))
                host, port = producer.p2p.address
                params = {name: {"peer_host": host, "peer_port": port, "size_bytes": BLOCK}}
                r = request(f"decode-{name}", (name, 1), params=params, has_media=False)
                # Not ``run``, which lets so much time pass that idle connections are closed.
                c.host.add(r)
                while not r.finished:
                    c.step_and_play()
                assert r.finished == "length"
        c.drain()
        assert opened == [one.p2p.address, other.p2p.address]


def test_producer_restart_recovery_needs_no_new_handshake():
    """The ack carries the agent's metadata: the next read simply works."""
    with engine(role="ec_consumer", p2p=RealPeers()) as c:
        with engine(role="ec_producer", p2p=RealPeers()) as first:
            first.run(request("encode", ("a", 3)))
            host, port = first.p2p.address
            params = {"a": {"peer_host": host, "peer_port": port, "size_bytes": 3 * BLOCK}}
            c.run(request("one", ("a", 3), params=params, has_media=False))
            first.drain()
        with engine(role="ec_producer", p2p=RealPeers(port=port)) as second:
            second.run(request("encode", ("b", 2)))
            params = {"b": {"peer_host": host, "peer_port": port, "size_bytes": 2 * BLOCK}}
            deadline = time.monotonic() + 60
            for number in range(10_000):
                r = request(f"two{number}", ("b", 2), params=params, has_media=False)
                c.run(r)
                # Until the loss of the first process is past, requests fail fast.
                if r.finished == "length":
                    break
                assert time.monotonic() < deadline
                time.sleep(0.05)
            until(lambda: c.p2p.counters()["reads_done"] == 2, "the figures of the readers")
            second.drain()


# --------------------------------------------------------------------------- timeouts
def test_timeouts_2_s_ack_20_s_read_60_s_quarantine_30_s_lease():
    timing = Timing()
    assert (timing.ack_timeout_s, timing.read_timeout_s) == (2.0, 20.0)
    assert (timing.quarantine_s, timing.lease_s) == (60.0, 30.0)


def test_an_unclaimed_grant_is_released_after_the_lease(served):
    assert ask(served.p2p.address).status == XferStatus.OK
    assert grants_keep(served, "a")
    served.now += 29.0
    assert grants_keep(served, "a")
    served.now += 2.0
    assert not grants_keep(served, "a")
    assert served.p2p.counters()["expired"] == 1
