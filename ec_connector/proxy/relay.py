# SPDX-License-Identifier: Apache-2.0
"""The decoder's answer, passed on to the client as it comes.

A stream is passed on chunk by chunk. Only when media was replaced is its beginning
looked at first: decoders open a stream, and name the speaker, before they find that
an encoding is lost, so nothing goes out before the first event that says more.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Final, Literal

import aiohttp
from aiohttp import web

from ec_connector.proxy.errors import BackendFailed, BackendTimeout, EncodingLost, ProxyError
from ec_connector.proxy.fleet import Backend
from ec_connector.proxy.http import post

#: Not passed on: they belong to one connection, or to bytes that we send anew.
HOP_HEADERS: Final = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "date",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "server",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
#: Statuses that say nothing about an encoding: who asks, and how often.
_NOT_ABOUT_MEDIA: Final = frozenset({401, 403, 404, 405, 408, 413, 429})
#: A stream that has not said anything in so many bytes is passed on as it is.
_MAX_PEEK_BYTES: Final = 64 << 10
_FRAMES: Final = ("role", "content", "reasoning", "reasoning_content", "refusal")

Verdict = Literal["more", "fine", "lost"]


async def relay(
    request: web.Request,
    session: aiohttp.ClientSession,
    backend: Backend,
    payload: bytes,
    headers: dict[str, str],
    timeout: aiohttp.ClientTimeout,
    *,
    replaced: bool,
    others: bool,
    on_first_byte: Callable[[], None],
) -> web.StreamResponse:
    """Send a request to a decoder, and its answer to the client.

    Args:
        request: The client's request.
        session: HTTP client.
        backend: The decoder.
        payload: The body for it.
        headers: Headers for it.
        timeout: Connecting, and the pause between two reads.
        replaced: Whether references stand for media in the body, so that a failure
            may mean a lost encoding.
        others: Whether another decoder may be tried when this one is unavailable.
        on_first_byte: Called just before the first byte goes to the client.

    Raises:
        EncodingLost: ``replaced``, and the decoder refused or failed the request.
        BackendFailed: It could not be reached, broke off early, or is unavailable
            (503) while there are ``others``.
        BackendTimeout: It took too long.
        In all three cases nothing has been sent to the client.
    """
    with backend.busy():
        try:
            upstream = await post(
                session,
                f"{backend.url}/v1/chat/completions",
                data=payload,
                headers=headers,
                timeout=timeout,
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise _failure(backend, exc) from exc
        try:
            if upstream.status >= 400 and replaced and upstream.status not in _NOT_ABOUT_MEDIA:
                raise EncodingLost(f"HTTP {upstream.status}")
            if upstream.status == 503 and others:
                raise BackendFailed(f"{backend.url}: HTTP 503")
            if upstream.content_type == "text/event-stream":
                return await _stream(request, upstream, backend, replaced, on_first_byte)
            try:
                body = await upstream.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as exc:
                raise _failure(backend, exc) from exc
            on_first_byte()
            return web.Response(
                status=upstream.status,
                body=without_addresses(body),
                headers=end_to_end(upstream.headers),
            )
        finally:
            # Also when the client has gone: closing is what stops the generation.
            upstream.close()


async def _stream(
    request: web.Request,
    upstream: aiohttp.ClientResponse,
    backend: Backend,
    replaced: bool,
    on_first_byte: Callable[[], None],
) -> web.StreamResponse:
    chunks = upstream.content.iter_any()
    head = bytearray()
    verdict: Verdict = "more"
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
    on_first_byte()
    response = web.StreamResponse(status=upstream.status, headers=end_to_end(upstream.headers))
    await response.prepare(request)
    if head:
        await response.write(bytes(head))
    async for part in _until_broken(chunks, backend):
        await response.write(part)
    await response.write_eof()
    return response


async def _until_broken(chunks: AsyncIterator[bytes], backend: Backend) -> AsyncIterator[bytes]:
    """The chunks; one with an error event at the end if the decoder breaks off."""
    while True:
        try:
            chunk = await anext(chunks, b"")
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            code = "decoder_timeout" if isinstance(exc, TimeoutError) else "decoder_lost"
            reason = f"the decoder broke off: {type(exc).__name__}"
            if not isinstance(exc, TimeoutError):
                backend.failed(reason)
            yield ProxyError(502, code, reason).event()
            return
        if not chunk:
            return
        yield chunk


def judge(head: bytes) -> Verdict:
    """What the beginning of an event stream says about the request's encodings.

    Args:
        head: All bytes so far; the last event may be incomplete.

    Returns:
        ``lost`` for an error event; ``fine`` for an event that carries output, or
        anything that is not known; ``more`` while there is neither.
    """
    *events, _ = head.replace(b"\r\n", b"\n").split(b"\n\n")
    for event in events:
        data = b"\n".join(
            line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")
        )
        if not data:
            continue  # a comment, to keep the connection open
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            return "fine"  # [DONE], or none of our business
        if isinstance(document, dict) and document.get("error"):
            return "lost"
        if not _only_opens(document):
            return "fine"
    return "more"


def _only_opens(document: object) -> bool:
    """Whether an event names the speaker and says nothing yet."""
    choices = document.get("choices") if isinstance(document, dict) else None
    if not isinstance(choices, list) or not choices:
        return False
    for choice in choices:
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if not isinstance(delta, dict) or choice.get("finish_reason"):
            return False
        said = {name: value for name, value in delta.items() if name != "role" and value}
        if said or not set(delta) <= set(_FRAMES) | {"tool_calls", "function_call"}:
            return False
    return True


def without_addresses(body: bytes) -> bytes:
    """An answer without what a decoder that is an encoder too (``ec_both``) announces.

    Clients can use none of it, and it names hosts of the inner network. An answer that
    announces nothing stays the very same bytes.
    """
    if b'"ec_transfer_params"' not in body:
        return body
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if not isinstance(document, dict) or document.get("ec_transfer_params") is None:
        return body
    document["ec_transfer_params"] = None
    return json.dumps(document).encode()


def end_to_end(headers: aiohttp.typedefs.LooseHeaders) -> dict[str, str]:
    """The headers that are not one connection's own."""
    items = headers.items() if hasattr(headers, "items") else headers
    return {str(k): str(v) for k, v in items if str(k).lower() not in HOP_HEADERS}


def _failure(backend: Backend, exc: BaseException) -> BackendFailed:
    if isinstance(exc, TimeoutError) and not isinstance(exc, aiohttp.ConnectionTimeoutError):
        return BackendTimeout(f"{backend.url}: no answer in time")
    reason = f"{type(exc).__name__}: {exc}"
    backend.failed(reason)
    return BackendFailed(f"{backend.url}: {reason}")
