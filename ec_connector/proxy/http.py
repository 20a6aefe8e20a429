# SPDX-License-Identifier: Apache-2.0
"""One POST to an instance, over a connection that may have been closed meanwhile."""

from __future__ import annotations

from typing import Any, Final

import aiohttp

#: Idle connections are dropped before servers drop them (5 s by uvicorn's default).
KEEP_ALIVE_S: Final = 3.0


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
