# SPDX-License-Identifier: Apache-2.0
"""Media behind URLs: fetched here, from hosts that were allowed, or not at all.

A URL in a request makes a server connect to a host that a client chose, perhaps inside
of the network where only servers should be. So the proxy passes none on: it fetches what
is allowed and sends the media itself. What is checked is what is connected to: the name
against the allowed ones, and after resolution each address, which must be public or in an
allowed network. A redirection is checked in the same way. A client learns only that its
media could not be had, not what the network answered.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import logging
import re
import socket
from collections.abc import Iterable
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from ec_connector.proxy.errors import ProxyError
from ec_connector.proxy.intake import Held
from ec_connector.proxy.media import Media, dotted
from ec_connector.proxy.settings import ProxySettings

logger = logging.getLogger(__name__)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_PORTS: Final = {"http": 80, "https": 443}
_AT_ONCE: Final = 16
_REDIRECTS: Final = 3
_MOVED: Final = frozenset({301, 302, 303, 307, 308})
_MEDIA_TYPE: Final = re.compile(r"[a-z]+/[a-z0-9.+-]{1,64}")
#: In addresses of this network stand those of the one behind a translator.
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


class Refused(Exception):
    """Media that is not fetched, or could not be. For the log, not for clients."""


class Allowed:
    """Which hosts and addresses media is fetched from.

    Args:
        settings: ``allowed_media_domains`` and ``allowed_media_networks``.
    """

    def __init__(self, settings: ProxySettings) -> None:
        self._domains = [_split(domain) for domain in settings.allowed_media_domains]
        self._networks = [
            ipaddress.ip_network(network) for network in settings.allowed_media_networks
        ]

    def url(self, url: URL) -> bool:
        """Whether a URL's scheme, host and port are allowed."""
        usual = _PORTS.get(url.scheme)
        host = (url.raw_host or "").lower().rstrip(".")
        if usual is None or not host or url.raw_user is not None or url.raw_password is not None:
            return False
        return any(
            _fits(host, domain) and url.port == (port or usual) for domain, port in self._domains
        )

    def address(self, text: str) -> bool:
        """Whether an address may be connected to."""
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            return False
        if any(address in network for network in self._networks):
            return True
        within = _hidden(address)
        if within is not None:
            return self.address(str(within))
        return address.is_global and not address.is_multicast


def _split(domain: str) -> tuple[str, int | None]:
    host, colon, port = domain.rpartition(":")
    if colon and port.isdigit():
        return host.strip("[]"), int(port)
    return domain.strip("[]"), None


def _fits(host: str, domain: str) -> bool:
    if domain.startswith("*."):
        return host.endswith(domain[1:])
    return domain in ("*", host)


def _hidden(address: Address) -> ipaddress.IPv4Address | None:
    """The address of IPv4 that one of IPv6 leads to, if it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)


class _Resolver(AbstractResolver):
    """Resolves names to the allowed ones of their addresses; what it says is connected to."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self._inner = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        usable = [entry for entry in found if self._allowed.address(entry["host"])]
        if not usable:
            raise OSError(f"{host}: no address of it may be connected to")
        return usable

    async def close(self) -> None:
        await self._inner.close()


class Fetcher:
    """Fetches media for requests.

    Args:
        settings: What is allowed, and how much.
    """

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._allowed = Allowed(settings)
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=_AT_ONCE, resolver=_Resolver(self._allowed), force_close=True
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
            # What is packed may be anything once it is unpacked; it is refused below.
            auto_decompress=False,
            # An environment's proxy would resolve names by itself.
            trust_env=False,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def fetch_all(self, media: Iterable[Media], held: Held) -> None:
        """Bring all media that is behind URLs into its request; each URL is fetched once.

        Args:
            media: With a ``url``.
            held: Grows by the media's bytes.

        Raises:
            ProxyError: 400: a host is not allowed, or media could not be had; 413: it is
                too long; 503: see ``Held``.
        """
        wanted: dict[tuple[str, str], list[Media]] = {}
        for item in media:
            wanted.setdefault((item.url or "", item.modality), []).append(item)
        found = await asyncio.gather(
            *(self._fetch(items[0], held) for items in wanted.values()), return_exceptions=True
        )
        for items, result in zip(wanted.values(), found, strict=True):
            if isinstance(result, BaseException):
                raise result
            for item in items:
                held.grow(len(result[1]))
                item.bring(*result)

    async def _fetch(self, media: Media, held: Held) -> tuple[str, str]:
        """Media type, and media in base64."""
        modality, param = media.modality, dotted(media.path)
        url = _parsed(media.url or "")
        if url is None or not self._allowed.url(url):
            raise ProxyError(
                400,
                "media_url_not_allowed",
                "media may not be fetched from there; send it in the request as a data: URL"
                + (
                    ", or name an allowed host"
                    if self._settings.allowed_media_domains
                    else " (this proxy fetches nothing: --allowed-media-domain)"
                ),
                param,
            )
        try:
            async with self._turns, asyncio.timeout(self._settings.fetch_timeout_s):
                return await self._follow(url, modality, held)
        except (Refused, aiohttp.ClientError, OSError, TimeoutError, ValueError) as exc:
            logger.warning("media of %s: %s: %s", url.host, type(exc).__name__, exc)
            raise ProxyError(
                400,
                "media_not_fetched",
                f"the {modality} could not be fetched: it must be there, be of such a type, and "
                f"arrive within {self._settings.fetch_timeout_s:g} s",
                param,
            ) from None

    async def _follow(self, url: URL, modality: str, held: Held) -> tuple[str, str]:
        for _ in range(1 + _REDIRECTS):
            # The resolver is not asked about hosts that are addresses.
            host = url.raw_host or ""
            if _is_address(host) and not self._allowed.address(host):
                raise Refused(f"{host} may not be connected to")
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status not in _MOVED:
                    return await self._read(response, modality, held)
                where = _parsed(response.headers.get("Location", ""), url)
            if where is None or not self._allowed.url(where):
                raise Refused(f"redirected to {where!s:.200}, which is not allowed")
            url = where
        raise Refused("redirected too often")

    async def _read(
        self, response: aiohttp.ClientResponse, modality: str, held: Held
    ) -> tuple[str, str]:
        if response.status != 200:
            raise Refused(f"HTTP {response.status}")
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Refused("it is packed")
        kind = response.content_type.lower()
        if not _MEDIA_TYPE.fullmatch(kind) or not kind.startswith(f"{modality}/"):
            raise Refused(f"it is {kind:.80}, not {modality}")
        limit = self._settings.max_media_bytes
        data = bytearray()
        async for chunk in response.content.iter_any():
            if len(data) + len(chunk) > limit:
                raise media_too_large(limit)
            held.grow(len(chunk))
            data += chunk
        return kind, base64.b64encode(data).decode()


def media_too_large(limit: int, param: str | None = None) -> ProxyError:
    """The answer to one piece of media that is longer than ``limit`` bytes."""
    return ProxyError(
        413, "media_too_large", f"a piece of media is longer than {limit} bytes", param
    )


def _parsed(text: str, base: URL | None = None) -> URL | None:
    try:
        url = URL(text)
        return url if base is None else base.join(url)
    except ValueError:
        return None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
