# SPDX-License-Identifier: Apache-2.0
"""The instances of one kind: which of them takes the next request, and which are up."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import aiohttp

if TYPE_CHECKING:
    from ec_connector.proxy.settings import Policy

logger = logging.getLogger(__name__)

Kind = Literal["encoder", "decoder"]


@dataclass(slots=True, eq=False)
class Backend:
    """One instance.

    Attributes:
        kind: What it does.
        url: Its base URL.
        up: Whether it answered last; an instance is taken for up until it does not.
        inflight: Requests that it is working on for this proxy.
        last_used: Grows with each request; breaks ties in turn.
        error: Why it is down, or ``""``.
    """

    kind: Kind
    url: str
    up: bool = True
    inflight: int = 0
    last_used: int = 0
    error: str = ""

    def failed(self, reason: str) -> None:
        """It could not be reached; it is used again once a health check succeeds."""
        if self.up:
            logger.warning("%s %s is down: %s", self.kind, self.url, reason)
        self.up, self.error = False, reason

    def answered(self) -> None:
        """It answered."""
        if not self.up:
            logger.info("%s %s is up again", self.kind, self.url)
        self.up, self.error = True, ""

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Counts one request as being worked on."""
        self.inflight += 1
        try:
            yield
        finally:
            self.inflight -= 1


class Fleet:
    """All instances of one kind.

    Args:
        kind: What they do.
        urls: Their base URLs.
        policy: ``least-loaded``: the one with the fewest requests of ours, in turn
            among equals. ``round-robin``: in turn.
    """

    def __init__(self, kind: Kind, urls: Collection[str], policy: Policy) -> None:
        self.kind = kind
        self.backends = [Backend(kind, url) for url in urls]
        self._policy = policy
        self._turns = itertools.count(1)

    def pick(self, tried: Collection[Backend] = (), *, also_down: bool = False) -> Backend | None:
        """The instance for the next request, or None.

        Args:
            tried: Instances that have had this request.
            also_down: Whether to take one that is down when none is up. Its last
                health check may be seconds old.
        """
        left = [backend for backend in self.backends if backend not in tried]
        usable = [backend for backend in left if backend.up] or (left if also_down else [])
        if not usable:
            return None
        by_load = self._policy == "least-loaded"
        chosen = min(usable, key=lambda b: (b.inflight if by_load else 0, b.last_used))
        chosen.last_used = next(self._turns)
        return chosen

    async def check(self, session: aiohttp.ClientSession, timeout_s: float) -> None:
        """Ask every instance for its health, all at once."""
        await asyncio.gather(*(_check(b, session, timeout_s) for b in self.backends))


async def _check(backend: Backend, session: aiohttp.ClientSession, timeout_s: float) -> None:
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with session.get(f"{backend.url}/health", timeout=timeout) as response:
            status = response.status
    except (aiohttp.ClientError, OSError, TimeoutError) as exc:
        backend.failed(f"health check: {type(exc).__name__}: {exc}")
        return
    if status == 200:
        backend.answered()
    else:
        backend.failed(f"health check: HTTP {status}")
