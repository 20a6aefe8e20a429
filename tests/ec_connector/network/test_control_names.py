# SPDX-License-Identifier: Apache-2.0
"""Peers with names that take their time: nobody else waits for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.needs import needs

needs("zmq", "msgspec")

import zmq

from ec_connector.config.peers import AllowedPeers
from ec_connector.network import control
from ec_connector.network.control import ControlClient
from ec_connector.network.names import Names
from ec_protocol.tables.timing import Timing
from tests.ec_connector.network.test_control import HERE, changes, server
from tests.world.instance import wait_for


@pytest.fixture
def context() -> Iterator[Any]:
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


class Slow:
    """A resolver that answers when it is let."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self, name: str) -> tuple[str, ...]:
        assert self.go.wait(100)
        return (HERE,)


@pytest.fixture
def slow(context) -> Iterator[tuple[ControlClient, Slow]]:
    resolver = Slow()
    names = Names(resolver)
    made = ControlClient(context, Timing(), names, allowed=AllowedPeers(["*"]))
    yield made, resolver
    resolver.go.set()
    made.close_all()
    names.close()


def test_what_is_sent_before_the_name_is_known_goes_out_then(context, slow):
    client, resolver = slow
    bound = server(context)
    peer = ("slow.example", bound.port)
    client.open(peer, 0.0)
    assert client.send(peer, b"first")
    assert client.send(peer, b"second")
    assert client.changes(0.0) == []
    assert client.next_deadline() == 4.0
    assert len(client.sockets) == 1, "the news of the names"
    resolver.go.set()
    assert changes(client) == [(peer, True)]
    heard: list[Any] = []
    wait_for(lambda: heard.extend(m.frames[1] for m in bound.receive()) or len(heard) == 2, "both")
    assert heard == [b"first", b"second"]


def test_a_slow_name_stalls_no_other_peer_and_is_lost_in_time(context, slow):
    client, resolver = slow
    bound = server(context)
    quick, lost = (HERE, bound.port), ("slow.example", bound.port)
    client.open(lost, 0.0)
    client.open(quick, 0.0)
    assert changes(client) == [(quick, True)]
    assert client.changes(3.99) == []
    assert client.changes(4.0) == [(lost, False)]
    assert client.peers == [quick]
    resolver.go.set()
    client.close(lost)
    assert client.changes(5.0) == []


def test_what_waits_for_a_name_is_bounded_and_goes_with_its_peer(slow):
    client, _ = slow
    peer = ("slow.example", 1)
    client.open(peer, 0.0)
    sent = 0
    while client.send(peer, b"x"):
        sent += 1
        assert sent <= control._HIGH_WATER
    assert sent == control._HIGH_WATER
    client.close(peer)
    assert client.peers == []
    assert not client.send(peer, b"x")
    client.open(peer, 0.0)
    assert client.send(peer, b"x"), "a fresh one"


@pytest.mark.clause("EC-15.6")
def test_a_name_that_has_changed_its_meaning_is_not_connected_to(context):
    """It was allowed as it is written; it is looked up, and that is what is judged."""
    listening = server(context)
    meanings = iter([("127.0.0.1",), ("127.0.0.1", "169.254.1.1")])
    names = Names(lambda name: next(meanings))
    for rules, made in ((["encoder-0"], False), (["encoder-0", "127.0.0.1"], True)):
        client = ControlClient(context, Timing(), names, allowed=AllowedPeers(rules))
        peer = ("encoder-0", listening.port)
        client.open(peer, 0.0)
        assert changes(client) == [(peer, made)]
        client.close_all()
        names._known.clear()
    names.close()


@pytest.mark.clause("EC-15.6")
def test_only_the_addresses_that_are_allowed_are_tried(context, monkeypatch):
    tried: list[str] = []

    def record(context, address, *args, **kwargs):
        tried.append(address)
        raise zmq.ZMQError(zmq.EINVAL)

    monkeypatch.setattr(control, "_Connection", record)
    names = Names(lambda name: ("127.0.0.1", "10.0.0.5"))
    client = ControlClient(context, Timing(), names, allowed=AllowedPeers(["encoder-0"]))
    client.open(("encoder-0", 1), 0.0)
    assert changes(client) == [(("encoder-0", 1), False)]
    client.open(("10.0.0.5", 1), 0.0)  # as an address it is nobody's rule
    assert changes(client) == [(("10.0.0.5", 1), False)]
    # Nor is there a way back to one that was tried when it was allowed.
    names._known.clear()
    names._ask = lambda name: ("127.0.0.1",)
    client._avoid["encoder-0"] = "127.0.0.1"
    client.open(("encoder-0", 1), 0.0)
    assert changes(client) == [(("encoder-0", 1), False)]
    assert tried == ["10.0.0.5"]
    names.close()
