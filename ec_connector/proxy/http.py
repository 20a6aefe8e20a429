# SPDX-License-Identifier: Apache-2.0
"""Headers that are passed on, and one POST over a connection that may have been closed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import aiohttp
from multidict import CIMultiDict, MultiMapping

#: As they came: in their order, and repeated ones each.
Headers = CIMultiDict[str]

#: Idle connections are dropped before servers drop them (5 s by uvicorn's default).
KEEP_ALIVE_S: Final = 3.0

#: Not passed on: they belong to one connection, or to bytes that we send anew.
_HOP: Final = frozenset(
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
#: Not passed on either: by these orchestrators tell routers and sidecars where to go, and
#: a client does not.
STEERING: Final = frozenset(
    {
        "x-data-parallel-host-port",
        "x-data-parallel-rank",
        "x-encoder-hosts-ports",
        "x-gateway-destination-endpoint",
        "x-prefiller-host-port",
        "x-prefiller-url",
    }
)


def end_to_end(headers: MultiMapping[str], without: Iterable[str] = ()) -> Headers:
    """The headers that are not one connection's own, as they came.

    Args:
        headers: Received ones. What their ``Connection`` names is one connection's own.
        without: Further ones to leave out, in lower case.
    """
    named = {
        name.strip().lower()
        for value in headers.getall("Connection", [])
        for name in value.split(",")
    }
    left_out = _HOP | named | frozenset(without)
    return CIMultiDict((k, v) for k, v in headers.items() if k.lower() not in left_out)


def set_header(headers: Headers, name: str, value: str) -> Headers:
    """A copy in which ``name`` has one value."""
    changed = headers.copy()
    changed[name] = value
    return changed


async def read_at_most(content: aiohttp.StreamReader, limit: int) -> bytes | None:
    """All of an instance's answer; None if it is longer than ``limit`` bytes."""
    body = bytearray()
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > limit:
            return None
    return bytes(body)


async def post(
    session: aiohttp.ClientSession, url: str, **arguments: Any
) -> aiohttp.ClientResponse:
    """POST, once more if the connection ended before anything came back.

    A server may close an idle connection at the moment in which it is used again. That
    says nothing about the server, so it is asked over a fresh connection before it is
    taken for dead.

    Args:
        session: HTTP client.
        url: Where to.
        arguments: As for ``session.post``.

    Raises:
        aiohttp.ClientError: It could not be reached, or broke off twice.
        TimeoutError: It took too long.
    """
    try:
        return await session.post(url, **arguments)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
        return await session.post(url, **arguments)
