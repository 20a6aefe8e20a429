# SPDX-License-Identifier: Apache-2.0
"""The proxy with events of its encoders: what it uses again, and what it forgets."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.needs import needs

needs("aiohttp", "prometheus_client", "zmq")

import zmq

from ec_connector.events.codec import Event, EventBatch, encode, pack_number
from ec_connector.proxy.settings import ProxySettings
from ec_connector.proxy.watch import EventWatch
from ec_protocol.errors import ConfigError
from tests.world.servers import World, chat, image, in_world, name_of, run, scenario, world

RED, GREEN = image("red"), image("green")
WHERE = ("127.0.0.1", 5701)  # what the fake encoder announces


# ----------------------------------------------------------------------- over the wire
class Publisher:
    """An encoder's event socket."""

    def __init__(self, path: Path) -> None:
        self.context = zmq.Context()
        self.endpoint = f"ipc://{path}/events"
        self.socket = self.context.socket(zmq.PUB)
        self.socket.bind(self.endpoint)
        self.numbers = itertools.count()
        self.incarnation = "one"

    def say(self, *events: tuple[str, str], number: int | None = None) -> None:
        batch = EventBatch(
            incarnation=self.incarnation,
            host=WHERE[0],
            port=WHERE[1],
            events=[Event(event=kind, mm_hash=name) for kind, name in events],
        )
        at = next(self.numbers) if number is None else number
        self.socket.send_multipart([b"ec", pack_number(at), encode(batch)])

    async def heard(self, w: World) -> None:
        """Speak until the proxy listens."""
        while (await w.sample("ec_proxy_events_total")) < 1:
            self.say(("stored", "hello"))
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """On a busy machine nobody is taken for silent, except where that is what is tested."""

    def be(seconds: float) -> None:
        monkeypatch.setitem(EventWatch.__init__.__kwdefaults__, "silence_s", seconds)

    be(120.0)
    return be


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    made = Publisher(tmp_path)
    yield made
    made.context.destroy(linger=0)


async def until(w: World, condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def still_heard(w: World) -> bool:
    """Whether what was forgotten was forgotten for another reason than silence."""
    return WHERE in w.proxy._announced._watched


@scenario
async def test_silence_forgets_too(publisher, patience):
    patience(0.5)
    async with world(events=(publisher.endpoint,)) as w:
        await publisher.heard(w)
        await w.post(chat(RED))
        await until(w, lambda: len(w.proxy._announced) == 0)
        assert not still_heard(w)


def references(w: World) -> list[bool]:
    return ["image_embeds" in json.dumps(request) for request in w.decoder.requests]


@scenario
async def test_an_announcement_is_used_again_until_an_event_says_that_it_is_gone(publisher):
    async with world(events=(publisher.endpoint,)) as w:
        await publisher.heard(w)
        for _ in range(3):
            assert (await w.post(chat(RED)))[0] == 200
        assert len(w.encoder.requests) == 1
        assert references(w) == [True] * 3
        assert (
            w.decoder.requests[0]["ec_transfer_params"]
            == (w.decoder.requests[2]["ec_transfer_params"])
        )
        publisher.say(("evicted", name_of(RED)))
        await until(w, lambda: len(w.proxy._announced) == 0)
        assert still_heard(w)
        assert (await w.post(chat(RED)))[0] == 200
        assert len(w.encoder.requests) == 2
        assert await w.sample('ec_proxy_announcements_total{outcome="reused"}') == 2
        assert await w.sample('ec_proxy_announcements_total{outcome="forgotten"}') == 1


@pytest.mark.parametrize("kind", ["lost", "quarantined", "retired", "dropped", "stopped"])
@scenario
async def test_every_event_after_which_it_cannot_be_read_forgets_it(publisher, kind):
    async with world(events=(publisher.endpoint,)) as w:
        await publisher.heard(w)
        await w.post(chat(RED))
        assert len(w.proxy._announced) == 1
        publisher.say((kind, name_of(RED)))
        await until(w, lambda: len(w.proxy._announced) == 0)
        assert still_heard(w) == (kind != "stopped")


@scenario
async def test_a_gap_or_a_restart_forgets_everything(publisher):
    async with world(events=(publisher.endpoint,)) as w:
        await publisher.heard(w)
        await w.post(chat(RED))
        publisher.say(number=1_000_000)
        await until(w, lambda: len(w.proxy._announced) == 0)
        assert still_heard(w)
        publisher.say(("stored", "x"), number=1_000_000)
        await w.post(chat(RED))
        assert len(w.proxy._announced) == 1
        publisher.incarnation = "two"
        publisher.say(("stored", "x"), number=0)
        await until(w, lambda: len(w.proxy._announced) == 0)


@scenario
async def test_evicted_while_another_piece_is_being_encoded_it_is_encoded_again(publisher):
    """No reference goes out that is known to fail."""
    async with world(encoders=2, events=(publisher.endpoint,)) as w:
        await publisher.heard(w)
        await w.post(chat(RED))  # the first encoder has it
        assert len(w.encoders[0].requests) == 1
        for encoder in w.encoders:
            encoder.gate = asyncio.Event()
        pending = asyncio.create_task(w.post(chat(RED, GREEN)))
        await until(w, lambda: sum(len(e.requests) for e in w.encoders) == 2)
        publisher.say(("evicted", name_of(RED)))
        await until(w, lambda: len(w.proxy._announced) == 0)
        assert still_heard(w)
        for encoder in w.encoders:
            encoder.gate.set()
        assert (await pending)[0] == 200
        assert sum(len(e.requests) for e in w.encoders) == 3
        assert await w.sample('ec_proxy_announcements_total{outcome="lost"}') == 1
        assert references(w)[-1]


@scenario
async def test_lost_twice_the_media_stays(publisher):
    async with world(events=(publisher.endpoint,)) as w:
        await publisher.heard(w)
        w.encoder.gate = asyncio.Event()
        body = chat(RED)
        pending = asyncio.create_task(w.post(body))
        for count in (1, 2):
            await until(w, lambda count=count: len(w.encoder.requests) == count)
            gone = len(w.proxy._announced._gone)
            publisher.say(("evicted", name_of(RED)), ("evicted", f"{count}"))
            await until(w, lambda gone=gone: len(w.proxy._announced._gone) > gone)
            gate, w.encoder.gate = w.encoder.gate, asyncio.Event()
            gate.set()
        assert (await pending)[0] == 200
        assert w.decoder.requests == [body]


@scenario
async def test_a_decoder_that_finds_it_lost_makes_the_proxy_forget_it(publisher):
    async with world(events=(publisher.endpoint,)) as w:
        await publisher.heard(w)
        await w.post(chat(RED))
        w.decoder.loses = True
        assert (await w.post(chat(RED)))[0] == 200
        assert len(w.proxy._announced) == 0


@scenario
async def test_a_watch_that_breaks_makes_the_proxy_forget_everything(
    publisher, monkeypatch, caplog
):
    async with world(events=(publisher.endpoint,)) as w:
        await publisher.heard(w)
        await w.post(chat(RED))
        assert len(w.proxy._announced) == 1

        def broken(self):
            raise ValueError("test")

        monkeypatch.setattr("ec_connector.events.subscriber.EventSubscriber.receive", broken)
        publisher.say(("stored", "x"))
        await until(w, lambda: len(w.proxy._announced) == 0)
        assert (await w.post(chat(RED)))[0] == 200
        assert len(w.proxy._announced) == 0
        assert "not heard any more" in caplog.text


@in_world()
async def test_without_events_every_request_asks_the_encoder(w):
    for _ in range(2):
        await w.post(chat(RED))
    assert len(w.encoder.requests) == 2


@scenario
async def test_events_that_never_come_change_nothing(tmp_path):
    async with world(events=(f"ipc://{tmp_path}/nobody",)) as w:
        for _ in range(2):
            assert (await w.post(chat(RED)))[0] == 200
        assert len(w.encoder.requests) == 2
        assert references(w) == [True, True]


@pytest.mark.parametrize("endpoint", ["10.0.0.5:5650", "http://h:1", "tcp://", "tcp://*:5650"])
def test_a_wrong_endpoint_is_named(endpoint):
    with pytest.raises(ConfigError, match="--events="):
        ProxySettings(encoders=("http://a",), decoders=("http://b",), events=(endpoint,))


def test_the_same_endpoint_twice_is_named():
    with pytest.raises(ConfigError, match="--events: named twice"):
        ProxySettings(
            encoders=("http://a",), decoders=("http://b",), events=("tcp://h:1", "tcp://h:1")
        )


@pytest.mark.e2e
def test_with_a_real_producer_in_another_process(tmp_path, patience):
    """Its tier holds two encodings; the third makes the first give way, and it dies."""
    patience(5.0)
    needs("nixl")
    from tests.world.instance import BLOCK, Producer

    producer = Producer(
        blocks=2, heartbeat_interval_s=0.1, ec_events_endpoint=f"ipc://{tmp_path}/e"
    )

    async def scenario():
        async with world(events=(f"ipc://{tmp_path}/e",)) as w:
            w.encoder.peer = producer.address
            await until(w, lambda: bool(w.proxy._announced._watched))
            for part in (RED, GREEN):
                await asyncio.to_thread(producer.tell, f"{name_of(part)} {BLOCK} 1")
                for _ in range(2):
                    assert (await w.post(chat(part)))[0] == 200
            assert len(w.encoder.requests) == 2
            await asyncio.to_thread(producer.tell, f"third {BLOCK} 1")
            await until(w, lambda: len(w.proxy._announced) == 1)
            for part in (GREEN, RED):
                assert (await w.post(chat(part)))[0] == 200
            assert len(w.encoder.requests) == 3, "only the evicted one was asked for again"
            producer.kill()
            await until(w, lambda: len(w.proxy._announced) == 0)
            assert references(w) == [True] * 6

    try:
        run(scenario(), timeout_s=120)
    finally:
        producer.kill()


# ------------------------------------------------------- a decoder that announces itself
@in_world()
async def test_addresses_that_a_decoder_announces_do_not_reach_clients(w):
    """``ec_both`` announces what it holds; its hosts are nobody's business outside."""
    w.decoder.more = {"ec_transfer_params": {"h": {"peer_host": "10.0.0.9", "peer_port": 5601}}}
    status, answer = await w.post(chat(RED))
    assert status == 200
    assert answer["ec_transfer_params"] is None
    assert "10.0.0.9" not in json.dumps(answer)
    assert answer["choices"][0]["message"]["content"] == "a red square"


def test_an_answer_that_announces_nothing_stays_the_same_bytes():
    from ec_connector.proxy.answers import without_addresses

    for body in (
        b'{"a":  1.0}',
        b'{"ec_transfer_params":null, "n": 1e2}',
        b'{"kv_transfer_params" :\n null}',
        b'{"a": {"b": {"ec_transfer_params": {}}},  "n": 1e2}',
        b'["ec_transfer_params"]',
        b'{"ec_transfer_params": ',
        b'"ec_transfer_params"' + b"[" * 100_000,
    ):
        assert without_addresses(body) == body
