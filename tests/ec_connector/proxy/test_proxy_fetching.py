# SPDX-License-Identifier: Apache-2.0
"""Media behind URLs: what is fetched, from where, and what a client learns of it."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from tests.needs import needs

needs("aiohttp", "prometheus_client")

from aiohttp.test_utils import TestServer

from ec_connector.proxy.fetching import Allowed
from ec_connector.proxy.settings import ProxySettings, split_names
from ec_protocol.errors import ConfigError
from tests.world.servers import PICTURE, World, chat, in_world, name_of, scenario, text, world

LOOPBACK = ("127.0.0.0/8",)
PNG = b"\x89PNG and more"


class Shop:
    """A server with pictures."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.body = PNG
        self.headers = {"Content-Type": "image/png"}
        self.to: str | None = None
        self.ends = True
        self.gate: asyncio.Event | None = None
        self.port = 0

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.host + request.path)
        if self.gate is not None:
            await self.gate.wait()
        if self.to is not None and request.path != "/end":
            return web.Response(status=302, headers={"Location": self.to})
        if not self.ends:
            response = web.StreamResponse(headers=self.headers)
            await response.prepare(request)
            await response.write(self.body)
            await asyncio.Event().wait()
        return web.Response(body=self.body, headers=self.headers)

    def url(self, path: str = "/a.png", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


@asynccontextmanager
async def shop() -> AsyncIterator[Shop]:
    made = Shop()
    app = web.Application()
    app.router.add_get("/{path:.*}", made._serve)
    server = TestServer(app, host="127.0.0.1")
    await server.start_server()
    made.port = server.port or 0
    try:
        yield made
    finally:
        await server.close()


@asynccontextmanager
async def both(**settings: Any) -> AsyncIterator[tuple[World, Shop]]:
    async with shop() as s:
        settings.setdefault("allowed_media_domains", (f"127.0.0.1:{s.port}",))
        settings.setdefault("allowed_media_networks", LOOPBACK)
        async with world(**settings) as w:
            yield w, s


def at(url: str, kind: str = "image_url") -> dict[str, Any]:
    return {"type": kind, kind: {"url": url}}


async def refused(w: World, url: str, kind: str = "image_url") -> str:
    status, answer = await w.post(chat(text("x"), at(url, kind)))
    assert status == 400
    assert answer["error"]["param"] == "messages.0.content.1"
    assert not w.encoder.requests
    assert not w.decoder.requests
    code: str = answer["error"]["code"]
    return code


# ------------------------------------------------------------------------- by default
@pytest.mark.parametrize("kind", ["image_url", "audio_url", "video_url"])
@pytest.mark.parametrize(
    "url",
    [
        "http://{shop}/a.png",
        "HTTP://{shop}/a.png",
        "https://{shop}/a.png",
        " http://{shop}/a.png",
        "\thttp://{shop}/a.png",
        "//{shop}/a.png",
        "file:///etc/passwd",
        "ftp://{shop}/a",
        "gopher://{shop}/a",
        "blob:http://{shop}/a",
        "javascript:data:",
        "/etc/passwd",
        "d",
        "http://[",
        " data:image/png;base64,AAAA",
    ],
)
@scenario
async def test_nobody_connects_to_what_a_client_names(url, kind):
    """Not the proxy, and not the instances, since it does not reach them."""
    async with shop() as s, world() as w:
        code = await refused(w, url.format(shop=f"127.0.0.1:{s.port}"), kind)
        assert code == "media_url_not_allowed"
        assert s.asked == []


@in_world()
async def test_media_in_the_request_is_taken_whatever_the_case_of_its_scheme(w):
    for scheme in ("data:", "DATA:", "Data:"):
        assert (await w.post(chat(at(f"{scheme}image/png;base64,AAAA"))))[0] == 200


# ---------------------------------------------------------------------- what is allowed
@scenario
async def test_allowed_media_is_fetched_once_and_sent_as_it_is():
    async with both() as (w, s):
        body = chat(at(s.url()), text("and"), at(s.url()))
        assert (await w.post(body))[0] == 200
        assert len(s.asked) == 1
        (asked,) = w.encoder.requests
        inline = PICTURE + base64.b64encode(PNG).decode()
        (part,) = asked["messages"][0]["content"]
        assert part == {**at(inline), "uuid": name_of(at(inline))}
        assert "http" not in json.dumps(w.decoder.requests[0]["messages"])
        # It is what counts: the same picture sent by somebody else is the same to encoders.
        w.decoder.loses = True
        assert (await w.post(body))[0] == 200
        assert w.decoder.requests[-1]["messages"][0]["content"][0] == at(inline)
        assert w.proxy.memory.nbytes == 0


@scenario
async def test_fetched_media_takes_its_place_on_every_way_in():
    async with both() as (w, s):
        inline = base64.b64encode(PNG).decode()
        item = {"type": "input_image", "image_url": s.url()}
        assert (await w.post({"input": [{"content": [item]}]}, "/v1/responses"))[0] == 200
        block = {"type": "image", "source": {"type": "url", "url": s.url()}}
        assert (await w.post({"messages": [{"content": [block]}]}, "/v1/messages"))[0] == 200
        first, second = w.decoder.requests
        (part,) = first["input"][0]["content"]
        assert part == {"type": "input_image", "image_url": PICTURE + inline}
        (part,) = second["messages"][0]["content"]
        source = {"type": "base64", "media_type": "image/png", "data": inline}
        assert part == {"type": "image", "source": source}
        # The same picture is the same to encoders.
        assert [r["messages"] for r in w.encoder.requests] == [
            [{"role": "user", "content": [at(PICTURE + inline)]}]
        ] * 2


@pytest.mark.parametrize(
    ("allowed", "url", "fits"),
    [
        ("example.org", "http://example.org/a", True),
        ("example.org", "https://EXAMPLE.org./a", True),
        ("example.org", "https://example.org:443/a", True),
        ("example.org", "https://example.org:80/a", False),
        ("example.org", "http://example.org:8080/a", False),
        ("example.org", "http://a.example.org/a", False),
        ("example.org", "http://example.org.evil.net/a", False),
        ("example.org", "http://evil.net/example.org", False),
        ("example.org", "http://evil.net#@example.org/", False),
        ("example.org", "http://evil.net\\@example.org/", False),
        ("example.org", "http://example.org@evil.net/", False),
        ("example.org", "http://user:pw@example.org/", False),
        ("example.org", "ftp://example.org/a", False),
        ("example.org", "file://example.org/a", False),
        ("example.org:8080", "http://example.org:8080/a", True),
        ("example.org:8080", "http://example.org/a", False),
        ("*.example.org", "http://a.b.example.org/a", True),
        ("*.example.org", "http://example.org/a", False),
        ("*.example.org", "http://evilexample.org/a", False),
        ("*", "http://anything.net/a", True),
        ("*", "http://anything.net:22/a", False),
        ("[2001:db8::1]:9000", "http://[2001:db8::1]:9000/a", True),
    ],
)
def test_hosts_are_compared_whole(allowed, url, fits):
    try:
        parsed = URL(url)
    except ValueError:
        assert not fits
        return
    assert allow((allowed,)).url(parsed) == fits


def allow(domains: tuple[str, ...] = ("*",), networks: tuple[str, ...] = ()) -> Allowed:
    return Allowed(
        ProxySettings(
            encoders=("http://e",),
            decoders=("http://d",),
            allowed_media_domains=domains,
            allowed_media_networks=networks,
        )
    )


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "10.0.0.5",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::1",
        "2002:a9fe:a9fe::",
        "2001:0:4136:e378:8000:63bf:5601:5601",
        "no address",
        "",
    ],
)
def test_addresses_that_are_not_public_are_not_connected_to(address):
    assert not allow().address(address)


def test_public_addresses_are_and_private_ones_in_an_allowed_network():
    assert all(allow().address(a) for a in ("93.184.215.14", "2606:2800:21f::1"))
    assert allow(networks=("10.1.0.0/16",)).address("10.1.2.3")
    assert not allow(networks=("10.1.0.0/16",)).address("10.2.2.3")
    assert allow(networks=("::ffff:10.1.0.0/112",)).address("::ffff:10.1.2.3")
    assert allow(networks=("10.1.0.0/16",)).address("::ffff:10.1.2.3")


# --------------------------------------------------------------- after the name resolved
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "0x7f.1", "2130706433"])
@scenario
async def test_a_name_is_judged_by_the_address_that_it_has(host):
    async with shop() as s, world(allowed_media_domains=(f"{host}:{s.port}",)) as w:
        assert await refused(w, s.url(host=host)) == "media_not_fetched"
        assert s.asked == []


@scenario
async def test_a_name_that_means_two_things_is_connected_to_where_it_was_judged(monkeypatch):
    """What resolves to a public address for the check and to a private one for the connection."""
    answers = ["127.0.0.1"]

    async def resolve(self: Any, host: str, port: int = 0, family: int = 0) -> list[Any]:
        return [
            {"hostname": host, "host": a, "port": port, "family": 2, "proto": 0, "flags": 0}
            for a in answers
        ]

    monkeypatch.setattr(ThreadedResolver, "resolve", resolve)
    async with shop() as s:
        name = f"rebinding.example:{s.port}"
        url = s.url(host="rebinding.example")
        async with world(allowed_media_domains=(name,)) as w:
            assert await refused(w, url) == "media_not_fetched"
            assert s.asked == []
        async with world(allowed_media_domains=(name,), allowed_media_networks=LOOPBACK) as w:
            answers.insert(0, "10.255.255.1")  # would never answer
            assert (await w.post(chat(at(url))))[0] == 200
            assert s.asked == [f"{name}/a.png"]


@pytest.mark.parametrize(
    "to",
    [
        "http://127.0.0.2:{port}/end",
        "http://localhost:{port}/end",
        "file:///etc/passwd",
        "//127.0.0.2/end",
        "http://127.0.0.1:1/end",
        "http://[",
        "/again",
    ],
)
@scenario
async def test_a_redirection_leads_nowhere_else(to):
    async with both() as (w, s):
        s.to = to.format(port=s.port)
        assert await refused(w, s.url()) == "media_not_fetched"
        assert not any("/end" in asked for asked in s.asked)
        assert len(s.asked) <= 4


@scenario
async def test_a_redirection_to_what_is_allowed_is_followed():
    async with both() as (w, s):
        s.to = "/end"
        assert (await w.post(chat(at(s.url()))))[0] == 200
        assert [asked.partition("/")[2] for asked in s.asked] == ["a.png", "end"]


# -------------------------------------------------------------------- what comes of it
@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/html"},
        {"Content-Type": "audio/wav"},
        {"Content-Type": "application/octet-stream"},
        {"Content-Type": "image/png,x"},
        {"Content-Type": "image/png", "Content-Encoding": "gzip"},
    ],
)
@scenario
async def test_what_is_no_picture_does_not_come_back_as_one(headers):
    """A page of the inner network must not be read to a client by a model."""
    async with both() as (w, s):
        s.headers = headers
        assert await refused(w, s.url()) == "media_not_fetched"
        assert len(s.asked) == 1


@scenario
async def test_fetched_media_is_bounded_and_counted():
    async with both(max_media_bytes=5000) as (w, s):
        s.body, s.ends = b"x" * 5001, False
        status, answer = await w.post(chat(at(s.url())))
        assert (status, answer["error"]["code"]) == (413, "media_too_large")
        assert w.proxy.memory.nbytes == 0
    async with both(max_body_bytes=4000, max_held_bytes=4000) as (w, s):
        s.body, s.ends = b"x" * 5000, False
        status, answer = await w.post(chat(at(s.url())))
        assert (status, answer["error"]["code"]) == (503, "overloaded")
        assert w.proxy.memory.nbytes == 0


@scenario
async def test_a_host_that_does_not_answer_is_given_up():
    async with both(fetch_timeout_s=0.2) as (w, s):
        s.gate = asyncio.Event()
        assert await refused(w, s.url()) == "media_not_fetched"
        s.gate.set()


@scenario
async def test_a_client_cannot_tell_why_it_was_not_fetched():
    async with shop() as s:
        said = set()
        for path, port in (("/a.png", s.port), ("/a.png", 1)):
            s.headers = {"Content-Type": "text/html"}
            domains = (f"127.0.0.1:{port}",)
            async with world(allowed_media_domains=domains, allowed_media_networks=LOOPBACK) as o:
                _, answer = await o.post(chat(at(f"http://127.0.0.1:{port}{path}")))
                said.add(json.dumps(answer))
        assert len(said) == 1


# --------------------------------------------------------------------------- settings
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"allowed_media_domains": ("http://a.org",)}, "--allowed-media-domain='http://a.org'"),
        ({"allowed_media_domains": ("a.org/path",)}, "--allowed-media-domain='a.org/path'"),
        ({"allowed_media_domains": ("",)}, "--allowed-media-domain=''"),
        ({"allowed_media_networks": ("10.0.0.5/8",)}, "--allowed-media-network='10.0.0.5/8'"),
        ({"allowed_media_networks": ("10.0.0.0/8",)}, "nothing is fetched without"),
    ],
)
def test_what_cannot_be_allowed_is_named(changed, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        ProxySettings(encoders=("http://e",), decoders=("http://d",), **changed)


def test_names_may_be_repeated_or_separated_by_commas():
    assert split_names(["A.org, *.b.org", "c"]) == ("a.org", "*.b.org", "c")
