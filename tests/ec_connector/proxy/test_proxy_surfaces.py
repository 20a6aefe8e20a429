# SPDX-License-Identifier: Apache-2.0
"""Every way in: chat, Responses, Anthropic's messages, completions; every kind of media."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.needs import needs

needs("aiohttp", "prometheus_client")

from ec_connector.proxy.answers import Events
from ec_connector.proxy.surfaces import SURFACES
from tests import ROOT
from tests.world.servers import (
    PICTURE,
    SIZES,
    World,
    chat,
    delta,
    event,
    image,
    in_world,
    mm_hash,
    name_of,
    text,
)

RED, GREEN = image("red"), image("green")


def responses(*parts: Any, **fields: Any) -> dict[str, Any]:
    content = [{"type": "input_text", "text": "what?"}, *parts]
    return {"model": "m", "input": [{"role": "user", "content": content}], **fields}


def messages(*blocks: Any, **fields: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "max_tokens": 3,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "what?"}, *blocks]}],
        **fields,
    }


def input_image(name: str) -> dict[str, Any]:
    return {"type": "input_image", "image_url": PICTURE + name, "detail": "auto"}


def block(name: str) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": name}
    return {"type": "image", "source": source}


BODIES = {
    "/v1/responses": responses(input_image("red"), input_image("green")),
    "/v1/messages": messages(block("red"), block("green")),
}


def encoded(w: World) -> list[str]:
    """What encoders were asked to encode; always one picture, as a chat completion."""
    assert set(w.encoder.paths) == {"/v1/chat/completions"}
    parts = [request["messages"][0]["content"] for request in w.encoder.requests]
    return sorted(part["image_url"]["url"] for (part,) in parts)


# ------------------------------------------------------------ where the media must stay
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", BODIES)
@in_world()
async def test_a_way_in_without_references_keeps_the_media_beside_what_is_announced(
    w, path, streamed
):
    body = {**BODIES[path], "stream": streamed}
    w.decoder.replies = event({"type": "x"}) if streamed else b'{"type":"x"}'
    data = json.dumps(body).encode()
    async with w.client.post(w.url + path, data=data) as r:
        assert (r.status, await r.read()) == (200, w.decoder.replies)
    assert encoded(w) == [PICTURE + "green", PICTURE + "red"]
    assert all("uuid" not in json.dumps(request) for request in w.encoder.requests)
    assert w.decoder.paths == [path]
    (got,) = w.decoder.requests
    assert got.pop("ec_transfer_params").keys() == {mm_hash(RED), mm_hash(GREEN)}
    assert got == body
    assert await w.sample('ec_proxy_media_total{outcome="announced"}') == 2


@pytest.mark.parametrize("path", BODIES)
@in_world(max_media=1)
async def test_the_limits_are_the_same_on_every_way_in(w, path):
    status, answer = await w.post(BODIES[path], path)
    assert status == 400
    assert "more than 1 pieces of media" in answer["error"]["message"]


@pytest.mark.parametrize("path", BODIES)
@in_world()
async def test_without_encoders_a_request_is_passed_on_byte_for_byte(w, path):
    await w.encoder.stop()
    raw = json.dumps(BODIES[path], indent=1).encode()
    assert (await w.post(raw, path))[0] == 200
    assert json.loads(w.decoder.raw[0]) == BODIES[path]


@in_world()
async def test_pictures_in_results_of_tools_are_media_too(w):
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block("red")]}
    assert (await w.post(messages(result), "/v1/messages"))[0] == 200
    output = {"type": "function_call_output", "call_id": "c", "output": [input_image("green")]}
    assert (await w.post({"model": "m", "input": [output]}, "/v1/responses"))[0] == 200
    assert encoded(w) == [PICTURE + "green", PICTURE + "red"]


@in_world()
async def test_what_a_way_in_does_not_take_does_not_change_what_encoders_do(w):
    """A decoder takes no options of processing with Anthropic's messages."""
    options = {"mm_processor_kwargs": {"max_pixels": 1}, "cache_salt": "s"}
    assert (await w.post(messages(block("red"), **options), "/v1/messages"))[0] == 200
    assert (await w.post(responses(input_image("red"), **options), "/v1/responses"))[0] == 200
    first, second = w.encoder.requests
    assert "mm_processor_kwargs" not in first
    assert first["cache_salt"] == "s"
    assert second["mm_processor_kwargs"] == {"max_pixels": 1}


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        ("/v1/completions", b'{ "model":"m", "prompt":"hi \\u00e9", "top_p":0.10 }'),
        ("/v1/completions", b'{"model":"m","prompt":[[1,2,3]],"stream":false}'),
        ("/v1/responses", b'{"model":"m", "input":"hi" }'),
        ("/v1/responses", b'{"model":"m","input":[{"type":"reasoning","content":null}]}'),
        (
            "/v1/messages",
            b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}',
        ),
        ("/v1/messages", b'{"model":"m","max_tokens":1,"system":"s","messages":null}'),
    ],
)
@in_world()
async def test_requests_without_media_are_not_touched(w, path, raw):
    assert (await w.post(raw, path))[0] == 200
    assert (w.decoder.raw, w.decoder.paths) == ([raw], [path])
    assert not w.encoder.requests


# ------------------------------------------------------------------- all kinds of media
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
SOUND_URL = {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,UklGRg=="}}
FILM = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}


@pytest.mark.parametrize(
    ("part", "modality"),
    [(SOUND, "audio"), (SOUND_URL, "audio"), (FILM, "video"), (RED, "image")],
)
@in_world()
async def test_every_modality_becomes_a_reference(w, part, modality):
    assert (await w.post(chat(text("what?"), part)))[0] == 200
    (got,) = w.decoder.requests
    kind = f"{modality}_embeds"
    reference = {"type": kind, "uuid": name_of(part), kind: SIZES[modality]}
    assert got["messages"][0]["content"] == [text("what?"), reference]
    assert got["ec_transfer_params"].keys() == {name_of(part)}


@in_world()
async def test_modalities_of_one_request_stay_apart(w):
    w.encoder.lacks = {"UklGRg=="}
    assert (await w.post(chat(RED, SOUND, FILM)))[0] == 200
    (got,) = w.decoder.requests
    kinds = [part["type"] for part in got["messages"][0]["content"]]
    assert kinds == ["image_embeds", "input_audio", "video_embeds"]
    assert got["ec_transfer_params"].keys() == {name_of(RED), name_of(FILM)}


@in_world()
async def test_a_film_with_its_sound_stays_and_both_encodings_are_announced(w):
    body = chat(text("what?"), FILM, mm_processor_kwargs={"use_audio_in_video": True})
    assert (await w.post(body))[0] == 200
    (asked,) = w.encoder.requests
    assert asked["mm_processor_kwargs"] == {"use_audio_in_video": True}
    (got,) = w.decoder.requests
    announced = got.pop("ec_transfer_params")
    assert announced.keys() == {mm_hash(FILM), "sound of " + mm_hash(FILM)}
    assert got == body


# ------------------------------------------------------------------------------ errors
@in_world()
async def test_errors_have_the_shape_that_each_ones_clients_read(w):
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/completions"):
        status, answer = await w.post(b"{", path)
        assert (status, answer["error"]["code"]) == (400, "invalid_json")
        assert answer["error"]["type"] == "invalid_request_error"
    status, answer = await w.post(b"{", "/v1/messages")
    assert (status, answer["type"]) == (400, "error")
    assert answer["error"]["type"] == "invalid_request_error"
    assert "not JSON" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("path", "ends"),
    [
        ("/v1/chat/completions", b"data: [DONE]\n\n"),
        ("/v1/completions", b"data: [DONE]\n\n"),
        ("/v1/responses", b"event: error\ndata: "),
        ("/v1/messages", b"event: error\ndata: "),
    ],
)
@in_world()
async def test_so_have_the_errors_that_end_streams(w, path, ends):
    async def break_off(number: int) -> None:
        if number == 1:
            await w.decoder.break_off()

    w.decoder.between = break_off
    body = json.dumps({"model": "m", "stream": True}).encode()
    async with w.client.post(w.url + path, data=body) as r:
        seen = await r.read()
    assert ends in seen
    last = [line for line in seen.splitlines() if line.startswith(b"data: {")][-1]
    document = json.loads(last.removeprefix(b"data: "))
    assert "decoder" in json.dumps(document)
    if path == "/v1/messages":
        assert (document["type"], document["error"]["type"]) == ("error", "api_error")
    elif path == "/v1/responses":
        assert (document["type"], document["code"]) == ("error", "decoder_lost")
    else:
        assert document["error"]["code"] == "decoder_lost"


@pytest.mark.parametrize(
    "path",
    [
        "/inference/v1/generate",
        "/v1/chat/completions/render",
        "/v1/chat/completions/batch",
        "/v1/messages/count_tokens",
        "/v1/responses/resp_1/cancel",
        "/v1/embeddings",
        "/pooling",
        "/tokenize",
        "/reset_encoder_cache",
        "/v1/chat/completions/",
        "//v1/chat/completions",
    ],
)
@in_world()
async def test_other_paths_are_told_what_is_served(w, path):
    status, answer = await w.post({"model": "m"}, path)
    assert (status, answer["error"]["code"]) == (404, "not_served")
    assert all(f"POST {served}" in answer["error"]["message"] for served in SURFACES)
    assert not w.decoder.requests


FLOWS = json.loads((ROOT / "tests/e2e/orchestrators.json").read_text())["flows"]
NAMING = {"tokens", "features", "ec_transfer_params", "kv_transfer_params"}


@pytest.mark.parametrize(
    "shape",
    [shape for flow in FLOWS for shape in (flow["encode"], *flow["steps"])],
    ids=[f"{flow['name']}: {n}" for flow in FLOWS for n in range(1 + len(flow["steps"]))],
)
@in_world()
async def test_requests_between_orchestrators_and_servers_are_not_a_clients(w, shape):
    raw = json.dumps(shape["body"]).replace('"$IMAGE"', json.dumps(RED)).encode()
    raw = raw.replace(b'"$NAMED"', json.dumps({**RED, "uuid": "h"}).encode())
    status, answer = await w.post(raw, shape["path"], headers=shape["headers"])
    if shape["path"] not in SURFACES:
        assert (status, answer["error"]["code"]) == (404, "not_served")
    elif NAMING.isdisjoint(shape["body"]):
        assert status == 200  # it says nothing that a client may not say
    else:
        assert (status, answer["error"]["code"]) == (400, "unexpected_reference")
        assert answer["error"]["param"] in NAMING


@in_world()
async def test_a_wrong_method_is_told_the_right_one(w):
    async with w.client.get(w.url + "/v1/messages") as r:
        assert (r.status, r.headers["Allow"]) == (405, "POST")
        assert (await r.json())["error"]["type"] == "invalid_request_error"


# ---------------------------------------------------------- what of answers stays inside
WHERE = {"h": {"peer_host": "10.0.0.9", "peer_port": 5601}}


@pytest.mark.parametrize("name", ["ec_transfer_params", "kv_transfer_params"])
@pytest.mark.parametrize("path", SURFACES)
@in_world()
async def test_addresses_reach_clients_neither_in_answers_nor_in_streams(w, path, name):
    w.decoder.replies = json.dumps({"id": "x", name: WHERE}).encode()
    status, answer = await w.post({"model": "m"}, path)
    assert (status, answer) == (200, {"id": "x", name: None})
    last = {"type": "response.completed", "response": {"id": "x", name: WHERE}}
    w.decoder.replies = (
        delta(content="a")
        + b"event: response.completed\n"
        + event(last)
        + event({"id": "y", name: WHERE})
        + b"data: [DONE]\n\n: and no more"
    )
    data = json.dumps({"model": "m", "stream": True}).encode()
    async with w.client.post(w.url + path, data=data) as r:
        seen = await r.read()
    assert b"10.0.0.9" not in seen
    assert seen.startswith(delta(content="a") + b"event: response.completed\ndata: ")
    assert json.loads(seen.split(b"\n")[3][6:])["response"] == {"id": "x", name: None}
    assert seen.endswith(b"\n\ndata: [DONE]\n\n: and no more")


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_the_same_in_whatever_pieces_they_come(size, end):
    quiet = b"".join(b"data: %d" % n + end for n in range(5)) + b": ping" + end
    said = json.dumps({"ec_transfer_params": WHERE, "n": 1}).encode()
    loud = b"id: 3\ndata: " + said + end
    whole = quiet + loud + quiet + b"data: rest without an end"
    events = Events(1000)
    parts = [events.feed(whole[at : at + size]) for at in range(0, len(whole), size)]
    cleaned = b'id: 3\ndata: {"ec_transfer_params": null, "n": 1}' + end
    assert b"".join(parts) + events.end() == quiet + cleaned + quiet + b"data: rest without an end"
    assert all(part == b"" or part.endswith(end) for part in parts)
    # None waits for the next one.
    assert size > 7 or len([part for part in parts if part]) == 2 * 6 + 1
