# SPDX-License-Identifier: Apache-2.0
"""Keys, and what those without one do not see; headers that are passed on."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from multidict import CIMultiDict

from tests.needs import needs

needs("aiohttp", "prometheus_client")

from ec_connector.proxy.access import Keys, read_keys
from ec_connector.proxy.http import STEERING, end_to_end
from ec_connector.proxy.surfaces import SURFACES
from ec_protocol.errors import ConfigError
from tests.world.servers import chat, image, in_world, scenario, text, world

KEY, NEXT, INNER = "client-" + "k" * 20, "client-" + "n" * 20, "backend-" + "b" * 20
OPERATOR = "operator-" + "o" * 20


def private(path: Path, *keys: str) -> Path:
    path.write_text("# keys\n\n" + "\n".join(keys) + "\n")
    path.chmod(0o600)
    return path


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


# ---------------------------------------------------------------------------- clients
@scenario
async def test_without_a_key_nothing_is_answered_and_nothing_read(tmp_path):
    path = private(tmp_path / "keys", KEY, NEXT)
    async with world(api_key_file=path) as w:
        for headers in ({}, bearer("wrong"), bearer(KEY[:-1]), {"Authorization": f"Basic {KEY}"}):
            for served in SURFACES:
                async with w.client.post(w.url + served, data=b"{}", headers=headers) as r:
                    assert r.status == 401
                    assert r.headers["WWW-Authenticate"] == "Bearer"
                    assert KEY not in await r.text()
            assert (await w.get("/v1/models", headers=headers))[0] == 401
        async with w.connection() as wire:  # a body that never comes
            wire.begin("/v1/messages", "Content-Length: 1000")
            status, answer = await wire.answer()
        assert status == 401
        assert (answer["type"], answer["error"]["type"]) == ("error", "authentication_error")
        assert not w.decoder.requests
        for headers in (bearer(KEY), bearer(NEXT), {"x-api-key": KEY}):
            assert (await w.post(chat(text("hi")), headers=headers))[0] == 200
            assert (await w.get("/v1/models", headers=headers))[0] == 200
        assert (await w.get("/health"))[0] == 200


@scenario
async def test_the_proxys_key_stays_here_and_the_backends_has_its_own(tmp_path):
    ours, theirs = private(tmp_path / "ours", KEY), private(tmp_path / "theirs", INNER)
    async with world(api_key_file=ours, backend_key_file=theirs) as w:
        headers = {**bearer(KEY), "x-api-key": KEY}
        assert (await w.post(chat(image("red")), headers=headers))[0] == 200
        for seen in (*w.encoder.headers, *w.decoder.headers):
            assert seen.getall("Authorization") == [f"Bearer {INNER}"]
            assert KEY not in str(seen)
    async with world(api_key_file=ours) as w:
        assert (await w.post(chat(text("hi")), headers=headers))[0] == 200
        assert "Authorization" not in w.decoder.headers[0]


def test_keys_are_compared_whole(monkeypatch):
    compared = []
    monkeypatch.setattr(
        "hmac.compare_digest", lambda a, b: compared.append((len(a), len(b))) or a == b
    )
    keys = Keys([KEY, NEXT])
    assert keys.open_to(bearer(KEY))
    # Each of what is offered with each that is known, whatever was found before.
    assert compared == [(32, 32)] * 4
    assert not keys.open_to({"Authorization": "Bearer \ud800"})
    assert not keys.open_to({})


# -------------------------------------------------------------------------- key files
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610])
def test_a_key_file_that_others_may_use_is_refused_with_what_to_do(tmp_path, mode):
    path = private(tmp_path / "keys", KEY)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"--api-key-file=.*mode {mode:04o}.*chmod 600") as info:
        read_keys("--api-key-file", path)
    assert KEY not in str(info.value)


def test_a_key_file_of_another_user_is_refused(tmp_path, monkeypatch):
    path = private(tmp_path / "keys", KEY)
    owner = 4711 if os.geteuid() == 0 else os.geteuid()
    if os.geteuid() == 0:
        os.chown(path, owner, -1)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match=f"belongs to user {owner}"):
        read_keys("--api-key-file", path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no key"),
        ("# only words\n", "holds no key"),
        ("short\n", "line 1 is no key"),
        (f"{KEY}\nwith a space in it\n", "line 2 is no key"),
        ("k" * 70_000, "longer than 65536 bytes"),
    ],
)
def test_what_is_no_key_file_is_named(tmp_path, text, said):
    path = private(tmp_path / "keys")
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"--api-key-file=.*{said}"):
        read_keys("--api-key-file", path)


def test_what_is_not_there_or_no_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_keys("--api-key-file", tmp_path / "nothing")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_keys("--api-key-file", tmp_path)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "s"))
        with pytest.raises(ConfigError, match="cannot be read"):
            read_keys("--api-key-file", tmp_path / "s")


# -------------------------------------------------------------------------- operators
@in_world(decoders=2, health_interval_s=0.05)
async def test_clients_see_nothing_of_the_instances(w):
    await w.decoders[0].stop()
    while json.loads((await w.get("/health"))[1])["status"] != "degraded":
        pass
    assert json.loads((await w.get("/health"))[1]) == {"status": "degraded"}
    await w.decoders[1].stop()
    status, answer = await w.post(chat(image("red")))
    assert status == 502
    pages = [json.dumps(answer), (await w.get("/health"))[1], (await w.get("/metrics"))[1]]
    assert not any(fake.url.rpartition(":")[2] in page for page in pages for fake in w.decoders)
    assert not any("127.0.0.1" in page for page in pages)


@scenario
async def test_operators_see_them_with_their_key(tmp_path):
    keys, clients = private(tmp_path / "o", OPERATOR), private(tmp_path / "c", KEY)
    async with world(operator_key_file=keys, api_key_file=clients) as w:
        row = f'ec_proxy_backend_up{{kind="decoder",url="{w.decoder.url}"}} 1.0'
        status, page = await w.get("/health", headers=bearer(OPERATOR))
        assert (status, json.loads(page)["decoders"][0]["url"]) == (200, w.decoder.url)
        status, page = await w.get("/metrics", headers=bearer(OPERATOR))
        assert status == 200
        assert row in page
        for headers in ({}, bearer(KEY)):
            assert json.loads((await w.get("/health", headers=headers))[1]) == {"status": "ok"}
            assert (await w.get("/metrics", headers=headers))[0] == 401
        # An operator's key opens no completions.
        assert (await w.post(chat(text("hi")), headers=bearer(OPERATOR)))[0] == 401


# ---------------------------------------------------------------------------- headers
@in_world()
async def test_headers_that_come_twice_go_on_twice_both_ways(w):
    w.decoder.replies = b"{}"
    for value in ("a=1", "b=2"):
        w.decoder.said.add("Set-Cookie", value)
    w.decoder.said.add("Connection", "X-Theirs")
    w.decoder.said.add("X-Theirs", "secret")
    headers = CIMultiDict(
        [("X-Forwarded-For", "1.1.1.1"), ("X-Forwarded-For", "2.2.2.2"), ("X-Hop", "secret")]
    )
    headers.add("Connection", "keep-alive, x-hop")
    data = json.dumps(chat(image("red"))).encode()
    async with w.client.post(f"{w.url}/v1/chat/completions", data=data, headers=headers) as r:
        assert r.headers.getall("Set-Cookie") == ["a=1", "b=2"]
        assert "X-Theirs" not in r.headers
    for seen in (*w.encoder.headers, *w.decoder.headers):
        assert seen.getall("X-Forwarded-For") == ["1.1.1.1", "2.2.2.2"]
        assert "X-Hop" not in seen


@in_world()
async def test_headers_that_steer_routers_are_not_a_clients(w):
    headers = dict.fromkeys(STEERING, "10.0.0.9:22")
    assert (await w.post(chat(image("red")), headers=headers))[0] == 200
    for seen in (*w.encoder.headers, *w.decoder.headers):
        assert "10.0.0.9" not in str(seen)


def test_whatever_the_connection_header_names_is_not_passed_on():
    headers = CIMultiDict(
        [("Connection", "close, A"), ("connection", " B ,"), ("a", "1"), ("B", "2"), ("c", "3")]
    )
    assert list(end_to_end(headers).items()) == [("c", "3")]
