# SPDX-License-Identifier: Apache-2.0
"""The proxy's HTTP handlers: the paths of ``surfaces``, and those about the proxy itself."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from aiohttp import web

from ec_connector.proxy.access import Keys, read_keys
from ec_connector.proxy.announced import Announced
from ec_connector.proxy.encode import Encoders
from ec_connector.proxy.errors import BackendFailed, BackendTimeout, EncodingLost, ProxyError
from ec_connector.proxy.fetching import Fetcher, media_too_large
from ec_connector.proxy.fleet import Backend, Fleet
from ec_connector.proxy.http import KEEP_ALIVE_S, STEERING, Headers, end_to_end, read_at_most
from ec_connector.proxy.intake import Held, Memory, Workers, parse, read_body
from ec_connector.proxy.media import Media, decoder_request, dotted
from ec_connector.proxy.metrics import ProxyMetrics
from ec_connector.proxy.relay import Relay
from ec_connector.proxy.settings import ProxySettings
from ec_connector.proxy.surfaces import SURFACES, Surface

if TYPE_CHECKING:
    from ec_connector.proxy.watch import EventWatch

logger = logging.getLogger(__name__)

_SESSION_HEADERS: Final = {"Accept-Encoding": "identity"}
_MAX_MODELS_BYTES: Final = 4 << 20
_OTHERS: Final = ("/v1/models", "/health", "/metrics")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Asked:
    """A client's request, understood.

    Attributes:
        surface: Its path.
        raw: Its body, for a decoder that gets it as it is.
        body: The same, parsed.
        media: What it brings.
        headers: For the instances.
    """

    surface: Surface
    raw: bytes
    body: dict[str, Any]
    media: list[Media]
    headers: Headers


class Proxy:
    """One proxy.

    Args:
        settings: Checked settings.

    Raises:
        ConfigError: A key file that cannot be used.
    """

    def __init__(self, settings: ProxySettings) -> None:
        self.settings = settings
        self.metrics = ProxyMetrics()
        self.encoders = Fleet("encoder", settings.encoders, settings.policy)
        self.decoders = Fleet("decoder", settings.decoders, settings.policy)
        self.memory = Memory(settings.max_held_bytes)
        self._clients = self._operators = None
        self._backend_key: str | None = None
        if settings.api_key_file is not None:
            self._clients = Keys(read_keys("--api-key-file", settings.api_key_file))
        if settings.operator_key_file is not None:
            self._operators = Keys(read_keys("--operator-key-file", settings.operator_key_file))
        if settings.backend_key_file is not None:
            self._backend_key = read_keys("--backend-key-file", settings.backend_key_file)[0]
        self._announced = Announced() if settings.events else None
        self._session: aiohttp.ClientSession
        self._encode: Encoders
        self._fetcher: Fetcher
        self._workers: Workers

    def app(self) -> web.Application:
        """The application; ``listening`` runs it within the settings' limits."""
        app = web.Application(middlewares=[self._answer_errors, self._check_head])
        for path in SURFACES:
            app.router.add_post(path, self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.cleanup_ctx.append(self._running)
        return app

    async def _running(self, app: web.Application) -> AsyncIterator[None]:
        settings = self.settings
        # As many connections to decoders as there are clients; those to encoders, of which
        # one request may want many, have their own limit and wait in line.
        decoders = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
        encoders = aiohttp.TCPConnector(
            limit=0,
            limit_per_host=settings.max_encoder_requests,
            keepalive_timeout=KEEP_ALIVE_S,
        )
        self._workers = Workers()
        self._fetcher = Fetcher(settings)
        async with (
            aiohttp.ClientSession(connector=decoders, headers=_SESSION_HEADERS) as session,
            aiohttp.ClientSession(connector=encoders, headers=_SESSION_HEADERS) as encoding,
        ):
            self._session = session
            self._encode = Encoders(
                settings, self.encoders, encoding, self.metrics, self._workers, self._announced
            )
            watch = self._start_watch()
            checker = asyncio.create_task(self._check_health())
            yield
            checker.cancel()
            await asyncio.gather(checker, return_exceptions=True)
            if watch is not None:
                await asyncio.to_thread(watch.stop)
        await self._fetcher.close()
        self._workers.close()

    def _start_watch(self) -> EventWatch | None:
        """Listen to the encoders' events, if any were named."""
        if self._announced is None:
            return None
        # Only here: without events the proxy needs no ZMQ.
        from ec_connector.proxy.watch import EventWatch

        settings = self.settings
        watch = EventWatch(settings.events, settings.events_topic, self._announced, self.metrics)
        watch.start(asyncio.get_running_loop())
        return watch

    async def _check_health(self) -> None:
        interval = self.settings.health_interval_s
        while True:
            for fleet in (self.encoders, self.decoders):
                await fleet.check(self._session, interval)
            await asyncio.sleep(interval)

    # ------------------------------------------------------------------- completions
    async def _complete(self, request: web.Request) -> web.StreamResponse:
        status = 499
        try:
            with self.memory.held() as held:
                response = await self._answer(request, SURFACES[request.path], held)
            status = response.status
            return response
        except ProxyError as exc:
            status = exc.status
            raise
        except ConnectionResetError:
            # Only writing to the client raises it here: there is nobody to answer.
            raise asyncio.CancelledError from None
        finally:
            self.metrics.requests.labels(str(status)).inc()

    async def _answer(
        self, request: web.Request, surface: Surface, held: Held
    ) -> web.StreamResponse:
        started = time.monotonic()
        asked = await self._understand(request, surface, held)

        def first_byte() -> None:
            self.metrics.first_byte_seconds.observe(time.monotonic() - started)

        relay = Relay(self.settings, self._session, self._workers, request, surface, first_byte)
        if asked.media:
            payload, replaced = await self._with_announcements(asked)
            if replaced:
                try:
                    return await self._decode(relay, payload, asked.headers, replaced=True)
                except EncodingLost as exc:
                    logger.warning("media put back into the request: %s", exc)
                    self.metrics.retries.labels("encoding_lost").inc()
                    self._encode.forget(surface.encoding_fields(asked.body), asked.media)
                    payload = asked.raw
        else:
            payload = asked.raw
        return await self._decode(relay, payload, asked.headers, replaced=False)

    async def _understand(self, request: web.Request, surface: Surface, held: Held) -> Asked:
        """A request that is within all limits, and holds all of its media itself."""
        raw = await read_body(request, self.settings, held)
        body, media = await self._workers.run(len(raw), understand, raw, surface, self.settings)
        elsewhere = [item for item in media if item.url is not None]
        if elsewhere:
            await self._fetcher.fetch_all(elsewhere, held)
        changed = bool(elsewhere) or any(item.renamed for item in media)
        held_bytes = sum(item.nbytes for item in media)
        if media:
            await self._workers.run(held_bytes, name_all, media)
        if changed:
            raw = await self._workers.run(len(raw) + held_bytes, write, body)
        return Asked(surface, raw, body, media, self._headers_for(request))

    def _headers_for(self, request: web.Request) -> Headers:
        """A client's headers, as the instances get them."""
        own = {"accept", "content-type", "x-request-id", *STEERING}
        if self._clients is not None:
            own |= {"authorization", "x-api-key"}  # they opened this proxy
        headers = end_to_end(request.headers, own)
        headers["X-Request-Id"] = request.headers.get("X-Request-Id") or secrets.token_hex(8)
        headers["Content-Type"] = "application/json"
        if self._backend_key is not None:
            headers["Authorization"] = f"Bearer {self._backend_key}"
        return headers

    async def _with_announcements(self, asked: Asked) -> tuple[bytes, bool]:
        """The decoder's request, and whether media was replaced in it."""
        media, surface = asked.media, asked.surface
        refer = not self.settings.keep_media and surface.may_refer(asked.body)
        with self.metrics.encode_seconds.time():
            announced = await self._encode.encode(
                surface.encoding_fields(asked.body), media, asked.headers, named=refer
            )
        changed, replaced = decoder_request(asked.body, media, announced, keep_media=not refer)
        with_params = 0 if refer else sum(bool(announced[m.key].params) for m in media)
        self.metrics.media.labels("replaced").inc(replaced)
        self.metrics.media.labels("announced").inc(with_params)
        self.metrics.media.labels("kept").inc(len(media) - replaced - with_params)
        return await self._workers.run(len(asked.raw), write, changed), replaced > 0

    async def _decode(
        self, relay: Relay, payload: bytes, headers: Headers, *, replaced: bool
    ) -> web.StreamResponse:
        tried: list[Backend] = []
        problem = ""
        for left in reversed(range(1 + self.settings.retries)):
            backend = self.decoders.pick(tried, also_down=True)
            if backend is None:
                break
            if tried:
                self.metrics.retries.labels("decoder_failed").inc()
            tried.append(backend)
            try:
                return await relay.send(
                    backend,
                    payload,
                    headers,
                    replaced=replaced,
                    others=left > 0 and len(tried) < len(self.decoders.backends),
                )
            except BackendTimeout as exc:
                logger.warning("%s", exc)
                raise ProxyError(
                    504, "decoder_timeout", "the decoder did not answer in time"
                ) from exc
            except BackendFailed as exc:
                problem = str(exc)
        logger.warning("no decoder could be reached; the last: %s", problem)
        raise ProxyError(502, "no_decoder", f"no decoder could be reached; {len(tried)} were tried")

    # -------------------------------------------------------------------- the others
    async def _models(self, request: web.Request) -> web.StreamResponse:
        tried: list[Backend] = []
        headers = self._headers_for(request)
        del headers["Content-Type"]
        while (backend := self.decoders.pick(tried, also_down=True)) is not None:
            tried.append(backend)
            timeout = aiohttp.ClientTimeout(total=self.settings.health_interval_s)
            try:
                async with self._session.get(
                    f"{backend.url}/v1/models", headers=headers, timeout=timeout
                ) as upstream:
                    return web.Response(
                        status=upstream.status,
                        body=await read_at_most(upstream.content, _MAX_MODELS_BYTES) or b"",
                        headers=end_to_end(upstream.headers),
                    )
            except (aiohttp.ClientError, OSError, TimeoutError) as exc:
                backend.failed(f"{type(exc).__name__}: {exc}")
        raise ProxyError(502, "no_decoder", "no decoder could be reached")

    async def _health(self, request: web.Request) -> web.Response:
        """200 while a decoder is up: without encoders requests still succeed.

        How the instances are is for operators.
        """
        fleets = (self.encoders, self.decoders)
        serving = any(backend.up for backend in self.decoders.backends)
        whole = all(b.up for f in fleets for b in f.backends)
        document: dict[str, Any] = {
            "status": ("ok" if whole else "degraded") if serving else "down"
        }
        if self._shows_backends(request):
            for fleet in fleets:
                document[f"{fleet.kind}s"] = [
                    {"url": b.url, "up": b.up, "inflight": b.inflight, "error": b.error}
                    for b in fleet.backends
                ]
        return web.json_response(document, status=200 if serving else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        shown = self._shows_backends(request)
        if self._operators is not None and not shown:
            raise _unauthorized("an operator's key")
        page = self.metrics.page(*((self.encoders, self.decoders) if shown else ()))
        return web.Response(body=page, headers={"Content-Type": "text/plain; version=0.0.4"})

    def _shows_backends(self, request: web.Request) -> bool:
        if self.settings.show_backends:
            return True
        return self._operators is not None and self._operators.open_to(request.headers)

    # -------------------------------------------------------------------- every path
    @web.middleware
    async def _check_head(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """What is known before a body is read: how long the head is, and whose it is."""
        limit = self.settings.max_header_bytes
        if sum(len(name) + len(value) for name, value in request.raw_headers) > limit:
            raise ProxyError(
                431, "headers_too_large", f"the request's headers are longer than {limit} bytes"
            )
        asks = request.path in SURFACES or request.path == "/v1/models"
        if asks and self._clients is not None and not self._clients.open_to(request.headers):
            raise _unauthorized("a key")
        return await handler(request)

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except ProxyError as exc:
            error = exc
        except web.HTTPNotFound:
            error = ProxyError(
                404,
                "not_served",
                f"{request.path:.200} is not served; this proxy serves POST "
                f"{', POST '.join(SURFACES)} and GET {', GET '.join(_OTHERS)}",
            )
        except web.HTTPMethodNotAllowed as exc:
            error = ProxyError(
                405,
                "method_not_allowed",
                f"{request.path}: {exc.method:.20} is not served; use "
                f"{', '.join(sorted(exc.allowed_methods))}",
                headers={"Allow": exc.headers["Allow"]},
            )
        except web.HTTPException as exc:
            if exc.status < 400:
                raise
            error = ProxyError(exc.status, "http_error", f"{request.path:.200}: {exc.reason}")
        except Exception:
            logger.exception("%s %s", request.method, request.path)
            error = ProxyError(500, "internal_error", "the proxy failed; its log tells why")
        served = SURFACES.get(request.path)
        response = web.json_response(
            error.body("openai" if served is None else served.style),
            status=error.status,
            headers=error.headers,
        )
        if error.status == 408:
            response.force_close()
        return response


def _unauthorized(what: str) -> ProxyError:
    return ProxyError(
        401,
        "invalid_api_key",
        f"{what} is needed, as Authorization: Bearer or x-api-key",
        headers={"WWW-Authenticate": "Bearer"},
    )


# ------------------------------------------- work on bodies, which long ones do elsewhere
def understand(
    raw: bytes, surface: Surface, settings: ProxySettings
) -> tuple[dict[str, Any], list[Media]]:
    """A body, and the media in it.

    Raises:
        ProxyError: 400 or 413: see ``parse``, ``Surface.find_media`` and
            ``max_media_bytes``.
    """
    body = parse(raw)
    media = surface.find_media(body, settings.max_media)
    for item in media:
        # Of four characters of base64 three bytes become.
        if item.url is None and item.nbytes * 3 // 4 > settings.max_media_bytes:
            raise media_too_large(settings.max_media_bytes, dotted(item.path))
    return body, media


def name_all(media: list[Media]) -> None:
    """Give all media its key."""
    for item in media:
        item.name()


def write(body: dict[str, Any]) -> bytes:
    """A body as bytes."""
    return json.dumps(body, allow_nan=False).encode()
