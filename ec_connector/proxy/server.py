# SPDX-License-Identifier: Apache-2.0
"""The proxy's HTTP side: `/v1/chat/completions`, `/v1/models`, `/health`, `/metrics`."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from aiohttp import web

from ec_connector.proxy.announced import Announced, memory_key
from ec_connector.proxy.encode import Encoders
from ec_connector.proxy.errors import BackendFailed, BackendTimeout, EncodingLost, ProxyError
from ec_connector.proxy.fleet import Backend, Fleet
from ec_connector.proxy.http import KEEP_ALIVE_S
from ec_connector.proxy.media import Media, decoder_request, find_media
from ec_connector.proxy.metrics import ProxyMetrics
from ec_connector.proxy.relay import end_to_end, relay
from ec_connector.proxy.settings import ProxySettings
from ec_protocol.errors import ConfigError

if TYPE_CHECKING:
    from ec_connector.proxy.watch import EventWatch

logger = logging.getLogger(__name__)

_SHUTDOWN_S: Final = 10.0
_SESSION_HEADERS: Final = {"Accept-Encoding": "identity"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Proxy:
    """One proxy.

    Args:
        settings: Checked settings.
    """

    def __init__(self, settings: ProxySettings) -> None:
        self.settings = settings
        self.metrics = ProxyMetrics()
        self.encoders = Fleet("encoder", settings.encoders, settings.policy)
        self.decoders = Fleet("decoder", settings.decoders, settings.policy)
        self._timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=settings.connect_timeout_s,
            sock_read=settings.decoder_timeout_s,
        )
        self._announced = Announced() if settings.events else None
        self._session: aiohttp.ClientSession
        self._encode: Encoders

    def app(self) -> web.Application:
        """The application.

        Run it with ``handler_cancellation``: a client that goes away must stop the
        requests that run for it.
        """
        app = web.Application(
            client_max_size=self.settings.max_body_bytes, middlewares=[self._answer_errors]
        )
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.cleanup_ctx.append(self._running)
        return app

    async def _running(self, app: web.Application) -> AsyncIterator[None]:
        # As many connections as there are requests: limits are the instances' business.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
        async with aiohttp.ClientSession(connector=connector, headers=_SESSION_HEADERS) as session:
            self._session = session
            self._encode = Encoders(
                self.settings, self.encoders, session, self.metrics, self._announced
            )
            watch = self._start_watch()
            checker = asyncio.create_task(self._check_health())
            yield
            checker.cancel()
            await asyncio.gather(checker, return_exceptions=True)
            if watch is not None:
                await asyncio.to_thread(watch.stop)

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

    # ------------------------------------------------------------------ completions
    async def _chat(self, request: web.Request) -> web.StreamResponse:
        status = 499
        try:
            response = await self._complete(request)
            status = response.status
            return response
        except ProxyError as exc:
            status = exc.status
            raise
        except web.HTTPException as exc:
            status = exc.status
            raise
        except ConnectionResetError:
            # Only writing to the client raises it here: there is nobody to answer.
            raise asyncio.CancelledError from None
        finally:
            self.metrics.requests.labels(str(status)).inc()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        started = time.monotonic()
        raw = await request.read()
        body = _parse(raw)
        if "ec_transfer_params" in body:
            # Whoever sets it makes decoders connect to addresses of their choice.
            raise ProxyError(
                400,
                "unexpected_ec_transfer_params",
                "ec_transfer_params is set by this proxy and may not be part of a request",
                "ec_transfer_params",
            )
        headers = end_to_end(request.headers)
        headers = {k: v for k, v in headers.items() if k.lower() not in ("x-request-id", "accept")}
        headers["X-Request-Id"] = request.headers.get("X-Request-Id") or secrets.token_hex(8)
        headers["Content-Type"] = "application/json"

        def first_byte() -> None:
            self.metrics.first_byte_seconds.observe(time.monotonic() - started)

        media = find_media(body)
        if media:
            if len(media) > self.settings.max_media:
                raise ProxyError(
                    400,
                    "too_much_media",
                    f"{len(media)} pieces of media in one request; this proxy takes at most "
                    f"{self.settings.max_media}",
                    "messages",
                )
            payload, replaced = await self._with_announcements(body, media, headers)
            if replaced:
                try:
                    return await self._decode(request, payload, headers, first_byte, replaced=True)
                except EncodingLost as exc:
                    logger.warning("media put back into the request: %s", exc)
                    self.metrics.retries.labels("encoding_lost").inc()
                    if self._announced is not None:
                        self._announced.forget_keys(memory_key(body, item) for item in media)
                    payload = raw
        else:
            payload = raw
        return await self._decode(request, payload, headers, first_byte, replaced=False)

    async def _with_announcements(
        self, body: dict[str, Any], media: list[Media], headers: dict[str, str]
    ) -> tuple[bytes, bool]:
        """The decoder's request, and whether media was replaced in it."""
        with self.metrics.encode_seconds.time():
            announced = await self._encode.encode(body, media, headers)
        changed, replaced = decoder_request(
            body, media, announced, keep_media=self.settings.keep_media
        )
        with_params = sum(bool(m.key and announced[m.key].params) for m in media)
        self.metrics.media.labels("replaced").inc(replaced)
        self.metrics.media.labels("announced").inc(max(0, with_params - replaced))
        self.metrics.media.labels("kept").inc(len(media) - max(replaced, with_params))
        return json.dumps(changed, allow_nan=False).encode(), replaced > 0

    async def _decode(
        self,
        request: web.Request,
        payload: bytes,
        headers: dict[str, str],
        first_byte: Callable[[], None],
        *,
        replaced: bool,
    ) -> web.StreamResponse:
        tried: list[Backend] = []
        problem = "no decoder is configured"
        for left in reversed(range(1 + self.settings.retries)):
            backend = self.decoders.pick(tried, also_down=True)
            if backend is None:
                break
            if tried:
                self.metrics.retries.labels("decoder_failed").inc()
            tried.append(backend)
            try:
                return await relay(
                    request,
                    self._session,
                    backend,
                    payload,
                    headers,
                    self._timeout,
                    replaced=replaced,
                    others=left > 0 and len(tried) < len(self.decoders.backends),
                    on_first_byte=first_byte,
                )
            except BackendTimeout as exc:
                raise ProxyError(504, "decoder_timeout", str(exc)) from exc
            except BackendFailed as exc:
                problem = str(exc)
        raise ProxyError(502, "no_decoder", f"no decoder could be reached; the last: {problem}")

    # ------------------------------------------------------------------ the others
    async def _models(self, request: web.Request) -> web.StreamResponse:
        tried: list[Backend] = []
        while (backend := self.decoders.pick(tried, also_down=True)) is not None:
            tried.append(backend)
            timeout = aiohttp.ClientTimeout(total=self.settings.health_interval_s)
            try:
                async with self._session.get(
                    f"{backend.url}/v1/models",
                    headers=end_to_end(request.headers),
                    timeout=timeout,
                ) as upstream:
                    return web.Response(
                        status=upstream.status,
                        body=await upstream.read(),
                        headers=end_to_end(upstream.headers),
                    )
            except (aiohttp.ClientError, OSError, TimeoutError) as exc:
                backend.failed(f"{type(exc).__name__}: {exc}")
        raise ProxyError(502, "no_decoder", "no decoder could be reached")

    async def _health(self, request: web.Request) -> web.Response:
        """200 while a decoder is up: without encoders requests still succeed."""
        fleets = (self.encoders, self.decoders)
        document = {
            "status": "ok" if all(b.up for f in fleets for b in f.backends) else "degraded",
            **{
                f"{fleet.kind}s": [
                    {"url": b.url, "up": b.up, "inflight": b.inflight, "error": b.error}
                    for b in fleet.backends
                ]
                for fleet in fleets
            },
        }
        serving = any(backend.up for backend in self.decoders.backends)
        if not serving:
            document["status"] = "down"
        return web.json_response(document, status=200 if serving else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        page = self.metrics.page(self.encoders, self.decoders)
        return web.Response(body=page, headers={"Content-Type": "text/plain; version=0.0.4"})

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except ProxyError as exc:
            error = exc
        except web.HTTPRequestEntityTooLarge:
            error = ProxyError(
                413,
                "body_too_large",
                f"the request body is longer than {self.settings.max_body_bytes} bytes",
            )
        except web.HTTPException as exc:
            if exc.status < 400:
                raise
            error = ProxyError(exc.status, "http_error", f"{request.path}: {exc.reason}")
        except Exception:
            logger.exception("%s %s", request.method, request.path)
            error = ProxyError(500, "internal_error", "the proxy failed; its log tells why")
        return web.json_response(error.body(), status=error.status)


def _parse(raw: bytes) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    def finite(digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            raise ValueError(f"{digits:.40} is out of range")
        return number

    try:
        body = json.loads(raw, parse_constant=refuse, parse_float=finite)
    except RecursionError:
        raise ProxyError(400, "invalid_json", "the body is nested too deeply") from None
    except ValueError as exc:
        raise ProxyError(400, "invalid_json", f"the body is not JSON: {exc}") from None
    if not isinstance(body, dict):
        raise ProxyError(
            400, "invalid_request", f"the body is a {type(body).__name__}; expected an object"
        )
    return body


async def serve(settings: ProxySettings, on_ready: Callable[[str], None]) -> None:
    """Run a proxy until SIGTERM or SIGINT; requests under way get 10 s to finish.

    Args:
        settings: Checked settings.
        on_ready: Called with the proxy's URL once it listens.

    Raises:
        ConfigError: The address cannot be listened on.
    """
    runner = web.AppRunner(
        Proxy(settings).app(),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=_SHUTDOWN_S,
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.port)
        try:
            await site.start()
        except OSError as exc:
            raise ConfigError(
                f"--host={settings.host} --port={settings.port}: cannot listen there: {exc}"
            ) from exc
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        host, port = runner.addresses[0][:2]
        on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        await stopped.wait()
    finally:
        await runner.cleanup()
