# SPDX-License-Identifier: Apache-2.0
"""Finding and replacing media, and the proxy's settings: no I/O."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.needs import needs

needs("aiohttp")

from ec_connector.proxy.errors import ProxyError
from ec_connector.proxy.media import (
    Announcement,
    Media,
    decoder_request,
    encoder_request,
    read_announcement,
)
from ec_connector.proxy.settings import ProxySettings, split_urls
from ec_connector.proxy.surfaces import CHAT, SURFACES
from ec_protocol.errors import ConfigError

IMAGE = {"type": "image_url", "image_url": {"url": "http://x/a.png"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
VIDEO = {"type": "video_url", "video_url": {"url": "http://x/a.mp4"}}
ADDRESS = {"peer_host": "p", "peer_port": 5601}


def body_of(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], **fields}


def find_media(body: dict[str, Any]) -> list[Media]:
    found = CHAT.find_media(body, limit=100)
    for media in found:
        media.name()
    return found


def announced(name: str, **metadata: Any) -> Announcement:
    item = {"item_indices": [0], "metadata": metadata, **ADDRESS}
    return read_announcement({"ec_transfer_params": {name: item}})


@pytest.mark.parametrize(
    ("part", "modality"),
    [
        (IMAGE, "image"),
        ({"image_url": "http://x/a.png"}, "image"),
        ({"type": "input_image", "image_url": "http://x/a.png"}, "image"),
        (AUDIO, "audio"),
        ({"type": "audio_url", "audio_url": {"url": "u"}}, "audio"),
        (VIDEO, "video"),
    ],
)
def test_every_kind_of_media_is_found_and_replaced(part, modality):
    body = body_of({"type": "text", "text": "t"}, part)
    (media,) = find_media(body)
    assert (media.path, media.modality) == (("messages", 0, "content", 1), modality)
    assert media.key
    result, replaced = decoder_request(
        body, [media], {media.key: announced("h", n=[1])}, keep_media=False
    )
    assert replaced == 1
    kind = f"{modality}_embeds"
    assert result["messages"][0]["content"][1] == {"type": kind, "uuid": "h", kind: {"n": [1]}}


def test_modalities_are_replaced_independently():
    body = body_of(IMAGE, AUDIO)
    image, audio = media = find_media(body)
    announcements = {image.key: announced("i", n=[1]), audio.key: Announcement({})}
    result, replaced = decoder_request(body, media, announcements, keep_media=False)
    assert replaced == 1
    assert [p["type"] for p in result["messages"][0]["content"]] == ["image_embeds", "input_audio"]


def test_a_request_is_never_changed():
    body = body_of(IMAGE, IMAGE, AUDIO, seed=1)
    before = copy.deepcopy(body)
    media = find_media(body)
    decoder_request(body, media, {m.key: announced("h", n=[1]) for m in media}, keep_media=False)
    encoder_request(CHAT.encoding_fields(body), media[0])
    assert body == before


def test_parts_that_are_encoded_differently_have_different_keys():
    parts = [IMAGE, {**IMAGE, "detail": "low"}, {**IMAGE, "image_url": {"url": "other"}}]
    keys = [media.key for media in find_media(body_of(*parts, IMAGE))]
    assert keys[0] == keys[3]
    assert len(set(keys)) == 3


def test_a_part_that_became_several_encodings_has_no_reference():
    items = {name: {"metadata": {"n": [1]}, **ADDRESS} for name in ("sound", "pictures")}
    announcement = read_announcement({"ec_transfer_params": items})
    assert announcement.params.keys() == {"sound", "pictures"}
    assert not announcement.replaces_media


def test_encodings_without_an_address_are_not_named_to_the_decoder():
    items = {"a": {"metadata": {}}, "b": {"metadata": {"n": [1]}, **ADDRESS}}
    announcement = read_announcement({"ec_transfer_params": items})
    assert announcement.params.keys() == {"b"}
    assert not announcement.replaces_media


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["image_url", "image", "tool_result", "text", "url"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "image_url", "url", "content", "messages", "uuid", "metadata", "source"]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("surface", SURFACES.values(), ids=SURFACES)
@given(
    body=st.dictionaries(st.sampled_from(["messages", "input", "system", "model"]), JSON),
    answer=JSON,
)
def test_a_request_and_an_announcement_of_any_shape_end_well(surface, body, answer):
    try:
        media = surface.find_media(body, limit=3)
    except ProxyError:
        return
    for item in media:
        item.name()
        json.dumps(encoder_request(surface.encoding_fields(body), item))
    announcement = read_announcement({"ec_transfer_params": answer})
    found = {m.key: announcement for m in media}
    result, _ = decoder_request(body, media, found, keep_media=not surface.carries_references)
    json.dumps(result)


@given(parts=st.lists(st.sampled_from([IMAGE, AUDIO, VIDEO, {"type": "text", "text": "t"}])))
def test_without_announcements_a_request_stays_as_it_is(parts):
    body = body_of(*parts)
    media = find_media(body)
    nothing = {m.key: Announcement({}) for m in media}
    assert decoder_request(body, media, nothing, keep_media=False) == (body, 0)


# --------------------------------------------------------------------------- settings
GOOD: dict[str, Any] = {"encoders": ("http://e:1",), "decoders": ("http://d:2",)}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"encoders": ()}, "--encoder: at least one"),
        ({"decoders": ()}, "--decoder: at least one"),
        ({"decoders": ("d:2",)}, "--decoder='d:2'"),
        ({"decoders": ("ftp://d",)}, "--decoder='ftp://d'"),
        ({"decoders": ("http://d:99999",)}, "--decoder='http://d:99999'"),
        ({"decoders": ("http://d?x=1",)}, "--decoder="),
        ({"encoders": ("http://e", "http://e")}, "--encoder: an instance is named twice"),
        ({"policy": "random"}, "--policy='random'"),
        ({"port": 70000}, "--port=70000"),
        ({"retries": -1}, "--retries=-1"),
        ({"max_body_bytes": 0}, "--max-body-bytes=0"),
        ({"max_media": 0}, "--max-media=0"),
        ({"encoder_timeout_s": float("nan")}, "--encoder-timeout=nan"),
        ({"health_interval_s": -1.0}, "--health-interval=-1.0"),
    ],
)
def test_settings_that_cannot_work_name_the_option(change, named):
    ProxySettings(**GOOD)
    with pytest.raises(ConfigError, match=re.escape(named)):
        ProxySettings(**{**GOOD, **change})


def test_urls_may_be_repeated_or_separated_by_commas():
    assert split_urls(["http://a/, http://b", "http://c"]) == ("http://a", "http://b", "http://c")


# -------------------------------------------------------------------- the command line
COMMAND = [sys.executable, "-m", "ec_connector.cli", "proxy"]


def test_the_command_listens_says_where_and_stops_on_sigterm():
    needs("prometheus_client")
    urls = ["--encoder", "http://127.0.0.1:9", "--decoder", "http://127.0.0.1:9", "--port", "0"]
    with subprocess.Popen(COMMAND + urls, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as p:
        line = p.stdout.readline().decode()
        assert re.fullmatch(r"listening on http://127\.0\.0\.1:\d+\n", line)
        p.send_signal(signal.SIGTERM)
        assert p.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--encoder", "x", "--decoder", "http://d"], "--encoder='x'"),
        (["--encoder", "http://e", "--decoder", "http://d", "--policy", "no"], "--policy='no'"),
        (["--encoder", "http://e", "--decoder", "http://d", "--host", "256.1.1.1"], "--host="),
    ],
)
def test_the_command_says_what_is_wrong(options, said):
    needs("prometheus_client")
    done = subprocess.run(
        COMMAND + options,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
