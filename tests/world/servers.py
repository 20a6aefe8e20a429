# SPDX-License-Identifier: Apache-2.0
"""Small encoder and decoder servers on loopback, and a proxy between them.

A fake answers as real servers do and records what it was asked. What it does wrong
is set on it before the request: a status, a broken connection, a silence that lasts
until the test ends it.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import hashlib
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer
from multidict import CIMultiDict

from ec_connector.proxy.announced import encoding_name
from ec_connector.proxy.listening import listening
from ec_connector.proxy.server import Proxy
from ec_connector.proxy.settings import ProxySettings
from ec_connector.proxy.surfaces import CHAT, SURFACES

PICTURE = "data:image/png;base64,"


def image(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": PICTURE + name}, **more}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def chat(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}], **fields}


def url_of(part: dict[str, Any]) -> str:
    fields = ("image_url", "audio_url", "video_url", "input_audio")
    payload = next(part[name] for name in fields if name in part)
    url: str = payload.get("url") or payload["data"] if isinstance(payload, dict) else payload
    return url


#: What sizes the placeholder, by modality.
SIZES = {
    "image": {"image_grid_thw": [1, 8, 8]},
    "video": {"video_grid_thw": [2, 8, 8], "second_per_grid_ts": [0.5]},
    "audio": {"audio_feature_lengths": [100], "audio_num_tokens": [25]},
}


def sizes_of(part: dict[str, Any]) -> dict[str, Any]:
    return next(size for kind, size in SIZES.items() if any(kind in name for name in part))


def mm_hash(part: dict[str, Any]) -> str:
    """What an instance calls media: as it was told to, or by its content."""
    return str(part.get("uuid") or hashlib.sha256(url_of(part).encode()).hexdigest()[:16])


def name_of(part: dict[str, Any], **fields: Any) -> str:
    """What the proxy calls the encoding of media in references, with ``chat``'s model."""
    (media,) = CHAT.find_media(chat(copy.deepcopy(part)), limit=1)
    media.name()
    return encoding_name({"model": "m", **fields}, media)


class Fake:
    """One instance. ``requests`` are the bodies it was sent, ``headers`` and ``paths`` theirs."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.raw: list[bytes] = []
        self.paths: list[str] = []
        self.status = 200
        self.breaks = False
        self.breaks_once = False
        self.gate: asyncio.Event | None = None
        self.arrived = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.healthy = True
        self.models = [{"id": "m"}]
        self.checked = asyncio.Event()
        self.server: TestServer | None = None
        self.transport: asyncio.Transport | None = None
        self.url = ""

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        for path in SURFACES:
            app.router.add_post(path, self._handle)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        self.server = TestServer(app, host="127.0.0.1")
        await self.server.start_server()
        self.url = str(self.server.make_url("")).rstrip("/")

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.close()

    async def _health(self, request: web.Request) -> web.Response:
        self.checked.set()
        return web.Response(status=200 if self.healthy else 503)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self.models})

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.raw.append(await request.read())
        self.paths.append(request.path)
        body = json.loads(self.raw[-1])
        self.requests.append(body)
        self.headers.append(request.headers.copy())
        self.transport = request.transport
        self.arrived.set()
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.breaks or self.breaks_once:
                self.breaks_once = False
                await self.break_off()
            if self.status != 200:
                error = {"error": {"message": "no", "type": "x", "code": self.status}}
                return web.json_response(error, status=self.status)
            return await self.answer(request, body)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def break_off(self) -> None:
        """Cut the connection of the request that is being answered."""
        self.transport.abort()
        await asyncio.Event().wait()

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        raise NotImplementedError


class FakeEncoder(Fake):
    """Announces what it is sent; ``lacks`` names media that it could not keep."""

    def __init__(self) -> None:
        super().__init__()
        self.lacks: set[str] = set()
        self.peer = ("127.0.0.1", 5701)
        self.reply: object = None

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if self.reply is not None:
            return web.Response(body=json.dumps(self.reply).encode())
        announced: dict[str, Any] = {}
        parts = [part for message in body["messages"] for part in message["content"]]
        for index, part in enumerate(parts):
            if url_of(part) in self.lacks:
                announced[mm_hash(part)] = {"metadata": {}}
            else:
                announced[mm_hash(part)] = {
                    "item_indices": [index],
                    "metadata": sizes_of(part),
                    "peer_host": self.peer[0],
                    "peer_port": self.peer[1],
                    "size_bytes": 8192,
                    "shape": [16, 128],
                }
            if (body.get("mm_processor_kwargs") or {}).get("use_audio_in_video"):
                sound = {**announced[mm_hash(part)], "item_indices": [index + 1]}
                announced["sound of " + mm_hash(part)] = {**sound, "metadata": SIZES["audio"]}
        return web.json_response({"choices": [], "ec_transfer_params": announced})


def event(document: object) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def delta(**said: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": said, "finish_reason": None}]})


OPENING = delta(role="assistant", content="")
LOST = event({"error": {"message": "Internal server error", "code": 500}})


class FakeDecoder(Fake):
    """Says three words. ``loses``: fails requests that hold references."""

    def __init__(self) -> None:
        super().__init__()
        self.loses = False
        self.more: dict[str, Any] = {}
        self.said: CIMultiDict[str] = CIMultiDict()
        self.words = ["a", "red", "square"]
        self.between: Callable[[int], Awaitable[None]] | None = None
        self.replies: bytes | None = None

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if self.replies is not None:
            kind = "text/event-stream" if body.get("stream") else "application/json"
            headers = CIMultiDict([("Content-Type", kind), *self.said.items()])
            return web.Response(body=self.replies, headers=headers)
        lost = self.loses and "image_embeds" in json.dumps(body)
        if not body.get("stream"):
            if lost:
                return web.json_response({"error": {"message": "Internal"}}, status=500)
            message = {"role": "assistant", "content": " ".join(self.words)}
            choices = [{"index": 0, "message": message}]
            return web.json_response({"choices": choices, **self.more})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(OPENING)
        if lost:
            await response.write(LOST + b"data: [DONE]\n\n")
            return response
        for number, word in enumerate(self.words):
            if self.between is not None:
                await self.between(number)
            await response.write(delta(content=word))
        await response.write(b"data: [DONE]\n\n")
        return response


@dataclass
class Wire:
    """A client's end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def begin(self, path: str, *headers: str) -> None:
        """The head of a POST."""
        head = "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", *headers, "", ""])
        self.writer.write(head.encode())

    def chunk(self, data: bytes) -> None:
        """A piece of a body that is sent in chunks."""
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))

    async def answer(self) -> tuple[int, Any]:
        """Status and JSON document."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        return int(head.split()[1]), json.loads(await self.reader.readexactly(length))


@dataclass
class World:
    """Encoders, decoders, the proxy and a client."""

    encoders: list[FakeEncoder]
    decoders: list[FakeDecoder]
    proxy: Proxy
    url: str
    client: aiohttp.ClientSession

    @property
    def encoder(self) -> FakeEncoder:
        return self.encoders[0]

    @property
    def decoder(self) -> FakeDecoder:
        return self.decoders[0]

    async def post(
        self, body: object, path: str = "/v1/chat/completions", **more: Any
    ) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.client.post(self.url + path, data=data, **more) as r:
            return r.status, await r.json()

    async def get(self, path: str, **more: Any) -> tuple[int, str]:
        async with self.client.get(self.url + path, **more) as r:
            return r.status, await r.text()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Wire]:
        """A connection of which a test says each byte."""
        host, port = self.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield Wire(reader, writer)
        finally:
            writer.close()

    async def sample(self, line: str) -> float:
        """The value of one line of ``/metrics``; 0 if there is none."""
        _, page = await self.get("/metrics")
        for row in page.splitlines():
            if row.rpartition(" ")[0] == line:
                return float(row.rpartition(" ")[2])
        return 0.0


@asynccontextmanager
async def world(encoders: int = 1, decoders: int = 1, **settings: Any) -> AsyncIterator[World]:
    # Checks in the background would only disturb the tests; one asks for them.
    settings.setdefault("health_interval_s", 3600.0)
    settings.setdefault("port", 0)
    async with AsyncExitStack() as stack:
        fakes: list[Fake] = [FakeEncoder() for _ in range(encoders)]
        fakes += [FakeDecoder() for _ in range(decoders)]
        for fake in fakes:
            await fake.start()
            stack.push_async_callback(fake.stop)
        proxy = Proxy(
            ProxySettings(
                encoders=tuple(fake.url for fake in fakes[:encoders]),
                decoders=tuple(fake.url for fake in fakes[encoders:]),
                **settings,
            )
        )
        url = await stack.enter_async_context(listening(proxy))
        # The first health check must not come in the middle of a test.
        for fake in fakes:
            await fake.checked.wait()
        client = await stack.enter_async_context(aiohttp.ClientSession())
        yield World(
            [fake for fake in fakes if isinstance(fake, FakeEncoder)],
            [fake for fake in fakes if isinstance(fake, FakeDecoder)],
            proxy,
            url,
            client,
        )


async def stream(w: World, body: dict[str, Any]) -> tuple[int, bytes]:
    """Ask for a stream, and take all of it."""
    data = json.dumps({**body, "stream": True}).encode()
    async with w.client.post(f"{w.url}/v1/chat/completions", data=data) as r:
        return r.status, await r.read()


def run(scenario: Coroutine[Any, Any, None], timeout_s: float = 30.0) -> None:
    """Run one scenario; it may not take longer than ``timeout_s``."""
    asyncio.run(asyncio.wait_for(scenario, timeout_s))


def scenario(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that waits for others, for at most half a minute."""

    @functools.wraps(test)
    def play(**fixtures: Any) -> None:
        run(test(**fixtures))

    return play


def in_world(**settings: Any) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """A scenario in a world of its own, which it gets as its first argument."""

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @scenario
        @functools.wraps(test)
        async def play(**fixtures: Any) -> None:
            async with world(**settings) as w:
                await test(w, **fixtures)

        signature = inspect.signature(test)
        fixtures = list(signature.parameters.values())[1:]
        play.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return play

    return decorate
