# SPDX-License-Identifier: Apache-2.0
"""Events from real producers in processes of their own, over real ZMQ."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs

needs("nixl", "zmq")

import zmq

from ec_connector.events.codec import (
    END_OF_REPLAY,
    Event,
    EventBatch,
    decode,
    encode,
    pack_number,
    unpack_number,
)
from ec_connector.events.stream import Update
from ec_connector.events.subscriber import EventSubscriber
from ec_connector.processes.engine import DataProcessError
from ec_protocol.errors import ConfigError
from tests.ec_connector.network.inside import Inside
from tests.world.instance import BLOCK, Instance, Node, Producer, wait_for
from tests.world.processes import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

# A sign of life every tenth of a second, so that quiet streams need little patience.
LIVELY = {"heartbeat_interval_s": 0.1, "heartbeat_timeout_s": 2.0, "heartbeat_ttl_s": 4.0}


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    return {
        "ec_events_endpoint": f"ipc://{tmp_path}/e",
        "ec_events_replay_endpoint": f"ipc://{tmp_path}/r",
    }


@pytest.fixture
def start() -> Iterator[Callable[..., Producer]]:
    made: list[Producer] = []

    def go(**settings: Any) -> Producer:
        made.append(Producer(**{**LIVELY, **settings}))
        return made[-1]

    yield go
    for producer in made:
        producer.resume()
        producer.kill()


class Listener:
    """A subscriber that remembers what it was told."""

    def __init__(self, *endpoints: str, **settings: Any) -> None:
        self.subscriber = EventSubscriber(*endpoints, **settings)
        self.updates: list[Update] = []

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, f"{what}; heard {self.told()[-9:]}"
            for instance in Instance.running:
                instance.turn()
            self.updates += self.subscriber.poll(0.005)

    def told(self) -> list[tuple[str, str]]:
        """Events as (kind, name), and updates of other kinds as (kind, count)."""
        found: list[tuple[str, str]] = []
        for update in self.updates:
            if update.kind == "events" and update.batch is not None:
                found += [(e.event, e.mm_hash) for e in update.batch.events]
            else:
                found.append((update.kind, str(update.count)))
        return found

    def hear(self, *wanted: tuple[str, str]) -> None:
        self.until(lambda: set(wanted) <= set(self.told()), f"waiting for {wanted}")

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *exc: object) -> None:
        self.subscriber.close()


def messages_of(replay_endpoint: str) -> int:
    """How many messages a publisher has sent, by the last number that it sends again."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(replay_endpoint)
    dealer.send_multipart([b"", pack_number(0)])
    last = -1
    while True:
        assert dealer.poll(20_000)
        _, number, _ = dealer.recv_multipart()
        if number == END_OF_REPLAY:
            break
        last = unpack_number(number)
    context.destroy(linger=0)
    return last + 1


@pytest.mark.clause("EC-13.1")
def test_a_live_subscriber_hears_of_every_encoding_and_who_holds_it(places, start):
    producer = start(blocks=4, **places)
    with Listener(places["ec_events_endpoint"]) as listener:
        # A sign of life, after which nothing is missed.
        listener.until(lambda: bool(listener.updates), "a sign of life")
        names = [producer.save(2 * BLOCK)[0] for _ in range(3)]
        listener.hear(("stored", names[2]), ("evicted", names[0]))
        assert listener.told() == [
            ("stored", names[0]),
            ("stored", names[1]),
            ("evicted", names[0]),
            ("stored", names[2]),
        ]
        batches = [u.batch for u in listener.updates if u.batch is not None]
        assert {(b.host, b.port) for b in batches} == {producer.address}
        assert len({b.incarnation for b in batches}) == 1
        assert abs(batches[-1].ts - time.time()) < 60
        producer.close()
        listener.hear(("stopped", ""))


@pytest.mark.clause("EC-13.4")
def test_a_late_subscriber_is_sent_everything_that_is_still_kept(places, start):
    producer = start(blocks=64, **places)
    names = [producer.save(BLOCK)[0] for _ in range(10)]
    with Listener(*places.values()) as listener:
        listener.hear(*(("stored", name) for name in names))
        assert [name for kind, name in listener.told() if kind == "stored"] == names
        last = producer.save(BLOCK)[0]
        listener.hear(("stored", last))
        assert "missed" not in dict(listener.told())


@pytest.mark.clause("EC-13.3")
@pytest.mark.clause("EC-13.4")
def test_what_is_no_longer_kept_is_told_as_missed(places, start):
    producer = start(blocks=64, **places, ec_events_buffer=3)
    names = []
    for sent in range(1, 7):
        # Events at one time may share a message, and three messages are kept.
        names.append(producer.save(BLOCK)[0])
        wait_for(lambda n=sent: messages_of(places["ec_events_replay_endpoint"]) >= n, "a message")
    with Listener(*places.values()) as listener:
        listener.hear(("stored", names[-1]))
        told = listener.told()
    assert told[0] == ("missed", "3")
    assert [name for kind, name in told if kind == "stored"] == names[3:]


@pytest.mark.clause("EC-13.3")
def test_without_replay_a_late_subscriber_knows_that_it_is_late(places, start):
    producer = start(blocks=64, **places)
    producer.save(BLOCK)
    wait_for(lambda: messages_of(places["ec_events_replay_endpoint"]) == 1, "the event to leave")
    with Listener(places["ec_events_endpoint"]) as listener:
        listener.until(lambda: "missed" in dict(listener.told()), "being late")


@pytest.mark.clause("EC-13.3")
def test_kill_9_is_silence_and_the_next_process_a_restart(places, start):
    first = start(**places)
    with Listener(places["ec_events_endpoint"], silence_s=1.0) as listener:
        listener.until(lambda: bool(listener.updates), "a sign of life")
        first.kill()
        listener.hear(("silent", "0"))
        second = start(**places)
        name = second.save(BLOCK)[0]
        listener.hear(("restarted", "0"))
        listener.until(
            lambda: ("stored", name) in listener.told() or "missed" in dict(listener.told()),
            "the next process",
        )


@pytest.mark.clause("EC-13.5")
def test_a_subscriber_that_does_not_read_delays_nobody(places, monkeypatch):
    """The publisher goes on, with bounded memory, and the sleeper sees the gap."""
    buffer = 16
    monkeypatch.setattr("ec_connector.events.subscriber._HIGH_WATER", 4)
    # 20,000 records of the same would tell TLC nothing.
    extra = {**LIVELY, **places, "ec_events_buffer": buffer, "ec_trace_file": None}
    with (
        Inside("ec_producer", 8, extra=extra) as node,
        Listener(places["ec_events_endpoint"]) as listener,
    ):
        listener.until(lambda: bool(listener.updates), "a sign of life")
        name = "n" * 500
        for number in range(4000):
            node.save(f"{number}{name}"[:500], b"x" * BLOCK)
        node.wait_count("tier_events_published", 4000)
        # Whatever it has missed it can tell: every message is heard or counted.
        sent = node.server._events._number  # type: ignore[union-attr]

        def accounted() -> int:
            heard = sum(bool(u.batch and u.batch.events) for u in listener.updates)
            return heard + sum(u.count for u in listener.updates if u.kind == "missed")

        listener.until(lambda: accounted() == sent, "every message")
        assert "missed" in dict(listener.told())


@pytest.mark.clause("EC-13.5")
def test_a_queue_that_is_full_drops_counts_and_tells(places, start):
    with (
        Inside("ec_producer", 64, extra={**LIVELY, **places, "ec_events_queue": 2}) as node,
        Listener(places["ec_events_endpoint"]) as listener,
    ):
        listener.until(lambda: bool(listener.updates), "a sign of life")
        copies = node.node.copies
        for number in range(5):  # within one hook
            copy = copies.plan_save(f"h{number}", BLOCK)
            assert copy is not None
            copies.submit(copy)
            copies.report(copy.copy_id, 0, landed=True)
        listener.hear(("stored", "h0"), ("stored", "h1"), ("dropped", ""))
        assert "h2" not in dict(listener.told()).values()
        node.wait_count("tier_events_dropped", 3)


@pytest.mark.clause("EC-13.4")
def test_what_is_kept_is_bounded_in_bytes_too(places, monkeypatch):
    monkeypatch.setattr("ec_connector.network.publisher.MAX_KEPT_BYTES", 2000)
    name = "n" * 400
    with Inside("ec_producer", 64, extra={**LIVELY, **places}) as node:
        for number in range(20):  # a message each
            node.save(f"{number}{name}", b"x")
        with Listener(*places.values()) as listener:
            listener.hear(("stored", f"19{name}"))
            stored = [heard for kind, heard in listener.told() if kind == "stored"]
            assert len(stored) < 5
            assert listener.told()[0][0] == "missed"


@pytest.mark.clause("EC-13.4")
def test_garbage_at_the_replay_socket_is_counted_and_it_goes_on(places):
    with Inside("ec_producer", 8, extra={**LIVELY, **places}) as node:
        node.save("a", b"x")
        context = zmq.Context()
        dealer = context.socket(zmq.DEALER)
        dealer.connect(places["ec_events_replay_endpoint"])
        for frames in ([b""], [b"", b"1"], [b"x", pack_number(0)], [b"", b"", b"", b""]):
            dealer.send_multipart(frames)
        dealer.send_multipart([b"", pack_number(0)])
        wait_for(lambda: bool(dealer.poll(0)), "the message")
        empty, number, payload = dealer.recv_multipart()
        assert (empty, unpack_number(number)) == (b"", 0)
        assert decode(payload).events == [Event(event="stored", mm_hash="a", nbytes=1)]
        assert dealer.recv_multipart() == [b"", END_OF_REPLAY, b""]
        assert node.counters()["malformed_frames"] == 4
        # Beyond the end there is nothing, and that is said too.
        dealer.send_multipart([b"", pack_number((1 << 64) - 1)])
        wait_for(lambda: bool(dealer.poll(0)), "the end")
        assert dealer.recv_multipart() == [b"", END_OF_REPLAY, b""]
        context.destroy(linger=0)


@pytest.mark.clause("EC-13.1")
def test_garbage_from_a_publisher_is_counted_and_the_next_message_heard(tmp_path):
    context = zmq.Context()
    publisher = context.socket(zmq.PUB)
    publisher.bind(f"ipc://{tmp_path}/p")
    with Listener(f"ipc://{tmp_path}/p") as listener:
        good = [b"ec", pack_number(0), encode(EventBatch(events=[Event(event="stopped")]))]

        def heard() -> bool:
            for frames in ([b"ec"], [b"ec", b"1", b""], [b"ec", pack_number(0), b"\xc1"]):
                publisher.send_multipart(frames)
            publisher.send_multipart(good)
            return ("stopped", "") in listener.told()

        listener.until(heard, "the good one")
        assert listener.subscriber.malformed >= 2
    context.destroy(linger=0)


@pytest.mark.parametrize("key", ["ec_events_endpoint", "ec_events_replay_endpoint"])
def test_an_endpoint_that_is_in_use_stops_the_start_and_leaves_nothing(places, key):
    context = zmq.Context()
    socket = context.socket(zmq.PULL)
    taken = f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
    try:
        with pytest.raises(DataProcessError, match=f"{key}='{taken}'"):
            Node("ec_producer", 8, extra={**places, key: taken})
    finally:
        context.destroy(linger=0)
    with Node("ec_producer", 8, extra=places):
        pass


def test_an_endpoint_that_cannot_be_connected_to_is_named():
    with pytest.raises(ConfigError, match="events endpoint 'smtp://x'"):
        EventSubscriber("smtp://x")


def test_a_consumer_publishes_what_it_fetched(places):
    """Its tier serves its own requests: for a router that is worth knowing."""
    data = b"p" * BLOCK
    with (
        Inside("ec_producer", 8) as producer,
        Inside("ec_consumer", 8, extra={**LIVELY, **places}) as consumer,
        Listener(places["ec_events_endpoint"]) as listener,
    ):
        listener.until(lambda: bool(listener.updates), "a sign of life")
        producer.save("a", data)
        assert consumer.fetch("a", producer.address, len(data)) == "ready"
        assert consumer.fetch("gone", producer.address, len(data), "another") == "failed"
        listener.hear(("stored", "a"), ("lost", "gone"))
        batch = next(u.batch for u in listener.updates if u.batch is not None)
        assert (batch.host, batch.port) == (None, None)


def test_the_command_prints_one_json_object_a_line(places, start):
    producer = start(blocks=64, **places)
    name = producer.save(BLOCK)[0]
    endpoint, replay = places.values()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ec_connector.cli", "events", endpoint),
            *("--replay", replay, "--count", "1"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (line["event"], line["mm_hash"], line["nbytes"]) == ("stored", name, BLOCK)
    assert line["engine_id"].startswith("test-")
