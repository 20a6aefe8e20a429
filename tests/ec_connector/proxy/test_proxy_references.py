# SPDX-License-Identifier: Apache-2.0
"""Clients bring media; they name nothing: no encoding, no cached media, no host, no state."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.needs import needs

needs("aiohttp", "prometheus_client")

from ec_connector.proxy.surfaces import SURFACES
from tests.world.servers import PICTURE, World, chat, image, in_world, mm_hash, name_of, text

RED = image("red")
NAMES = [
    "ec_transfer_params",
    "kv_transfer_params",
    "mm_hashes",
    "mm_placeholders",
    "mm_uuids",
    "mm_kwargs",
    "mm_metadata",
    "kwargs_data",
    "features",
    "tokens",
    "multi_modal_data",
    "multi_modal_uuids",
    "prompt_embeds",
]
KEPT = ["previous_response_id", "conversation", "prompt", "background", "previous_input_messages"]
HOSTILE = {"h": {"peer_host": "10.0.0.1", "peer_port": 22}}

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": chat(text("hi")),
    "/v1/responses": {"model": "m", "input": "hi"},
    "/v1/messages": {
        "model": "m",
        "max_tokens": 3,
        "messages": [{"role": "user", "content": "hi"}],
    },
    "/v1/completions": {"model": "m", "prompt": "hi"},
}


def message_of(answer: Any) -> str:
    said: str = answer["error"]["message"]
    return said


async def refused(w: World, body: Any, path: str = "/v1/chat/completions") -> Any:
    status, answer = await w.post(body, path)
    assert status == 400, answer
    assert not w.encoder.requests
    assert not w.decoder.requests
    return answer


def test_every_way_in_is_tried():
    assert BODIES.keys() == SURFACES.keys()


# ------------------------------------------------------------------ beside the messages
@pytest.mark.parametrize("path", SURFACES)
@pytest.mark.parametrize("name", NAMES)
@in_world()
async def test_fields_that_name_encodings_are_refused_on_every_way_in(w, path, name):
    for value in (HOSTILE, "x", [1], 1):
        assert name in message_of(await refused(w, {**BODIES[path], name: value}, path))
    # Where a server would look for it as well.
    xargs = {"vllm_xargs": {name: HOSTILE}}
    assert name in message_of(await refused(w, {**BODIES[path], **xargs}, path))
    assert (await w.post({**BODIES[path], name: None}, path))[0] == 200


@pytest.mark.parametrize("name", KEPT)
@in_world()
async def test_responses_name_nothing_that_a_server_has_kept(w, name):
    body = {**BODIES["/v1/responses"], name: "resp_1"}
    assert (await refused(w, body, "/v1/responses"))["error"]["param"] == name


@in_world()
async def test_nor_does_an_item_of_theirs(w):
    for item in ({"type": "item_reference", "id": "msg_1"}, {"type": "computer_call_output"}):
        await refused(w, {"model": "m", "input": [item]}, "/v1/responses")


# --------------------------------------------------------------------- in the messages
EMBEDS = ["image_embeds", "audio_embeds", "video_embeds", "prompt_embeds", "image_pil"]
PARTS: list[dict[str, Any]] = [
    *({"type": kind, "uuid": "h", kind: {"image_grid_thw": [1, 8, 8]}} for kind in EMBEDS),
    *({"type": kind, kind: "AAAA"} for kind in EMBEDS),
    *({kind: "AAAA"} for kind in EMBEDS),
    *({kind: None, "uuid": "h"} for kind in EMBEDS),
    # With a uuid the field decides, not the type.
    *({"type": "text", "text": "x", "uuid": "h", kind: None} for kind in EMBEDS),
    *({**RED, "uuid": "h", kind: None} for kind in EMBEDS),
    {"type": "text", "text": "x", "image_url": {"url": PICTURE}},
    {"image_url": {"url": PICTURE}, "video_url": {"url": PICTURE}},
    {**RED, "video_url": {"url": PICTURE}},
    {**RED, "input_audio": {"data": "AAAA", "format": "wav"}},
    # Seen before, says the client.
    {"type": "image_url", "uuid": "h"},
    {"type": "image_url", "image_url": None, "uuid": "h"},
    {"type": "image_url", "image_url": {}, "uuid": "h"},
    {"type": "image_url", "image_url": {"url": ""}, "uuid": "h"},
    {"type": "image_url", "image_url": {"url": None}, "uuid": "h"},
    {"image_url": None, "uuid": "h"},
    {"type": "input_image", "file_id": "file-1"},
    {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}, "uuid": "h"},
    {"type": "input_audio", "input_audio": None, "uuid": "h"},
    {"type": "video_url", "video_url": {"uuid": "h"}},
    # Nobody knows what these are, or will be.
    {"type": "input_file", "file_url": "http://10.0.0.1/"},
    {"type": "input_file", "file_id": "file-1"},
    {"type": "file", "file": {"file_id": "file-1"}},
    {"type": "embedding", "embedding": "x"},
    {"type": ["image_url"], "image_url": {"url": PICTURE}},
    {"type": None},
    {"type": 5},
    {},
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: json.dumps(part)[:60])
@in_world()
async def test_parts_that_name_in_place_of_bringing_are_refused(w, part):
    answer = await refused(w, chat(text("x"), part))
    assert answer["error"]["param"] == "messages.0.content.1"
    if not set(EMBEDS).isdisjoint(part):
        assert answer["error"]["code"] == "unexpected_reference"
    for inside in (
        {"role": "user", "content": [part]},
        {"type": "function_call_output", "output": [part]},
    ):
        await refused(w, {"model": "m", "input": [inside]}, "/v1/responses")


BLOCKS: list[dict[str, Any]] = [
    {"type": "image"},
    {"type": "image", "source": None},
    {"type": "image", "source": {"type": "file", "file_id": "file-1"}},
    {"type": "image", "source": {"type": "base64", "data": ""}},
    {"type": "image", "source": {"type": "url"}},
    {"type": "image", "source": {"type": "url", "url": "http://10.0.0.1/"}},
    {"type": "document", "source": {"type": "url", "url": "http://10.0.0.1/"}},
    {"type": "text", "text": "x", "source": {"type": "url", "url": "http://10.0.0.1/"}},
    {"type": "image_embeds", "uuid": "h"},
    {"type": "image_url", "image_url": {"url": PICTURE}},
    {"type": ["image"]},
    {},
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: json.dumps(block)[:60])
@in_world()
async def test_so_are_such_blocks(w, block):
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
    for content in ([block], [result]):
        body = {**BODIES["/v1/messages"], "messages": [{"role": "user", "content": content}]}
        answer = await refused(w, body, "/v1/messages")
        assert answer["type"] == "error"
    await refused(w, {**BODIES["/v1/messages"], "system": [block]}, "/v1/messages")


# ----------------------------------------------------------------- names beside media
@pytest.mark.parametrize("settings", [{}, {"keep_media": True}])
@pytest.mark.parametrize("where", ["part", "inside"])
@pytest.mark.parametrize("encodes", [True, False])
def test_a_clients_name_for_its_media_goes_no_further(settings, where, encodes):
    @in_world(**settings)
    async def play(w: World) -> None:
        if not encodes:
            await w.encoder.stop()
        named = image("red")
        (named if where == "part" else named["image_url"])["uuid"] = "of a client"
        assert (await w.post(chat(named)))[0] == 200
        w.decoder.loses = True
        assert (await w.post(chat(named)))[0] == 200
        sent = json.dumps([*w.encoder.requests, *w.decoder.requests])
        assert "of a client" not in sent

    play()


@in_world()
async def test_two_pictures_of_one_name_are_two_encodings(w):
    for word in ("red", "green"):
        assert (await w.post(chat(image(word, uuid="mine"))))[0] == 200
    first, second = (request["ec_transfer_params"].keys() for request in w.decoder.requests)
    assert first == {name_of(image("red"))}
    assert second == {name_of(image("green"))}


@in_world()
async def test_references_have_names_that_media_never_has(w):
    """What a decoder learns of the one under its name is never wrong for the other."""
    assert (await w.post(chat(RED)))[0] == 200
    w.decoder.loses = True
    assert (await w.post(chat(RED)))[0] == 200
    reference, lost, put_back = w.decoder.requests
    assert lost == reference
    assert reference["messages"][0]["content"][0]["uuid"] == name_of(RED) != mm_hash(RED)
    assert put_back == chat(RED), "the decoder names it by itself"


def test_names_follow_from_the_content_and_from_how_it_is_encoded():
    names = {
        name_of(RED),
        name_of(image("green")),
        name_of(RED, cache_salt="s"),
        name_of({"type": "image_url", "image_url": {"url": PICTURE + "red", "detail": "low"}}),
    }
    assert len(names) == 4
    assert name_of(image("red", uuid="x")) == name_of(RED) == name_of(RED, cache_salt=None)
