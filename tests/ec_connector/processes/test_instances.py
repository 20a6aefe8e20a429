# SPDX-License-Identifier: Apache-2.0
"""A producer and a consumer with all their processes, and the deaths of these."""

from __future__ import annotations

import logging
import os
import signal

import pytest

from tests.needs import needs

needs("nixl", "zmq")

import zmq

from ec_protocol.p2p import wire
from ec_protocol.p2p.wire import XferReq, XferStatus
from tests.ec_connector.processes.alive import (
    children,
    complete,
    everybody,
    gone,
    name,
    parent_of,
    standing,
    wait_complete,
    wait_gone,
    working,
)
from tests.ec_connector.processes.arriving import arrives, fresh, served
from tests.world.instance import BLOCK, Instance, Node, wait_for

pytest_plugins = ["tests.ec_connector.processes.complete_pair"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.mark.clause("EC-14.6")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
def test_the_next_server_serves_where_it_did(
    producer: Node, consumer: Node, how: signal.Signals
) -> None:
    served(producer, consumer)
    address, (first,) = producer.address, working(producer, "server")
    readers = working(consumer, "reader")
    exits = producer.data.figures.exits["server"]
    os.kill(first, how)
    wait_for(lambda: first not in working(producer, "server"), "the exit")
    wait_for(lambda: producer.data.address is not None, "the next one")
    assert producer.address == address
    served(producer, consumer)
    assert producer.data.figures.exits["server"] == exits + 1
    assert working(consumer, "reader") == readers, "nobody else went"
    wait_gone(first)


@pytest.mark.clause("EC-14.2", "EC-14.6")
def test_a_grant_survives_its_server_in_the_ledger(producer: Node, consumer: Node) -> None:
    encoding, data = fresh(producer)
    entry = producer.tier.get(encoding)
    assert entry is not None
    offers = producer.link.offers
    assert offers is not None
    (server,) = working(producer, "server")
    # A peer that asks, and is never heard of again.
    context = zmq.Context()
    peer = context.socket(zmq.DEALER)
    peer.connect("tcp://{}:{}".format(*producer.address))
    request = XferReq(encoding, producer.data._spec.compat_hash, "s.1", 2, 1, "s")
    peer.send_multipart([b"", wire.encode(request)])
    wait_for(lambda: bool(peer.poll(0)), "the answer")
    granted = wire.decode_ack(peer.recv_multipart())
    context.destroy(linger=0)
    assert granted.status == XferStatus.OK
    slot = offers._offers[entry.entry_id].slot
    end = offers.ledger.needed_until(slot)
    assert producer.clock() < end <= producer.clock() + offers.lease_s
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: server not in working(producer, "server"), "the exit")
    wait_for(lambda: bool(working(producer, "server")), "the next one")
    arrives(encoding, data, producer, consumer)
    wait_for(lambda: not offers._needed(slot, end), "the end of what was granted after it")
    assert offers.ledger.needed_until(slot) == end, "nobody lowers what another one has promised"
    assert not offers.may_evict(entry)


@pytest.mark.clause("EC-14.8")
def test_a_fetch_whose_reader_is_killed_is_lent_to_another(producer: Node, consumer: Node) -> None:
    encoding, data = fresh(producer)
    loans = consumer.link.loans
    assert loans is not None
    before = loans.counters["relent"]
    (server,) = working(producer, "server")
    with standing(server):
        assert consumer.ask(encoding, producer.address, len(data), "mid") == "pending"
        (loan,) = loans._loans.values()
        pid = consumer.data._data[loan.reader].pid
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: loans.counters["relent"] == before + 1, "the next loan")
        (again,) = loans._loans.values()
        assert again.reader != loan.reader
        assert again.entry is not loan.entry
    assert consumer.fetch(encoding, producer.address, len(data), "mid") == "ready"
    assert consumer.bytes_of(encoding) == data
    wait_gone(pid)


@pytest.mark.clause("EC-14.5", "EC-14.9")
@pytest.mark.parametrize("kind", ["server", "reader"])
def test_one_that_stands_still_is_killed_and_replaced(
    producer: Node, consumer: Node, kind: str, caplog
) -> None:
    node = producer if kind == "server" else consumer
    pid = working(node, kind)[0]
    with standing(pid), caplog.at_level(logging.INFO):
        wait_for(lambda: pid not in working(node, kind), "its end")
        told = "is killed: stalled"
        wait_for(lambda: any(f"{kind} " in m and told in m for m in caplog.messages), "the word")
    wait_complete(node)
    served(producer, consumer)
    wait_gone(pid)


@pytest.mark.clause("EC-14.5")
def test_a_spare_that_stands_still_is_replaced_and_nobody_else(producer: Node) -> None:
    (server,) = working(producer, "server")
    (spare,) = set(children(parent_of(producer))) - {server}
    with standing(spare):
        wait_gone(spare)
    wait_complete(producer)
    assert working(producer, "server") == [server]


@pytest.mark.clause("EC-14.1")
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_parent_that_goes_takes_its_own_with_it_and_another_one_comes(
    producer: Node, consumer: Node, how: str
) -> None:
    address, old = producer.address, everybody(producer)
    numbers = set(producer.data._data)
    if how == "killed":
        os.kill(old[0], signal.SIGKILL)
    else:
        os.kill(old[0], signal.SIGSTOP)
    wait_for(lambda: parent_of(producer) != old[0], "another parent", 120.0)
    wait_gone(*old[1:])
    wait_complete(producer)
    assert producer.address == address
    assert min(producer.data._data) > max(numbers), "no number is used again (EC-9.2)"
    served(producer, consumer)


def test_a_storm_of_deaths_ends_with_everybody_there(producer: Node, consumer: Node) -> None:
    """Whoever works is killed again and again; what is asked for meanwhile is answered."""
    descriptors = len(os.listdir("/proc/self/fd"))
    for round_ in range(6):
        for node, kind in ((producer, "server"), (consumer, "reader")):
            for pid in working(node, kind)[: 1 + round_ % 2]:
                os.kill(pid, signal.SIGKILL)
        encoding, data = fresh(producer)
        address = producer.data.address
        if address is not None:
            asked = f"storm{round_}"
            if consumer.fetch(encoding, address, len(data), asked) == "ready":
                assert consumer.bytes_of(encoding) == data
            consumer.node.leave(asked, consumer.clock())
        consumer.tier.check()
        producer.tier.check()
    wait_complete(producer)
    wait_complete(consumer)
    served(producer, consumer)
    loans = consumer.link.loans
    assert loans is not None
    wait_for(lambda: len(loans) == 0, "all loans")
    assert consumer.tier.quarantined_blocks == 0
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2


@pytest.mark.clause("EC-14.4")
def test_while_an_engine_stands_still_nothing_grows_and_everything_goes_on(
    producer: Node, consumer: Node
) -> None:
    """Its data processes die and are replaced; what it is told of that has a bound."""
    served(producer, consumer)
    (first,) = working(producer, "server")
    parent = parent_of(producer)
    with producer.standing_still():
        for _ in range(3):
            servers = {pid for pid in children(parent) if name(pid) == "ec-server"}
            os.kill(min(servers), signal.SIGKILL)
            os.kill(max(servers), signal.SIGKILL)
            wait_for(lambda s=servers: not s & set(children(parent)), "their ends")
            wait_for(
                lambda: sum(name(pid) == "ec-server" for pid in children(parent)) == 2, "the next"
            )
        held = len(os.listdir(f"/proc/{parent}/fd"))
        assert held < 80
        assert working(producer, "server") == [first], "it does not know yet"
    wait_complete(producer)
    served(producer, consumer)
    wait_for(lambda: len(os.listdir(f"/proc/{parent}/fd")) <= held, "what waited for the engine")


@pytest.mark.clause("EC-14.10")
def test_an_idle_engine_whose_parent_died_has_another_one_after_its_next_step(
    producer: Node, consumer: Node
) -> None:
    """Nobody else starts one, and nobody serves until then."""
    address, old = producer.address, everybody(producer)
    with producer.standing_still():
        os.kill(old[0], signal.SIGKILL)
        wait_for(lambda: gone(*old[1:]), "the ends of its children")
        encoding = consumer.fetch("idle", address, BLOCK, "idle")
        assert encoding == "failed", "who asks meanwhile falls back"
    producer.turn()
    assert parent_of(producer) != old[0]
    wait_complete(producer)
    assert producer.address == address
    served(producer, consumer)


def test_the_engines_descriptors_and_processes_are_as_many_as_at_first(
    producer: Node, consumer: Node
) -> None:
    """After all of the above."""
    for node in (producer, consumer):
        wait_for(lambda n=node: complete(n), "all")
        assert len(node.data._by_fd) == 2 * len(node.data._data)
        assert len(children(parent_of(node))) == (2 if node is producer else 3)
    assert not [pid for pid in children(os.getpid()) if name(pid) == ""]
    assert Instance.running
    assert not gone(os.getpid())
