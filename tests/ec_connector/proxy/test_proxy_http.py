# SPDX-License-Identifier: Apache-2.0
"""The proxy over real HTTP, when everything works."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.needs import needs

needs("aiohttp", "prometheus_client")

from tests.world.servers import (
    OPENING,
    chat,
    delta,
    image,
    in_world,
    mm_hash,
    name_of,
    scenario,
    text,
    world,
)

RED, GREEN, BLUE = image("red"), image("green"), image("blue")


@in_world()
async def test_media_goes_to_the_encoder_and_a_reference_to_the_decoder(w):
    status, answer = await w.post(chat(text("what?"), RED))
    assert status == 200
    assert answer["choices"][0]["message"]["content"] == "a red square"
    (asked,) = w.encoder.requests
    name = name_of(RED)
    assert asked["messages"] == [{"role": "user", "content": [{**RED, "uuid": name}]}]
    assert (asked["max_tokens"], asked["stream"]) == (1, False)
    (got,) = w.decoder.requests
    assert got["messages"][0]["content"] == [
        text("what?"),
        {
            "type": "image_embeds",
            "uuid": name,
            "image_embeds": {"image_grid_thw": [1, 8, 8]},
        },
    ]
    assert got["ec_transfer_params"][name]["peer_port"] == 5701
    assert await w.sample('ec_proxy_media_total{outcome="replaced"}') == 1
    assert await w.sample('ec_proxy_requests_total{status="200"}') == 1


@in_world(keep_media=True)
async def test_keep_media_adds_the_announcement_only(w):
    body = chat(text("what?"), RED)
    assert (await w.post(body))[0] == 200
    (got,) = w.decoder.requests
    assert got.pop("ec_transfer_params").keys() == {mm_hash(RED)}
    assert got == body
    assert "uuid" not in json.dumps(w.encoder.requests)
    assert await w.sample('ec_proxy_media_total{outcome="announced"}') == 1


@in_world(encoders=2)
async def test_several_media_in_several_messages_each_different_one_encoded_once(w):
    body = chat(RED, text("and"), GREEN)
    body["messages"] += [
        {"role": "assistant", "content": "hm"},
        {"role": "user", "content": [RED, BLUE]},
    ]
    assert (await w.post(body))[0] == 200
    asked = [e.requests for e in w.encoders]
    sent = sorted(r["messages"][0]["content"][0]["image_url"]["url"] for a in asked for r in a)
    assert sent == sorted(p["image_url"]["url"] for p in (RED, GREEN, BLUE))
    assert all(asked), "both encoders got some"
    (got,) = w.decoder.requests
    first, second, third = (m["content"] for m in got["messages"])
    assert [p.get("uuid") for p in first] == [name_of(RED), None, name_of(GREEN)]
    assert second == "hm"
    assert [p["uuid"] for p in third] == [name_of(RED), name_of(BLUE)]
    assert got["ec_transfer_params"].keys() == {name_of(p) for p in (RED, GREEN, BLUE)}


@in_world()
async def test_a_request_without_media_is_passed_on_byte_for_byte(w):
    raw = b'{ "model":"m", "messages":[{"role":"user","content":"hi \\u00e9"}],"top_p":0.10 }'
    assert (await w.post(raw))[0] == 200
    assert w.decoder.raw == [raw]
    assert not w.encoder.requests


@in_world()
async def test_every_other_field_is_passed_on_untouched(w):
    fields = {
        "cache_salt": "s",
        "mm_processor_kwargs": {},
        "temperature": 0,
        "logit_bias": {"5": -100},
        "vllm_xargs": {"x": 1},
        "an_unknown_field": [{"deep": "é"}],
        "seed": 12345678901234567890,
    }
    part = {**RED, "cache_control": {"type": "ephemeral"}}
    assert (await w.post(chat(part, **fields)))[0] == 200
    (got,) = w.decoder.requests
    assert {name: got[name] for name in fields} == fields
    assert got["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral"}
    (asked,) = w.encoder.requests
    encoding = ("mm_processor_kwargs", "cache_salt", "model")
    assert {name: asked[name] for name in encoding} == {
        "model": "m",
        **{name: fields[name] for name in encoding if name != "model"},
    }
    assert "logit_bias" not in asked


@pytest.mark.parametrize("option", ["mm_processor_kwargs", "media_io_kwargs"])
@in_world()
async def test_with_options_of_its_processing_media_stays_beside_what_is_announced(w, option):
    """Decoders give a reference another name then, and would look for another encoding."""
    fields = {option: {"image": {"nested": {"a": [1, 2.5, None]}}}}
    body = chat(RED, **fields)
    assert (await w.post(body))[0] == 200
    (asked,) = w.encoder.requests
    assert asked[option] == fields[option]
    (got,) = w.decoder.requests
    assert got.pop("ec_transfer_params").keys() == {mm_hash(RED)}
    assert got == body


@in_world()
async def test_headers_of_the_client_reach_both_with_request_ids_of_their_own(w):
    headers = {"Authorization": "Bearer k", "X-Request-Id": "r7", "traceparent": "00-1"}
    assert (await w.post(chat(RED, GREEN), headers=headers))[0] == 200
    (seen,) = w.decoder.headers
    assert (seen["Authorization"], seen["X-Request-Id"]) == ("Bearer k", "r7")
    assert {h["X-Request-Id"] for h in w.encoder.headers} == {"r7-ec0", "r7-ec1"}
    assert all(h["traceparent"] == "00-1" for h in w.encoder.headers)


@in_world()
async def test_a_stream_is_passed_on_chunk_by_chunk(w):
    """The decoder says its next word only after the client has the one before."""
    heard = [asyncio.Event() for _ in range(4)]
    heard[0].set()

    async def wait_for_the_client(number: int) -> None:
        await heard[number].wait()

    w.decoder.between = wait_for_the_client
    body = json.dumps(chat(RED, stream=True)).encode()
    async with w.client.post(f"{w.url}/v1/chat/completions", data=body) as r:
        assert r.status == 200
        assert r.content_type == "text/event-stream"
        seen = b""
        for number, word in enumerate(w.decoder.words):
            while word.encode() not in seen:
                seen += await r.content.readany()
            heard[number + 1].set()
        seen += await r.content.read()
    expected = OPENING + b"".join(delta(content=word) for word in w.decoder.words)
    assert seen == expected + b"data: [DONE]\n\n"


@in_world()
async def test_a_stream_without_media_is_not_even_looked_at(w):
    opened = asyncio.Event()

    async def after_the_opening(number: int) -> None:
        await opened.wait()

    w.decoder.between = after_the_opening
    body = json.dumps(chat(text("hi"), stream=True)).encode()
    async with w.client.post(f"{w.url}/v1/chat/completions", data=body) as r:
        assert await r.content.readany() == OPENING
        opened.set()
        assert (await r.content.read()).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("policy", ["least-loaded", "round-robin"])
@scenario
async def test_decoders_take_turns(policy):
    async with world(decoders=3, policy=policy) as w:
        for _ in range(6):
            assert (await w.post(chat(text("hi"))))[0] == 200
        assert [len(d.requests) for d in w.decoders] == [2, 2, 2]


@in_world(decoders=2, show_backends=True)
async def test_least_loaded_leaves_a_busy_decoder_alone(w):
    busy, other = w.decoders
    busy.gate = asyncio.Event()
    slow = asyncio.create_task(w.post(chat(text("slow"))))
    await busy.arrived.wait()
    for _ in range(3):
        assert (await w.post(chat(text("hi"))))[0] == 200
    assert (len(busy.requests), len(other.requests)) == (1, 3)
    assert await w.sample(f'ec_proxy_backend_inflight{{kind="decoder",url="{busy.url}"}}') == 1
    busy.gate.set()
    assert (await slow)[0] == 200


@in_world()
async def test_a_long_list_of_models_comes_whole(w):
    w.decoder.models = [{"id": "m" * 1000}] * 1000
    status, page = await w.get("/v1/models")
    assert (status, json.loads(page)["data"]) == (200, w.decoder.models)


@in_world()
async def test_models_are_the_decoders(w):
    status, page = await w.get("/v1/models")
    assert (status, json.loads(page)["data"]) == (200, [{"id": "m"}])


@in_world(show_backends=True)
async def test_metrics_page(w):
    await w.post(chat(RED))
    status, page = await w.get("/metrics")
    assert status == 200
    assert "ec_proxy_first_byte_seconds_count 1.0" in page
    assert "ec_proxy_encode_seconds_count 1.0" in page
    assert f'ec_proxy_backend_up{{kind="encoder",url="{w.encoder.url}"}} 1.0' in page
