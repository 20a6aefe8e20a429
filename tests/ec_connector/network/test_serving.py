# SPDX-License-Identifier: Apache-2.0
"""The work of a server, step by step: requests, notices, leases, events, and its end."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.needs import needs

needs("zmq", "msgspec")

import zmq

from ec_connector.network.control import ControlServer
from ec_connector.network.data.base import DataPlaneError
from ec_connector.network.stats import NetworkStats
from ec_connector.processes import server as server_module
from ec_connector.processes import serving as serving_module
from ec_connector.processes.memory import Shared
from ec_connector.processes.server import DataProcessError, Server
from ec_connector.processes.serving import Serving
from ec_connector.processes.spec import EventsSpec
from ec_protocol.errors import ECError
from ec_protocol.offers.table import (
    format_ledger,
    format_table,
    ledger_bytes,
    slots_for,
    table_bytes,
)
from ec_protocol.p2p import wire, words
from ec_protocol.p2p.wire import XferReq
from ec_protocol.tables.timing import Timing
from tests.ec_connector.network.played import End, ServerPlane, data_spec
from tests.world.core import BLOCK, COMPAT, World

HERE = "127.0.0.1"


@pytest.fixture
def context() -> Iterator[Any]:
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


class Control:
    """The control socket: requests are put in, answers are kept."""

    def __init__(self) -> None:
        self.sockets: list[Any] = []
        self.requests: list[tuple[bytes, list[bytes]]] = []
        self.answers: list[bytes] = []
        self.closed = False

    def receive(self) -> list[tuple[bytes, list[bytes], bytes]]:
        requests, self.requests = self.requests, []
        return [(socket, frames, socket) for socket, frames in requests]

    def send(self, identity: bytes, payload: bytes) -> bool:
        self.answers.append(payload)
        return True

    def close(self) -> None:
        self.closed = True


class Bench:
    """A producer with one encoding, whose plane, socket and clock a test has."""

    def __init__(self, context: Any) -> None:
        self.world = World().producer
        self.world.save("h", BLOCK)
        self.grants = self.world.grants
        self.plane = ServerPlane()
        self.now = 1000.0
        self.stats = NetworkStats()
        self.serving = Serving(
            context,
            self.grants,
            self.plane,
            (HERE, 0),
            timing=Timing(),
            clock=lambda: self.now,
            stats=self.stats,
        )
        self.serving._server.close()
        self.control = Control()
        self.serving._server = self.control  # type: ignore[assignment]

    def grant(self) -> None:
        request = XferReq("h", COMPAT, "c.1", 2, 1, "c")
        self.control.requests.append((b"peer", [b"", wire.encode(request)]))
        self.serving.turn()
        assert self.grants.open_grants == 1


@pytest.fixture
def bench(context: Any) -> Iterator[Bench]:
    made = Bench(context)
    yield made
    made.serving.close()
    made.serving.close()


# ------------------------------------------------------------------------ grants and notices
@pytest.mark.clause("EC-5.5")
def test_a_lease_ends_by_itself_when_its_time_is_up(bench: Bench) -> None:
    bench.grant()
    assert bench.serving.next_deadline() == bench.now + Timing().lease_s
    bench.now += Timing().lease_s
    bench.serving.turn()
    assert bench.grants.open_grants == 0


def test_a_notice_ends_its_grant(bench: Bench) -> None:
    bench.grant()
    bench.plane.notices.append(b"c.1:h")
    assert bench.serving.turn()
    assert bench.grants.open_grants == 0


@pytest.mark.clause("EC-8.1")
def test_a_notice_that_cannot_be_read_is_counted_and_ends_nothing(bench: Bench) -> None:
    bench.grant()
    bench.plane.error = DataPlaneError("of noise")
    bench.serving.turn()
    assert bench.stats.counts["malformed_frames"] == 1
    assert bench.grants.open_grants == 1


def test_the_last_packets_get_a_little_progress(bench: Bench) -> None:
    assert not bench.serving.transferring(bench.now)
    bench.serving.turn()
    assert bench.plane.polls == 0, "nobody reads from here"
    bench.grant()
    bench.plane.notices.append(b"c.1:h")
    bench.serving.turn()
    assert bench.grants.open_grants == 0
    assert bench.serving.transferring(bench.now)
    bench.now += 2 * serving_module._LINGER_S
    assert not bench.serving.transferring(bench.now)
    polls = bench.plane.polls
    bench.serving.turn()
    assert bench.plane.polls == polls


@pytest.mark.clause("EC-8.1")
def test_a_request_that_cannot_be_read_is_counted_and_the_next_is_answered(bench: Bench) -> None:
    bench.control.requests.append((b"peer", [b"", b"\xff"]))
    bench.grant()
    assert len(bench.control.answers) == 1
    assert bench.stats.counts["malformed_frames"] == 1


# -------------------------------------------------------------------------------- its end
@pytest.mark.clause("EC-5.4")
def test_the_memory_is_withdrawn_before_its_grants_end(bench: Bench) -> None:
    """Or somebody could still read what is in use for something else."""
    bench.grant()
    open_then: list[int] = []
    bench.plane.at_close = lambda: open_then.append(bench.grants.open_grants)
    bench.serving.close()
    assert open_then == [1]
    assert bench.grants.open_grants == 0


def test_what_cannot_be_closed_keeps_nothing_else_open(bench: Bench) -> None:
    def refuse() -> None:
        raise RuntimeError("no")

    bench.grant()
    bench.plane.at_close = refuse
    bench.serving.close()
    assert bench.grants.open_grants == 0
    assert bench.control.closed
    bench.plane.at_close = lambda: None


# --------------------------------------------------------------------------- the process
@pytest.fixture
def memory() -> Iterator[tuple[int, int]]:
    """Descriptors of a table and a ledger, as a server is handed them."""
    slots = slots_for(16)
    table = Shared.create("ec-test-table", table_bytes(slots))
    ledger = Shared.create("ec-test-ledger", ledger_bytes(slots))
    format_table(table.view, slots, b"k" * 16)
    format_ledger(ledger.view, slots)
    yield table.read_only(), ledger.fd
    table.close()
    ledger.close()


@pytest.mark.clause("EC-14.2", "EC-14.6")
def test_a_ledger_has_one_server_and_its_table_cannot_be_written(memory: tuple[int, int]) -> None:
    spec = msgspec.structs.replace(data_spec("server"), table=memory[0], ledger=memory[1])
    _, _, locks = server_module._map_offered(spec)
    with pytest.raises(DataProcessError, match="another server still has the ledger"):
        server_module._map_offered(spec)
    locks.close()


@pytest.mark.clause("EC-14.4")
def test_what_the_engine_says_is_heard_whatever_is_done_with_it() -> None:
    engine = End()
    server = Server(data_spec("server"), engine, None, 0)  # type: ignore[arg-type]
    engine.coming.append(words.Events([], 3))
    server.turn()
    assert engine.coming == []
    server.close()


class Publisher:
    """Keeps what it is told to publish, and when it was published."""

    sockets: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.added: list[int] = []
        self.turned_after: list[int] = []
        self.closed = False

    def add(self, events: Any, missing: int) -> None:
        self.added.append(missing)

    def turn(self, now: float) -> bool:
        self.turned_after.append(len(self.added))
        return False

    def next_deadline(self) -> float | None:
        return None

    def close(self) -> None:
        self.closed = True


@pytest.mark.clause("EC-13.2")
def test_what_was_said_last_is_published_before_the_end() -> None:
    engine = End()
    server = Server(data_spec("server"), engine, None, 0)  # type: ignore[arg-type]
    server._events = publisher = Publisher()
    engine.coming.append(words.Events([], 3))
    server.goodbye()
    assert (publisher.added, publisher.turned_after, publisher.closed) == ([3], [1], True)
    server.close()


def test_a_server_that_cannot_publish_gives_its_port_back(
    context: Any, memory: tuple[int, int], monkeypatch
) -> None:
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        port = int(probe.getsockname()[1])

    def refuse(self: Server, spec: Any) -> Any:
        raise ECError("no")

    monkeypatch.setattr(Server, "_publisher", refuse)
    events = EventsSpec(endpoint="tcp://*:0", replay_endpoint=None, topic="", buffer=1, queue=1)
    spec = data_spec("server", bind=(HERE, port), events=events)
    spec = msgspec.structs.replace(spec, table=memory[0], ledger=memory[1])
    # Held, so that nobody else's end closes it.
    with pytest.raises(ECError, match="no") as refused:
        Server(spec, End(), ServerPlane(), 1 << 32)  # type: ignore[arg-type]
    ControlServer(context, HERE, port, Timing()).close()
    del refused
