# SPDX-License-Identifier: Apache-2.0
"""What one client can cost: bodies, media, connections, time and memory, over real sockets.

Nothing here measures time. A limit is shown by an answer that comes although the client has
not finished, or by another client that is served meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import resource
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.needs import needs

needs("aiohttp", "prometheus_client")

from ec_connector.proxy import answers, listening, server
from ec_connector.proxy.errors import ProxyError
from ec_connector.proxy.intake import INLINE_BYTES
from ec_connector.proxy.settings import ProxySettings
from ec_connector.proxy.surfaces import SURFACES
from ec_protocol.errors import ConfigError
from tests.world.servers import chat, delta, image, in_world, stream, text

CHAT = "/v1/chat/completions"
RED, GREEN = image("red"), image("green")


def code(answer: Any) -> str:
    said: str = answer["error"]["code"]
    return said


# ------------------------------------------------------------------ before it is parsed
@in_world(max_body_bytes=10_000)
async def test_a_body_that_says_it_is_too_long_is_refused_before_it_comes(w):
    async with w.connection() as wire:
        wire.begin(CHAT, "Content-Length: 10001")
        status, answer = await wire.answer()
    assert (status, code(answer)) == (413, "body_too_large")
    assert "10000 bytes" in answer["error"]["message"]


@in_world(max_body_bytes=10_000)
async def test_a_body_that_goes_on_is_refused_where_it_becomes_too_long(w):
    async with w.connection() as wire:
        wire.begin(CHAT, "Transfer-Encoding: chunked")
        for _ in range(3):
            wire.chunk(b"x" * 4000)
        status, answer = await wire.answer()  # the rest never comes
    assert (status, code(answer)) == (413, "body_too_large")
    assert w.proxy.memory.nbytes == 0


@pytest.mark.parametrize("piece", [b"[],", b'{"type":"image_url","image_url":"d"},', b'"":0,'])
@in_world(max_json_marks=1000)
async def test_a_body_of_many_small_things_is_refused_where_they_become_too_many(w, piece):
    """Parsing would take time and memory that have little to do with its length."""
    async with w.connection() as wire:
        wire.begin(CHAT, "Transfer-Encoding: chunked")
        wire.chunk(b'{"x":[' + piece * 1001)
        status, answer = await wire.answer()
    assert (status, code(answer)) == (413, "body_too_complex")
    assert "1000 commas" in answer["error"]["message"]


@in_world(max_json_marks=1000)
async def test_long_media_has_few_marks(w):
    assert (await w.post(chat(image("A" * 1_000_000))))[0] == 200


@in_world()
async def test_a_packed_body_is_refused_unread(w):
    async with w.connection() as wire:
        wire.begin(CHAT, "Content-Encoding: gzip", "Content-Length: 1000")
        status, answer = await wire.answer()
    assert (status, code(answer)) == (415, "body_encoded")


@in_world(max_media=3)
async def test_too_much_media_is_400_and_no_more_of_it_is_looked_at(w):
    assert (await w.post(chat(RED, RED, RED)))[0] == 200
    status, answer = await w.post(chat(RED, RED, RED, RED))
    assert (status, code(answer)) == (400, "too_much_media")
    assert "3 pieces" in answer["error"]["message"]

    class Counting(list[Any]):
        taken = 0

        def __iter__(self) -> Any:
            for item in super().__iter__():
                type(self).taken += 1
                yield item

    body = chat()
    body["messages"][0]["content"] = Counting(dict(RED) for _ in range(1000))
    with pytest.raises(ProxyError, match="more than 3"):
        SURFACES[CHAT].find_media(body, limit=3)
    assert Counting.taken == 4


@in_world(max_media_bytes=3000)
async def test_one_long_piece_of_media_is_413(w):
    assert (await w.post(chat(image("A" * 3900))))[0] == 200
    status, answer = await w.post(chat(text("x"), image("A" * 4100)))
    assert (status, code(answer)) == (413, "media_too_large")
    assert "3000 bytes" in answer["error"]["message"]
    assert answer["error"]["param"] == "messages.0.content.1"
    assert len(w.decoder.requests) == 1


@in_world(max_header_bytes=10_000)
async def test_a_long_head_is_431(w):
    status, answer = await w.post(chat(), headers={f"x-{n}": "v" * 2000 for n in range(6)})
    assert (status, code(answer)) == (431, "headers_too_large")
    assert "10000 bytes" in answer["error"]["message"]


# ---------------------------------------------------------------- beside the event loop
def long_body() -> dict[str, Any]:
    return chat(image("A" * INLINE_BYTES))


@in_world()
async def test_others_are_answered_while_a_long_body_is_worked_on(w, monkeypatch):
    begun, may_end = threading.Event(), threading.Event()
    real = server.understand

    def slow(*args: Any) -> Any:
        begun.set()
        assert may_end.wait(30)
        return real(*args)

    monkeypatch.setattr(server, "understand", slow)
    pending = asyncio.create_task(w.post(long_body()))
    await asyncio.to_thread(begun.wait, 30)
    monkeypatch.setattr(server, "understand", real)
    assert (await w.post(chat(text("hi"))))[0] == 200
    assert not pending.done()
    may_end.set()
    assert (await pending)[0] == 200


@pytest.mark.parametrize("name", ["name_all", "write"])
@in_world()
async def test_so_is_all_other_work_on_it(w, monkeypatch, name):
    threads = []
    real = getattr(server, name)

    def noted(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return real(*args)

    monkeypatch.setattr(server, name, noted)
    assert (await w.post(long_body()))[0] == 200
    assert threads
    assert threading.main_thread() not in threads


@in_world()
async def test_two_bodies_are_worked_on_at_a_time(w, monkeypatch):
    may_end, active = threading.Event(), []
    real = server.understand

    def slow(*args: Any) -> Any:
        active.append(1)
        assert may_end.wait(30)
        return real(*args)

    monkeypatch.setattr(server, "understand", slow)
    body = json.dumps(long_body()).encode()
    pending = [asyncio.create_task(w.post(body)) for _ in range(5)]
    while w.proxy.memory.nbytes < 5 * len(body) or len(active) < 2:
        await asyncio.sleep(0.01)
    assert len(active) == 2
    may_end.set()
    assert [(await task)[0] for task in pending] == [200] * 5


# ----------------------------------------------------------------------- all of them
@in_world(max_body_bytes=5000, max_held_bytes=8000)
async def test_what_all_requests_hold_together_is_bounded(w):
    body = json.dumps(chat(text("x" * 4500))).encode()
    w.decoder.gate = asyncio.Event()
    first = asyncio.create_task(w.post(body))
    await w.decoder.arrived.wait()
    assert w.proxy.memory.nbytes == len(body)
    async with w.client.post(w.url + CHAT, data=body) as r:
        assert (r.status, code(await r.json())) == (503, "overloaded")
        assert r.headers["Retry-After"] == "1"
    w.decoder.gate.set()
    assert (await first)[0] == 200
    assert (await w.post(body))[0] == 200
    assert w.proxy.memory.nbytes == 0


@in_world(max_connections=3)
async def test_connections_are_counted_and_those_beyond_are_told_so(w):
    async with w.connection(), w.connection(), w.connection() as last:
        async with w.connection() as wire:
            status, answer = await wire.answer()
            assert (status, code(answer)) == (503, "too_many_connections")
            assert await wire.reader.read() == b""
        last.writer.close()
        await last.writer.wait_closed()
        while True:
            async with w.client.get(f"{w.url}/health") as r:
                if r.status == 200:
                    break


@in_world(max_encoder_requests=2)
async def test_one_request_does_not_take_an_encoder_by_storm(w):
    w.encoder.gate = asyncio.Event()
    parts = [image(str(n)) for n in range(6)]
    pending = asyncio.create_task(w.post(chat(*parts)))
    while len(w.encoder.requests) < 2:
        await asyncio.sleep(0.01)
    # A round through the proxy and back: what could have come has come.
    assert (await w.post(chat(text("hi"))))[0] == 200
    assert len(w.encoder.requests) == 2
    w.encoder.gate.set()
    assert (await pending)[0] == 200
    assert len(w.encoder.requests) == 6
    assert len(w.decoder.requests[-1]["ec_transfer_params"]) == 6


# ------------------------------------------------------------------- slow clients
@pytest.mark.parametrize(
    "said", [b"", b"POST /v1/chat/completions HT", b"POST /x HTTP/1.1\r\nA: b"]
)
@in_world(client_timeout_s=0.3)
async def test_a_head_that_does_not_come_ends_the_connection(w, said):
    async with w.connection() as wire:
        wire.writer.write(said)
        assert await wire.reader.read() == b""


@in_world(client_timeout_s=0.3)
async def test_neither_does_a_second_one_take_longer(w):
    async with w.connection() as wire:
        wire.begin("/v1/nothing", "Content-Length: 0")
        assert (await wire.answer())[0] == 404
        wire.writer.write(b"POST /v1/chat/compl")
        assert await wire.reader.read() == b""


@in_world(body_timeout_s=0.3)
async def test_a_body_that_does_not_come_is_408(w):
    async with w.connection() as wire:
        wire.begin(CHAT, "Content-Length: 100")
        wire.writer.write(b'{"messages": [')
        status, answer = await wire.answer()
        assert (status, code(answer)) == (408, "body_too_slow")
        assert await wire.reader.read() == b""
    assert w.proxy.memory.nbytes == 0


@pytest.mark.parametrize("streamed", [False, True])
@in_world(client_timeout_s=0.3, max_answer_bytes=64 << 20)
async def test_a_client_that_takes_nothing_is_cut_off(w, streamed):
    words = "x" * (16 << 20)
    w.decoder.replies = delta(content=words) if streamed else json.dumps({"x": words}).encode()
    async with w.connection() as wire:
        body = json.dumps(chat(text("hi"), stream=streamed)).encode()
        wire.begin(CHAT, f"Content-Length: {len(body)}")
        wire.writer.write(body)
        while not await w.sample('ec_proxy_requests_total{status="499"}'):
            await asyncio.sleep(0.01)
    assert w.proxy.memory.nbytes == 0


# ------------------------------------------------------------------- answers
@in_world(max_answer_bytes=10_000)
async def test_an_answer_that_is_too_long_is_502(w):
    w.decoder.replies = json.dumps({"x": "y" * 20_000}).encode()
    status, answer = await w.post(chat(text("hi")))
    assert (status, code(answer)) == (502, "answer_too_large")


@in_world()
async def test_a_long_answer_is_not_parsed_unless_it_must_be_and_not_on_the_loop(w, monkeypatch):
    threads = []

    def noted(raw: Any) -> Any:
        threads.append(threading.current_thread())
        return json.loads(raw)

    monkeypatch.setattr(answers, "json", SimpleNamespace(loads=noted, dumps=json.dumps))
    long = ["x"] * INLINE_BYTES
    w.decoder.replies = json.dumps({"x": long, "ec_transfer_params": None}).encode()
    async with w.client.post(w.url + CHAT, data=b"{}") as r:
        assert await r.read() == w.decoder.replies
    assert not threads
    w.decoder.replies = json.dumps({"x": long, "ec_transfer_params": {"h": 1}}).encode()
    async with w.client.post(w.url + CHAT, data=b"{}") as r:
        assert b'"ec_transfer_params": null' in await r.read()
    assert len(threads) == 1
    assert threading.main_thread() not in threads


@in_world(max_answer_bytes=10_000)
async def test_a_stream_may_be_long_but_no_event_of_it(w):
    w.decoder.replies = delta(content="a" * 9000) * 10
    status, seen = await stream(w, chat(text("hi")))
    assert (status, seen) == (200, w.decoder.replies)
    w.decoder.replies = delta(content="a") + delta(content="b" * 2_000_000)
    status, seen = await stream(w, chat(text("hi")))
    assert seen.startswith(delta(content="a"))
    assert b"bbb" not in seen
    assert b"answer_too_large" in seen


# ------------------------------------------------------------------- the process
def settings(**changed: Any) -> ProxySettings:
    return ProxySettings(encoders=("http://e",), decoders=("http://d",), **changed)


def test_the_limit_of_open_files_fits_the_connections_or_the_start_fails(monkeypatch):
    said: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: said.append(limits))
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1000, 4000))
    listening._allow_files(settings(max_connections=200))
    assert said == []
    listening._allow_files(settings(max_connections=1000))
    assert said == [(2 * 1000 + 128 + 100, 4000)]
    with pytest.raises(ConfigError, match=r"--max-connections=10000: .* may have 4000"):
        listening._allow_files(settings(max_connections=10_000))


def test_one_body_fits_into_what_all_may_hold():
    with pytest.raises(ConfigError, match="--max-held-bytes=100: expected at least"):
        settings(max_body_bytes=200, max_held_bytes=100)
