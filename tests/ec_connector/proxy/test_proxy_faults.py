# SPDX-License-Identifier: Apache-2.0
"""The proxy over real HTTP, when something does not work."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.needs import needs

needs("aiohttp", "prometheus_client")

from tests.world.servers import (
    chat,
    delta,
    event,
    image,
    in_world,
    stream,
    text,
    url_of,
)

RED, GREEN = image("red"), image("green")


# --------------------------------------------------------------------------- encoders
@in_world(encoders=2)
async def test_several_encoders_one_dead(w):
    await w.encoders[0].stop()
    for name in "abcd":
        assert (await w.post(chat(image(name))))[0] == 200
    assert len(w.encoders[1].requests) == 4
    assert all("ec_transfer_params" in r for r in w.decoder.requests)
    dead, alive = w.proxy.encoders.backends
    assert (dead.up, alive.up) == (False, True)
    assert await w.sample('ec_proxy_retries_total{reason="encoder_failed"}') == 1


@pytest.mark.parametrize("status", [400, 404, 500, 503])
@in_world()
async def test_encoder_error_the_media_stays(w, status):
    w.encoder.status = status
    body = chat(text("what?"), RED)
    assert (await w.post(body))[0] == 200
    assert w.decoder.requests == [body]
    assert await w.sample('ec_proxy_media_total{outcome="kept"}') == 1


@in_world(encoders=2)
async def test_all_encoders_dead_the_media_stays(w):
    for encoder in w.encoders:
        await encoder.stop()
    body = chat(RED)
    assert (await w.post(body))[0] == 200
    assert w.decoder.requests == [body]


@in_world(encoder_timeout_s=0.3)
async def test_an_encoder_that_breaks_off_and_one_that_is_silent(w):
    w.encoder.breaks = True
    assert (await w.post(chat(RED)))[0] == 200
    w.proxy.encoders.backends[0].answered()
    w.encoder.breaks = False
    w.encoder.gate = asyncio.Event()
    assert (await w.post(chat(RED)))[0] == 200
    assert w.decoder.requests == [chat(RED)] * 2
    # Too slow is not dead.
    assert w.proxy.encoders.backends[0].up


@in_world()
async def test_unannounced_media_stays_and_keeps_its_modality_raw(w):
    """Decoders refuse raw images beside references to images."""
    w.encoder.lacks = {url_of(GREEN)}
    body = chat(RED, GREEN)
    assert (await w.post(body))[0] == 200
    (got,) = w.decoder.requests
    assert got == body, "the name of the other is one that only references have"


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
@in_world()
async def test_malformed_announcements_are_none(w, reply):
    w.encoder.reply = reply
    assert (await w.post(chat(RED)))[0] == 200
    assert w.decoder.requests == [chat(RED)]


# --------------------------------------------------------------------- lost encodings
@in_world()
async def test_decoder_reports_lost_the_media_is_put_back(w):
    w.decoder.loses = True
    body = chat(text("what?"), RED)
    status, answer = await w.post(body)
    assert status == 200
    assert answer["choices"][0]["message"]["content"] == "a red square"
    first, second = w.decoder.requests
    assert "ec_transfer_params" in first
    assert second == body
    assert await w.sample('ec_proxy_retries_total{reason="encoding_lost"}') == 1


@in_world()
async def test_decoder_reports_lost_after_it_opened_a_stream(w):
    """The client sees one whole stream, with nothing of the failed one."""
    w.decoder.loses = True
    status, seen = await stream(w, chat(RED))
    assert status == 200
    assert seen.count(b'"assistant"') == 1
    assert b"error" not in seen
    assert seen.endswith(delta(content="square") + b"data: [DONE]\n\n")
    assert len(w.decoder.requests) == 2


@in_world()
async def test_an_error_that_is_not_the_encodings_is_the_clients(w):
    w.decoder.status = 429
    status, answer = await w.post(chat(RED))
    assert (status, answer["error"]["message"]) == (429, "no")
    assert len(w.decoder.requests) == 1
    w.decoder.status = 400
    assert (await w.post(chat(RED)))[0] == 400
    # Once with the reference, once with the media: the request itself is bad.
    assert len(w.decoder.requests) == 3


# --------------------------------------------------------------------------- decoders
@in_world(decoders=2)
async def test_a_dead_decoder_is_not_used_again(w):
    await w.decoders[0].stop()
    for _ in range(4):
        assert (await w.post(chat(text("hi"))))[0] == 200
    assert len(w.decoders[1].requests) == 4
    assert await w.sample('ec_proxy_retries_total{reason="decoder_failed"}') == 1


@in_world(decoders=2)
async def test_a_decoder_that_breaks_off_before_its_answer_is_replaced(w):
    w.decoders[0].breaks = True
    assert (await w.post(chat(RED)))[0] == 200
    # The first is asked twice: its connection may have been an old one.
    assert [len(d.requests) for d in w.decoders] == [2, 1]


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
@in_world()
async def test_a_connection_that_the_server_had_closed_is_no_failure(w, kind):
    """Servers close idle connections, sometimes just when they are used again."""
    victim = w.encoder if kind == "encoder" else w.decoder
    victim.breaks_once = True
    assert (await w.post(chat(RED)))[0] == 200
    assert len(victim.requests) == 2
    assert "ec_transfer_params" in w.decoder.requests[-1]
    assert all(b.up for f in (w.proxy.encoders, w.proxy.decoders) for b in f.backends)


@in_world(decoders=2)
async def test_an_unavailable_decoder_is_replaced_and_the_last_ones_answer_is_the_clients(w):
    first, second = w.decoders
    first.status = 503
    assert (await w.post(chat(text("hi"))))[0] == 200
    assert w.proxy.decoders.backends[0].up, "it answers"
    second.status = 503
    status, answer = await w.post(chat(RED))
    assert (status, answer["error"]["code"]) == (503, 503)


@in_world()
async def test_no_decoder_is_502_with_a_reason(w):
    await w.decoder.stop()
    status, answer = await w.post(chat(text("hi")))
    assert status == 502
    assert answer["error"]["code"] == "no_decoder"
    # Whoever asks learns nothing of where the instances are.
    assert "127.0.0.1" not in json.dumps(answer)
    assert w.proxy.decoders.backends[0].error
    assert (await w.get("/v1/models"))[0] == 502


@in_world(decoders=2, decoder_timeout_s=0.2)
async def test_a_silent_decoder_is_504_and_not_asked_twice(w):
    for decoder in w.decoders:
        decoder.gate = asyncio.Event()
    status, answer = await w.post(chat(text("hi")))
    assert (status, answer["error"]["code"]) == (504, "decoder_timeout")
    assert sum(len(d.requests) for d in w.decoders) == 1


@in_world()
async def test_a_stream_that_breaks_off_ends_with_an_error_event(w):

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


def test_an_error_event_is_told_from_output():
    from ec_connector.proxy.answers import judge

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
