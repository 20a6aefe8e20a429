# SPDX-License-Identifier: Apache-2.0
"""Instances with keys, with all their processes: who reads from whom, and where the secret is."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.needs import needs

needs("nixl", "zmq")

import zmq

from ec_protocol.announcements import is_public_key
from ec_protocol.items import make_item
from ec_protocol.p2p import wire
from tests.ec_connector.processes.alive import children, parent_of, wait_complete, working
from tests.world.instance import BLOCK, Node, wait_for
from tests.world.keys import Fleet, new_pair

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PATIENT = {"data_start_s": 120.0, "data_stall_s": 55.0}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def pair(fleet: Fleet) -> Iterator[tuple[Node, Node]]:
    with (
        Node("ec_producer", extra={**PATIENT, **fleet.member("producer")}) as producer,
        Node("ec_consumer", extra={**PATIENT, **fleet.member("consumer")}) as consumer,
    ):
        wait_complete(producer)
        wait_complete(consumer)
        yield producer, consumer


def announced(node: Node, name: str, nbytes: int = BLOCK) -> dict[str, Any]:
    """What the producer says of an encoding."""
    params = node.node.announce([item(name, nbytes)], node.data.address, node.clock())
    assert params[name]["peer_host"] == "127.0.0.1"
    return params


def item(name: str, nbytes: int = BLOCK) -> Any:
    return make_item(name, 1, nbytes // 2, 2)


def wanted(node: Node, name: str, params: dict[str, Any], waiter: str = "r") -> str:
    """Ask as a request does until it is decided."""
    state = "pending"

    def decided() -> bool:
        nonlocal state
        state = node.node.want(item(name), params, waiter, node.clock())
        return state != "pending"

    wait_for(decided, f"{name}")
    node.node.leave(waiter, node.clock())
    return state


@pytest.mark.clause("EC-15.3")
def test_the_key_travels_with_the_announcement_and_the_bytes_arrive(
    pair: tuple[Node, Node], fleet: Fleet
) -> None:
    producer, consumer = pair
    data = os.urandom(BLOCK)
    producer.save("picture", data)
    params = announced(producer, "picture")
    assert params["picture"]["peer_key"] == fleet.pairs["producer"].public
    assert is_public_key(params["picture"]["peer_key"])
    assert wanted(consumer, "picture", params) == "ready"
    assert consumer.bytes_of("picture") == data


@pytest.mark.clause("EC-15.3")
@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("<absent>", "no_peer_key"),
        (None, "no_peer_key"),
        ("short", "bad_peer_key"),
        (7, "bad_peer_key"),
        ("#" * 40, "bad_peer_key"),
        ("<stranger>", "foreign_peer_key"),
    ],
)
def test_a_consumer_with_keys_asks_no_producer_that_it_does_not_know(
    pair: tuple[Node, Node], key: Any, reason: str
) -> None:
    producer, consumer = pair
    producer.save(f"refused-{key}", b"x" * BLOCK)
    params = announced(producer, f"refused-{key}")
    params[f"refused-{key}"]["peer_key"] = new_pair().public if key == "<stranger>" else key
    if key == "<absent>":
        del params[f"refused-{key}"]["peer_key"]
    before = consumer.node.counters[f"params_{reason}"]
    assert wanted(consumer, f"refused-{key}", params) == "failed"
    assert consumer.node.counters[f"params_{reason}"] == before + 1


@pytest.mark.clause("EC-15.3")
def test_a_known_key_at_somebody_elses_address_is_found_out(
    pair: tuple[Node, Node], fleet: Fleet
) -> None:
    """And whoever really is there is not held to be lost for it."""
    producer, consumer = pair
    producer.save("mine", b"m" * BLOCK)
    params = announced(producer, "mine")
    forged = {"mine": {**params["mine"], "peer_key": fleet.pairs["consumer"].public}}
    assert wanted(consumer, "mine", forged, "forger") == "failed"
    consumer.wait_count("handshakes_failed")
    assert wanted(consumer, "mine", params, "honest") == "ready"


@pytest.mark.clause("EC-15.2")
def test_a_stranger_gets_neither_an_answer_nor_the_agents_metadata(
    pair: tuple[Node, Node], fleet: Fleet
) -> None:
    producer, _ = pair
    producer.save("kept", b"k" * BLOCK)
    said = announced(producer, "kept")["kept"]
    port, key = said["peer_port"], said["peer_key"]
    stranger = new_pair()
    compat = producer.data._spec.compat_hash
    request = wire.encode(wire.XferReq("kept", compat, "stranger.1", 2, 1))
    context = zmq.Context()
    try:
        for with_keys in (True, False):
            sock = context.socket(zmq.DEALER)
            if with_keys:
                sock.setsockopt(zmq.CURVE_SERVERKEY, key.encode())
                sock.setsockopt(zmq.CURVE_PUBLICKEY, stranger.public.encode())
                sock.setsockopt(zmq.CURVE_SECRETKEY, stranger.secret.encode())
            before = producer.counters()
            sock.connect(f"tcp://127.0.0.1:{port}")
            sock.send_multipart([b"", request])
            what = "handshakes_refused" if with_keys else "handshakes_failed"
            producer.wait_count(what, before[what] + 1)
            assert not sock.poll(0)
    finally:
        context.destroy(linger=0)


@pytest.mark.clause("EC-15.3")
def test_a_consumer_without_keys_does_not_ask_a_producer_that_has_some(
    pair: tuple[Node, Node],
) -> None:
    producer, _ = pair
    producer.save("keyed", b"k" * BLOCK)
    params = announced(producer, "keyed")
    with Node("ec_consumer", extra=PATIENT) as plain:
        assert wanted(plain, "keyed", params) == "failed"
        assert plain.node.counters["params_unexpected_peer_key"] == 1
        del params["keyed"]["peer_key"]
        assert wanted(plain, "keyed", params) == "failed"
        plain.wait_count("handshakes_failed")


@pytest.mark.clause("EC-15.2")
def test_a_producer_that_is_removed_from_the_list_is_not_read_from_any_more(
    pair: tuple[Node, Node], fleet: Fleet
) -> None:
    producer, consumer = pair
    count = itertools.count()

    def outcome() -> str:
        """Of a new encoding."""
        name = f"fresh{next(count)}"
        producer.save(name, b"f" * BLOCK)
        return wanted(consumer, name, announced(producer, name), name)

    assert outcome() == "ready"
    fleet.remove("producer")
    wait_for(lambda: outcome() == "failed", "the list to be read again")
    assert consumer.node.counters["params_foreign_peer_key"] >= 1
    fleet.admit("producer")
    wait_for(lambda: outcome() == "ready", "the list to be read again")


@pytest.mark.clause("EC-15.4")
def test_the_secret_is_in_no_environment_no_command_line_and_no_other_process(
    pair: tuple[Node, Node], fleet: Fleet
) -> None:
    for node, name in zip(pair, ("producer", "consumer"), strict=True):
        secret = fleet.pairs[name].secret
        parent = parent_of(node)
        for pid in (os.getpid(), parent, *children(parent)):
            process = psutil.Process(pid)
            assert not any(secret in word for word in process.cmdline())
            assert not any(secret in value for value in process.environ().values())
        assert not _in_memory(parent, secret), "the parent has no use for it"
        works = working(node, "server" if name == "producer" else "reader")
        assert all(_in_memory(pid, secret) for pid in works), "the test looks"


def _in_memory(pid: int, text: str) -> bool:
    """Whether a process has a text anywhere in its own memory."""
    wanted = text.encode()
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            where, rights, *_ = line.split()
            if not rights.startswith("rw") or "/dev/shm" in line or "memfd" in line:
                continue
            start, end = (int(number, 16) for number in where.split("-"))
            try:
                memory.seek(start)
                if wanted in memory.read(end - start):
                    return True
            except OSError:
                continue
    return False
