# SPDX-License-Identifier: Apache-2.0
"""The decoder's answer, passed on to the client as it comes.

A stream is passed on event by event. Only when media was replaced is its beginning
looked at first: decoders open a stream, and name the speaker, before they find that
an encoding is lost, so nothing goes out before the first event that says more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import aiohttp
from aiohttp import web

from ec_connector.proxy.answers import Events, TooLong, judge, without_addresses
from ec_connector.proxy.errors import BackendFailed, BackendTimeout, EncodingLost, ProxyError
from ec_connector.proxy.fleet import Backend
from ec_connector.proxy.http import Headers, end_to_end, post, read_at_most
from ec_connector.proxy.intake import Workers
from ec_connector.proxy.settings import ProxySettings
from ec_connector.proxy.surfaces import Surface

__all__ = ["Relay", "end_to_end"]

logger = logging.getLogger(__name__)

#: Statuses that say nothing about an encoding: who asks, and how often.
_NOT_ABOUT_MEDIA = frozenset({401, 403, 404, 405, 408, 413, 429})
#: A stream that has not said anything in so many bytes is passed on as it is.
_MAX_PEEK_BYTES = 64 << 10
#: So much is written at once to a client that may be slow.
_PIECE_BYTES = 64 << 10


class Relay:
    """Sends one client's request to decoders, and the answer to the client.

    Args:
        settings: The proxy's.
        session: HTTP client.
        workers: Where long answers are looked into.
        request: The client's request.
        surface: Its path.
        on_first_byte: Called just before the first byte goes to the client.
    """

    def __init__(
        self,
        settings: ProxySettings,
        session: aiohttp.ClientSession,
        workers: Workers,
        request: web.Request,
        surface: Surface,
        on_first_byte: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._session = session
        self._workers = workers
        self._request = request
        self._surface = surface
        self._on_first_byte = on_first_byte
        self._timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=settings.connect_timeout_s,
            sock_read=settings.decoder_timeout_s,
        )

    async def send(
        self,
        backend: Backend,
        payload: bytes,
        headers: Headers,
        *,
        replaced: bool,
        others: bool,
    ) -> web.StreamResponse:
        """Ask a decoder and answer the client.

        Args:
            backend: The decoder.
            payload: The body for it.
            headers: Headers for it.
            replaced: Whether references stand for media in the body, so that a failure
                may mean a lost encoding.
            others: Whether another decoder may be tried when this one is unavailable.

        Raises:
            EncodingLost: ``replaced``, and the decoder refused or failed the request.
            BackendFailed: It could not be reached, broke off early, or is unavailable
                (503) while there are ``others``.
            BackendTimeout: It took too long.
            ProxyError: Its answer is too long.
            In all these cases nothing has been sent to the client.
            ConnectionResetError: The client takes nothing any more.
        """
        with backend.busy():
            try:
                upstream = await post(
                    self._session,
                    f"{backend.url}{self._surface.path}",
                    data=payload,
                    headers=headers,
                    timeout=self._timeout,
                )
            except (aiohttp.ClientError, OSError, TimeoutError) as exc:
                raise _failure(backend, exc) from exc
            try:
                if upstream.status >= 400 and replaced and upstream.status not in _NOT_ABOUT_MEDIA:
                    raise EncodingLost(f"HTTP {upstream.status}")
                if upstream.status == 503 and others:
                    raise BackendFailed(f"{backend.url}: HTTP 503")
                if upstream.content_type == "text/event-stream":
                    return await self._stream(upstream, backend, replaced)
                try:
                    body = await self._whole(upstream)
                except (aiohttp.ClientError, OSError, TimeoutError) as exc:
                    raise _failure(backend, exc) from exc
                cleaned = await self._workers.run(len(body), without_addresses, body)
                return await self._answer(upstream, cleaned)
            finally:
                # Also when the client has gone: closing is what stops the generation.
                upstream.close()

    async def _whole(self, upstream: aiohttp.ClientResponse) -> bytes:
        limit = self._settings.max_answer_bytes
        body = await read_at_most(upstream.content, limit)
        if body is None:
            logger.warning("a decoder's answer is longer than %d bytes", limit)
            raise ProxyError(
                502, "answer_too_large", f"the decoder's answer is longer than {limit} bytes"
            )
        return body

    async def _answer(self, upstream: aiohttp.ClientResponse, body: bytes) -> web.StreamResponse:
        self._on_first_byte()
        headers = end_to_end(upstream.headers)
        response = web.StreamResponse(status=upstream.status, headers=headers)
        response.content_length = len(body)
        await response.prepare(self._request)
        for start in range(0, len(body), _PIECE_BYTES):
            await self._write(response, body[start : start + _PIECE_BYTES])
        await self._end(response)
        return response

    async def _stream(
        self, upstream: aiohttp.ClientResponse, backend: Backend, replaced: bool
    ) -> web.StreamResponse:
        events = Events(self._settings.max_answer_bytes)
        chunks = upstream.content.iter_any()
        head = bytearray()
        verdict = "more"
        while verdict == "more":
            try:
                chunk = await anext(chunks, b"")
            except (aiohttp.ClientError, OSError, TimeoutError) as exc:
                raise _failure(backend, exc) from exc
            head += chunk
            if not replaced or not chunk or len(head) > _MAX_PEEK_BYTES:
                break
            verdict = judge(bytes(head))
        if verdict == "lost":
            raise EncodingLost("an error instead of the first token")
        self._on_first_byte()
        response = web.StreamResponse(status=upstream.status, headers=end_to_end(upstream.headers))
        await response.prepare(self._request)
        async for part in self._events(events, bytes(head), chunks, backend):
            await self._write(response, part)
        await self._end(response)
        return response

    async def _events(
        self, events: Events, head: bytes, chunks: AsyncIterator[bytes], backend: Backend
    ) -> AsyncIterator[bytes]:
        """What goes to the client; an error event at the end if the decoder breaks off."""
        try:
            if part := events.feed(head):
                yield part
            while chunk := await anext(chunks, b""):
                if part := events.feed(chunk):
                    yield part
            if part := events.end():
                yield part
            return
        except TooLong as exc:
            error = ProxyError(502, "answer_too_large", str(exc))
        except TimeoutError:
            error = ProxyError(502, "decoder_timeout", "the decoder broke off: it fell silent")
        except (aiohttp.ClientError, OSError) as exc:
            reason = f"the decoder broke off: {type(exc).__name__}"
            backend.failed(reason)
            error = ProxyError(502, "decoder_lost", reason)
        yield error.event(self._surface.style)

    # ------------------------------------------------------------------- the client
    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        try:
            async with asyncio.timeout(self._settings.client_timeout_s):
                await response.write(data)
        except TimeoutError:
            raise self._gone() from None

    async def _end(self, response: web.StreamResponse) -> None:
        try:
            async with asyncio.timeout(self._settings.client_timeout_s):
                await response.write_eof()
        except TimeoutError:
            raise self._gone() from None

    def _gone(self) -> ConnectionResetError:
        """A client that takes nothing is cut off: what waits for it is held in memory."""
        if self._request.transport is not None:
            self._request.transport.abort()
        return ConnectionResetError("the client does not take its answer")


def _failure(backend: Backend, exc: BaseException) -> BackendFailed:
    if isinstance(exc, TimeoutError) and not isinstance(exc, aiohttp.ConnectionTimeoutError):
        return BackendTimeout(f"{backend.url}: no answer in time")
    reason = f"{type(exc).__name__}: {exc}"
    backend.failed(reason)
    return BackendFailed(f"{backend.url}: {reason}")
