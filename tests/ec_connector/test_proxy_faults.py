# SPDX-License-Identifier: Apache-2.0
"""The proxy over real HTTP, when something does not work."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("prometheus_client")

from tests.ec_connector.proxy_world import (
    chat,
    delta,
    event,
    image,
    mm_hash,
    run,
    text,
    url_of,
    world,
)

RED, GREEN = image("red"), image("green")


async def stream(w, body) -> tuple[int, bytes]:
    data = json.dumps({**body, "stream": True}).encode()
    async with w.client.post(f"{w.url}/v1/chat/completions", data=data) as r:
        return r.status, await r.read()


# --------------------------------------------------------------------------- encoders
def test_several_encoders_one_dead():
    async def scenario():
        async with world(encoders=2) as w:
            await w.encoders[0].stop()
            for name in "abcd":
                assert (await w.post(chat(image(name))))[0] == 200
            assert len(w.encoders[1].requests) == 4
            assert all("ec_transfer_params" in r for r in w.decoder.requests)
            dead, alive = w.proxy.encoders.backends
            assert (dead.up, alive.up) == (False, True)
            assert await w.sample('ec_proxy_retries_total{reason="encoder_failed"}') == 1

    run(scenario())


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_encoder_error_the_media_stays(status):
    async def scenario():
        async with world() as w:
            w.encoder.status = status
            body = chat(text("what?"), RED)
            assert (await w.post(body))[0] == 200
            assert w.decoder.requests == [body]
            assert await w.sample('ec_proxy_media_total{outcome="kept"}') == 1

    run(scenario())


def test_all_encoders_dead_the_media_stays():
    async def scenario():
        async with world(encoders=2) as w:
            for encoder in w.encoders:
                await encoder.stop()
            body = chat(RED)
            assert (await w.post(body))[0] == 200
            assert w.decoder.requests == [body]

    run(scenario())


def test_an_encoder_that_breaks_off_and_one_that_is_silent():
    async def scenario():
        async with world(encoder_timeout_s=0.3) as w:
            w.encoder.breaks = True
            assert (await w.post(chat(RED)))[0] == 200
            w.proxy.encoders.backends[0].answered()
            w.encoder.breaks = False
            w.encoder.gate = asyncio.Event()
            assert (await w.post(chat(RED)))[0] == 200
            assert w.decoder.requests == [chat(RED)] * 2
            # Too slow is not dead.
            assert w.proxy.encoders.backends[0].up

    run(scenario())


def test_unannounced_media_stays_and_keeps_its_modality_raw():
    """Decoders refuse raw images beside references to images."""

    async def scenario():
        async with world() as w:
            w.encoder.lacks = {url_of(GREEN)}
            body = chat(RED, GREEN)
            assert (await w.post(body))[0] == 200
            (got,) = w.decoder.requests
            assert got["messages"] == body["messages"]
            # The announced one need not be encoded again all the same.
            assert got["ec_transfer_params"].keys() == {mm_hash(RED)}

    run(scenario())


@pytest.mark.parametrize(
    "reply",
    [
        [],
        {"ec_transfer_params": "x"},
        {"ec_transfer_params": {"h": None}},
        {"ec_transfer_params": {"h": {"metadata": {"a": 1}, "peer_host": 5, "peer_port": "x"}}},
        {"ec_transfer_params": {"h": {"peer_host": "p", "peer_port": True, "metadata": {"a": 1}}}},
        {"ec_transfer_params": None},
        {"ec_transfer_params": {}},
    ],
)
def test_malformed_announcements_are_none(reply):
    async def scenario():
        async with world() as w:
            w.encoder.reply = reply
            assert (await w.post(chat(RED)))[0] == 200
            assert w.decoder.requests == [chat(RED)]

    run(scenario())


# --------------------------------------------------------------------- lost encodings
def test_decoder_reports_lost_the_media_is_put_back():
    async def scenario():
        async with world() as w:
            w.decoder.loses = True
            body = chat(text("what?"), RED)
            status, answer = await w.post(body)
            assert status == 200
            assert answer["choices"][0]["message"]["content"] == "a red square"
            first, second = w.decoder.requests
            assert "ec_transfer_params" in first
            assert second == body
            assert await w.sample('ec_proxy_retries_total{reason="encoding_lost"}') == 1

    run(scenario())


def test_decoder_reports_lost_after_it_opened_a_stream():
    """The client sees one whole stream, with nothing of the failed one."""

    async def scenario():
        async with world() as w:
            w.decoder.loses = True
            status, seen = await stream(w, chat(RED))
            assert status == 200
            assert seen.count(b'"assistant"') == 1
            assert b"error" not in seen
            assert seen.endswith(delta(content="square") + b"data: [DONE]\n\n")
            assert len(w.decoder.requests) == 2

    run(scenario())


def test_an_error_that_is_not_the_encodings_is_the_clients():
    async def scenario():
        async with world() as w:
            w.decoder.status = 429
            status, answer = await w.post(chat(RED))
            assert (status, answer["error"]["message"]) == (429, "no")
            assert len(w.decoder.requests) == 1
            w.decoder.status = 400
            assert (await w.post(chat(RED)))[0] == 400
            # Once with the reference, once with the media: the request itself is bad.
            assert len(w.decoder.requests) == 3

    run(scenario())


# --------------------------------------------------------------------------- decoders
def test_a_dead_decoder_is_not_used_again():
    async def scenario():
        async with world(decoders=2) as w:
            await w.decoders[0].stop()
            for _ in range(4):
                assert (await w.post(chat(text("hi"))))[0] == 200
            assert len(w.decoders[1].requests) == 4
            assert await w.sample('ec_proxy_retries_total{reason="decoder_failed"}') == 1

    run(scenario())


def test_a_decoder_that_breaks_off_before_its_answer_is_replaced():
    async def scenario():
        async with world(decoders=2) as w:
            w.decoders[0].breaks = True
            assert (await w.post(chat(RED)))[0] == 200
            # The first is asked twice: its connection may have been an old one.
            assert [len(d.requests) for d in w.decoders] == [2, 1]

    run(scenario())


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_connection_that_the_server_had_closed_is_no_failure(kind):
    """Servers close idle connections, sometimes just when they are used again."""

    async def scenario():
        async with world() as w:
            victim = w.encoder if kind == "encoder" else w.decoder
            victim.breaks_once = True
            assert (await w.post(chat(RED)))[0] == 200
            assert len(victim.requests) == 2
            assert "ec_transfer_params" in w.decoder.requests[-1]
            assert all(b.up for f in (w.proxy.encoders, w.proxy.decoders) for b in f.backends)

    run(scenario())


def test_an_unavailable_decoder_is_replaced_and_the_last_ones_answer_is_the_clients():
    async def scenario():
        async with world(decoders=2) as w:
            first, second = w.decoders
            first.status = 503
            assert (await w.post(chat(text("hi"))))[0] == 200
            assert w.proxy.decoders.backends[0].up, "it answers"
            second.status = 503
            status, answer = await w.post(chat(RED))
            assert (status, answer["error"]["code"]) == (503, 503)

    run(scenario())


def test_no_decoder_is_502_with_a_reason():
    async def scenario():
        async with world() as w:
            await w.decoder.stop()
            status, answer = await w.post(chat(text("hi")))
            assert status == 502
            assert answer["error"]["code"] == "no_decoder"
            assert w.decoder.url in answer["error"]["message"]
            assert (await w.get("/v1/models"))[0] == 502

    run(scenario())


def test_a_silent_decoder_is_504_and_not_asked_twice():
    async def scenario():
        async with world(decoders=2, decoder_timeout_s=0.2) as w:
            for decoder in w.decoders:
                decoder.gate = asyncio.Event()
            status, answer = await w.post(chat(text("hi")))
            assert (status, answer["error"]["code"]) == (504, "decoder_timeout")
            assert sum(len(d.requests) for d in w.decoders) == 1

    run(scenario())


def test_a_stream_that_breaks_off_ends_with_an_error_event():
    async def scenario():
        async with world() as w:

            async def break_off(number: int) -> None:
                if number == 2:
                    await w.decoder.break_off()

            w.decoder.between = break_off
            status, seen = await stream(w, chat(RED))
            assert status == 200
            assert b"red" in seen
            assert b"square" not in seen
            *_, error, done, _ = seen.split(b"\n\n")
            assert done == b"data: [DONE]"
            assert json.loads(error[6:])["error"]["code"] == "decoder_lost"

    run(scenario())


# ----------------------------------------------------------------------------- client
@pytest.mark.parametrize("at", ["encoder", "decoder", "stream"])
def test_a_client_that_goes_away_cancels_what_runs_for_it(at):
    async def scenario():
        async with world() as w:
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

    run(scenario())


@pytest.mark.parametrize("chunked", [False, True])
def test_an_oversize_body_is_413(chunked):
    async def scenario():
        async with world(max_body_bytes=10_000) as w:
            data = json.dumps(chat(image("x" * 20_000))).encode()

            async def pieces():
                for start in range(0, len(data), 4096):
                    yield data[start : start + 4096]

            url = f"{w.url}/v1/chat/completions"
            async with w.client.post(url, data=pieces() if chunked else data) as r:
                answer = await r.json()
                assert (r.status, answer["error"]["code"]) == (413, "body_too_large")
            packed = gzip.compress(data)
            assert len(packed) < 10_000
            async with w.client.post(url, data=packed, headers={"Content-Encoding": "gzip"}) as r:
                assert r.status == 413
            assert not w.encoder.requests
            assert not w.decoder.requests

    run(scenario())


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
def test_malformed_json_is_400(raw):
    async def scenario():
        async with world() as w:
            status, answer = await w.post(raw)
            assert status == 400
            assert answer["error"]["type"] == "invalid_request_error"
            assert answer["error"]["message"]
            assert not w.decoder.requests

    run(scenario())


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": "x"},
        {"messages": [None, 1, "x", []]},
        {"messages": [{"content": None}, {"content": 5}, {"content": [None, 1, "x", []]}]},
        {"messages": [{"content": [{"type": None}, {"type": 5}, {"type": {}}, {"type": []}]}]},
        {"messages": [{"content": [{"type": "image_url"}]}]},
        {"messages": [{"content": [{"type": "image_url", "image_url": None, "uuid": "u"}]}]},
        {"messages": [{"content": [{"type": "image_url", "image_url": {"url": ""}}]}]},
    ],
)
def test_hostile_fields_are_left_to_the_decoder_to_judge(body):
    async def scenario():
        async with world() as w:
            assert (await w.post(body))[0] == 200
            assert w.decoder.requests == [body]
            assert not w.encoder.requests

    run(scenario())


def test_ec_transfer_params_of_a_client_are_refused():
    async def scenario():
        async with world() as w:
            params = {"h": {"peer_host": "10.0.0.1", "peer_port": 22}}
            status, answer = await w.post(chat(text("hi"), ec_transfer_params=params))
            assert status == 400
            assert answer["error"]["param"] == "ec_transfer_params"
            assert not w.decoder.requests

    run(scenario())


def test_too_much_media_is_400():
    async def scenario():
        async with world(max_media=3) as w:
            assert (await w.post(chat(RED, RED, RED)))[0] == 200
            status, answer = await w.post(chat(RED, RED, RED, RED))
            assert (status, answer["error"]["code"]) == (400, "too_much_media")

    run(scenario())


def test_unknown_paths_and_methods_have_the_same_shape_of_error():
    async def scenario():
        async with world() as w:
            status, page = await w.get("/v1/nothing")
            assert (status, json.loads(page)["error"]["type"]) == (404, "invalid_request_error")
            assert (await w.get("/v1/chat/completions"))[0] == 405

    run(scenario())


# ----------------------------------------------------------------------------- health
def test_health_follows_the_decoders():
    async def scenario():
        async with world(encoders=1, decoders=2, health_interval_s=0.05) as w:

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

    run(scenario())


def test_an_error_event_is_told_from_output():
    from ec_connector.proxy.relay import judge

    opening = delta(role="assistant", content="")
    assert judge(b"") == judge(opening) == judge(b": ping\n\n" + opening) == "more"
    assert judge(opening[:-1]) == "more"
    assert judge(opening + event({"error": {"message": "x"}})) == "lost"
    assert judge(opening + delta(content="a") + event({"error": {}})) == "fine"
    assert judge(delta(tool_calls=[{"index": 0}])) == "fine"
    assert judge(delta(unknown=None)) == "fine"
    assert judge(event({"choices": [], "usage": {}})) == "fine"
    assert judge(b"data: [DONE]\n\n") == "fine"
    assert judge(b"data: not json\n\n") == "fine"
    assert judge(opening.replace(b"\n", b"\r\n") + event({"error": "x"})) == "lost"
