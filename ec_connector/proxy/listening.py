# SPDX-License-Identifier: Apache-2.0
"""The proxy's listening socket: how many connections it takes and how long one may idle."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from ec_connector.proxy.errors import ProxyError
from ec_connector.proxy.server import Proxy
from ec_connector.proxy.settings import ProxySettings
from ec_protocol.errors import ConfigError

_SHUTDOWN_S: Final = 10.0
#: How long the rest of a body is still read, and dropped, after its request was refused,
#: so that the client sees the answer and not a broken connection.
_LINGER_S: Final = 2.0
_MAX_HEADERS: Final = 100
#: Files that are open beside connections.
_OTHER_FILES: Final = 100


class _Door:
    """Counts the connections of clients. Event loop only.

    Args:
        settings: How many there may be.
    """

    def __init__(self, settings: ProxySettings) -> None:
        self.limit = settings.max_connections
        self.open = 0


class _Counted(asyncio.Protocol):
    """One connection: handed on to the HTTP server if there is room for it."""

    def __init__(self, door: _Door, inner: asyncio.Protocol) -> None:
        self._door = door
        self._inner = inner
        self._taken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._taken = self._door.open < self._door.limit
        if self._taken:
            self._door.open += 1
            self._inner.connection_made(transport)
        elif isinstance(transport, asyncio.WriteTransport):
            transport.write(_no_room(self._door.limit))
            transport.close()

    def data_received(self, data: bytes) -> None:
        if self._taken:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._taken else None

    def pause_writing(self) -> None:
        if self._taken:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._taken:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._taken:
            self._door.open -= 1
            self._inner.connection_lost(exc)


def _no_room(limit: int) -> bytes:
    error = ProxyError(503, "too_many_connections", f"{limit} connections are open already")
    body = json.dumps(error.body()).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


@asynccontextmanager
async def listening(proxy: Proxy) -> AsyncIterator[str]:
    """A proxy that answers, and its URL; at the end requests get 10 s to finish.

    Raises:
        ConfigError: The address cannot be listened on.
    """
    settings = proxy.settings
    runner = web.AppRunner(
        proxy.app(),
        # A client that goes away must stop the requests that run for it.
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=_SHUTDOWN_S,
        # From the first moment on, so it also bounds how long a head takes to come.
        keepalive_timeout=settings.client_timeout_s,
        lingering_time=_LINGER_S,
        max_line_size=min(8190, settings.max_header_bytes),
        max_field_size=min(8190, settings.max_header_bytes),
        max_headers=_MAX_HEADERS,
        auto_decompress=False,
    )
    await runner.setup()
    try:
        http = runner.server
        assert http is not None  # for mypy: it is there after setup
        door = _Door(settings)
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                lambda: _Counted(door, http()), settings.host, settings.port
            )
        except OSError as exc:
            raise ConfigError(
                f"--host={settings.host} --port={settings.port}: cannot listen there: {exc}"
            ) from exc
        try:
            host, port = server.sockets[0].getsockname()[:2]
            yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
        finally:
            server.close()
    finally:
        await runner.cleanup()


async def serve(settings: ProxySettings, on_ready: Callable[[str], None]) -> None:
    """Run a proxy until SIGTERM or SIGINT; requests under way get 10 s to finish.

    Args:
        settings: Checked settings.
        on_ready: Called with the proxy's URL once it listens.

    Raises:
        ConfigError: The address cannot be listened on, a key file cannot be used, or
            there may not be as many open files as ``max_connections`` asks for.
    """
    _allow_files(settings)
    async with listening(Proxy(settings)) as url:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        on_ready(url)
        await stopped.wait()


def _allow_files(settings: ProxySettings) -> None:
    """Raise this process's limit of open files to what the settings may need."""
    needed = (
        2 * settings.max_connections
        + len(settings.encoders) * settings.max_encoder_requests
        + _OTHER_FILES
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= needed:
        return
    if hard != unlimited and hard < needed:
        raise ConfigError(
            f"--max-connections={settings.max_connections}: {needed} files may be open at a "
            f"time, but this process may have {hard}; lower it, --max-encoder-requests, or "
            "raise the limit (ulimit -n)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
