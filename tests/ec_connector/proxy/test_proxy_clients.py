# SPDX-License-Identifier: Apache-2.0
"""The proxy over real HTTP: clients that go away or send what is no request; health."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.needs import needs

needs("aiohttp", "prometheus_client")

from tests.world.servers import chat, image, in_world, stream, text

RED = image("red")


@pytest.mark.parametrize("at", ["encoder", "decoder", "stream"])
@in_world()
async def test_a_client_that_goes_away_cancels_what_runs_for_it(w, at):
    victim = w.encoder if at == "encoder" else w.decoder
    if at == "stream":

        async def never(number: int) -> None:
            if number == 1:
                await asyncio.Event().wait()

        w.decoder.between = never
    else:
        victim.gate = asyncio.Event()
    task = asyncio.create_task(stream(w, chat(RED)))
    await victim.arrived.wait()
    if at == "stream":
        while not await w.sample("ec_proxy_first_byte_seconds_count"):
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await victim.cancelled.wait()
    assert all(b.inflight == 0 for b in w.proxy.decoders.backends)
    assert all(b.inflight == 0 for b in w.proxy.encoders.backends)
    while not await w.sample('ec_proxy_requests_total{status="499"}'):
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("chunked", [False, True])
@in_world(max_body_bytes=10_000)
async def test_an_oversize_body_is_413(w, chunked):
    data = json.dumps(chat(image("x" * 20_000))).encode()

    async def pieces():
        for start in range(0, len(data), 4096):
            yield data[start : start + 4096]

    url = f"{w.url}/v1/chat/completions"
    async with w.client.post(url, data=pieces() if chunked else data) as r:
        answer = await r.json()
        assert (r.status, answer["error"]["code"]) == (413, "body_too_large")
    assert not w.encoder.requests
    assert not w.decoder.requests


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'"x"',
        b"null",
        b'{"temperature": NaN}',
        b'{"temperature": 1e999}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"seed": ' + b"9" * 10_000 + b"}",
    ],
)
@in_world()
async def test_malformed_json_is_400(w, raw):
    status, answer = await w.post(raw)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["message"]
    assert not w.decoder.requests


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": "x"},
        {"messages": [None, 1, "x", []]},
        {"messages": [{"content": None}, {"content": 5}, {"content": [None, 1, "x", []]}]},
    ],
)
@in_world()
async def test_hostile_fields_are_left_to_the_decoder_to_judge(w, body):
    assert (await w.post(body))[0] == 200
    assert w.decoder.requests == [body]
    assert not w.encoder.requests


@in_world()
async def test_ec_transfer_params_of_a_client_are_refused(w):
    params = {"h": {"peer_host": "10.0.0.1", "peer_port": 22}}
    status, answer = await w.post(chat(text("hi"), ec_transfer_params=params))
    assert status == 400
    assert answer["error"]["param"] == "ec_transfer_params"
    assert not w.decoder.requests


@in_world(max_media=3)
async def test_too_much_media_is_400(w):
    assert (await w.post(chat(RED, RED, RED)))[0] == 200
    status, answer = await w.post(chat(RED, RED, RED, RED))
    assert (status, answer["error"]["code"]) == (400, "too_much_media")


@in_world()
async def test_unknown_paths_and_methods_have_the_same_shape_of_error(w):
    status, page = await w.get("/v1/nothing")
    assert (status, json.loads(page)["error"]["type"]) == (404, "invalid_request_error")
    assert (await w.get("/v1/chat/completions"))[0] == 405


# ----------------------------------------------------------------------------- health
@in_world(encoders=1, decoders=2, health_interval_s=0.05, show_backends=True)
async def test_health_follows_the_decoders(w):

    async def until(wanted_status: int, word: str) -> dict:
        while True:
            status, page = await w.get("/health")
            document = json.loads(page)
            if (status, document["status"]) == (wanted_status, word):
                return document
            await asyncio.sleep(0.01)

    await until(200, "ok")
    w.encoder.healthy = False
    document = await until(200, "degraded")
    assert document["encoders"][0]["error"] == "health check: HTTP 503"
    w.decoders[0].healthy = w.decoders[1].healthy = False
    await until(503, "down")
    # A check may be old: a decoder that is down by it is tried all the same.
    assert (await w.post(chat(text("hi"))))[0] == 200
    for fake in (w.encoder, *w.decoders):
        fake.healthy = True
    await until(200, "ok")
