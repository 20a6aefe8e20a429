# SPDX-License-Identifier: Apache-2.0
"""Encoder requests: one for each different piece of media, all at once.

An encoder that fails costs its media nothing but time: they stay in the request.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp

from ec_connector.proxy.announced import Announced, encoding_name
from ec_connector.proxy.fleet import Backend, Fleet
from ec_connector.proxy.http import Headers, post, read_at_most, set_header
from ec_connector.proxy.intake import Workers
from ec_connector.proxy.media import (
    Announcement,
    Media,
    encoder_request,
    read_announcement,
)
from ec_connector.proxy.metrics import ProxyMetrics
from ec_connector.proxy.settings import ProxySettings

logger = logging.getLogger(__name__)

#: An encoder's answer holds no tokens; one that is longer is none.
_MAX_ANSWER_BYTES: Final = 4 << 20


class _Wanted:
    """One encoding: of which media, encoded how, under which name."""

    def __init__(self, fields: Mapping[str, Any], media: Media, named: bool) -> None:
        self.media = media
        self._fields = fields
        name = encoding_name(fields, media)
        self._name = name if named else None
        self.key = name if named else f"as decoders name it: {name}"

    def written(self) -> bytes:
        """The request to an encoder; takes time for long media."""
        return json.dumps(encoder_request(self._fields, self.media, self._name)).encode()


class Encoders:
    """Sends media to encoder instances.

    Args:
        settings: The proxy's.
        fleet: The encoder instances.
        session: HTTP client.
        metrics: The proxy's.
        workers: Where long requests are written.
        announced: What is known to be encoded; None when no events are heard.
    """

    def __init__(
        self,
        settings: ProxySettings,
        fleet: Fleet,
        session: aiohttp.ClientSession,
        metrics: ProxyMetrics,
        workers: Workers,
        announced: Announced | None = None,
    ) -> None:
        self._announced = announced
        self._fleet = fleet
        self._session = session
        self._metrics = metrics
        self._workers = workers
        self._tries = 1 + settings.retries
        self._timeout = aiohttp.ClientTimeout(
            total=settings.encoder_timeout_s, sock_connect=settings.connect_timeout_s
        )

    async def encode(
        self, fields: Mapping[str, Any], media: Sequence[Media], headers: Headers, *, named: bool
    ) -> dict[str, Announcement]:
        """Have all media of a request encoded.

        Args:
            fields: What of the client's request changes how its media is encoded.
            media: All of it.
            headers: What of the client's headers goes on; each encoder request gets
                an ``X-Request-Id`` of its own.
            named: Encode under ``encoding_name``, for references; otherwise as decoders
                name the media itself.

        Returns:
            What was announced, by ``Media.key``; an entry for every key that was sent.
        """
        different = {item.key: _Wanted(fields, item, named) for item in media}
        answers = await asyncio.gather(
            *(
                self._known_or_encoded(item, _numbered(headers, number))
                for number, item in enumerate(different.values())
            )
        )
        return dict(zip(different, await self._again(different, answers, headers), strict=True))

    def forget(self, fields: Mapping[str, Any], media: Sequence[Media]) -> None:
        """References to these were found to be lost."""
        if self._announced is not None:
            keys = [_Wanted(fields, item, True).key for item in media]
            self._announced.forget_keys(keys)

    async def _known_or_encoded(
        self, wanted: _Wanted, headers: Headers
    ) -> tuple[Announcement, float]:
        """An announcement, and since when it is known to hold."""
        if self._announced is None:
            return await self._encode_one(wanted, headers), 0.0
        asked_at = self._announced.clock()
        key = wanted.key
        known = self._announced.get(key)
        if known is not None:
            self._metrics.announcements.labels("reused").inc()
            return known, asked_at
        found = await self._encode_one(wanted, headers)
        self._announced.remember(key, found, asked_at)
        return found, asked_at

    async def _again(
        self,
        different: Mapping[str, _Wanted],
        answers: Sequence[tuple[Announcement, float]],
        headers: Headers,
    ) -> list[Announcement]:
        """Announcements that still hold.

        What was lost while the others were being encoded is encoded once more, and if
        that is lost too left to the decoder.
        """
        announced = self._announced
        if announced is None:
            return [answer for answer, _ in answers]
        lost = [announced.lost_since(answer, moment) for answer, moment in answers]
        self._metrics.announcements.labels("lost").inc(sum(lost))
        started = announced.clock()
        repeated = await asyncio.gather(
            *(
                self._encode_one(item, _numbered(headers, len(different) + number))
                for number, (item, gone) in enumerate(zip(different.values(), lost, strict=True))
                if gone
            )
        )
        fresh = iter(repeated)
        result = []
        for (answer, _), gone in zip(answers, lost, strict=True):
            found = next(fresh) if gone else answer
            result.append(Announcement({}) if announced.lost_since(found, started) else found)
        return result

    async def _encode_one(self, wanted: _Wanted, headers: Headers) -> Announcement:
        payload = await self._workers.run(wanted.media.nbytes, wanted.written)
        tried: list[Backend] = []
        for _ in range(self._tries):
            backend = self._fleet.pick(tried)
            if backend is None:
                break
            if tried:
                self._metrics.retries.labels("encoder_failed").inc()
            tried.append(backend)
            try:
                status, answer = await self._post(backend, payload, headers)
            except aiohttp.ConnectionTimeoutError as exc:
                backend.failed(f"cannot connect: {exc}")
                continue
            except TimeoutError:
                # It may be loaded, not dead; another one would be loaded for nothing.
                logger.warning("encoder %s: no answer in time", backend.url)
                break
            except (aiohttp.ClientError, OSError) as exc:
                backend.failed(f"{type(exc).__name__}: {exc}")
                continue
            if status == 200:
                return read_announcement(_parsed(answer))
            logger.warning("encoder %s: HTTP %d: %.200r", backend.url, status, answer)
            if status < 500:
                # The media's fault, perhaps. The decoder's answer will say so.
                break
        return Announcement({})

    async def _post(self, backend: Backend, payload: bytes, headers: Headers) -> tuple[int, bytes]:
        with backend.busy():
            async with await post(
                self._session,
                f"{backend.url}/v1/chat/completions",
                data=payload,
                headers=headers,
                timeout=self._timeout,
            ) as response:
                answer = await read_at_most(response.content, _MAX_ANSWER_BYTES)
                return (200, b"") if answer is None else (response.status, answer)


def _numbered(headers: Headers, number: int) -> Headers:
    return set_header(headers, "X-Request-Id", f"{headers['X-Request-Id']}-ec{number}")


def _parsed(answer: bytes) -> object:
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        return None
