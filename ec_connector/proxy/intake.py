# SPDX-License-Identifier: Apache-2.0
"""A request's body: how much of it is taken, and where the work on it is done.

What a body costs is known before it is parsed. Bytes are counted as they arrive, and so
are the marks (commas, colons, opening brackets) to which the parser's time and memory
are in proportion: a list of empty lists takes 24 times its own length. Marks inside of
strings count as well; base64, which is what long bodies are made of, has none.

A long body is worked on in one of two threads, so that the event loop answers others
meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, ParamSpec, TypeVar

from aiohttp import web

from ec_connector.proxy.errors import ProxyError
from ec_connector.proxy.settings import ProxySettings

P = ParamSpec("P")
T = TypeVar("T")

_MARKS: Final = (b",", b":", b"[", b"{")
#: Shorter bodies are worked on where they are: a few milliseconds at most.
INLINE_BYTES: Final = 64 << 10
_THREADS: Final = 2


class Held:
    """Bytes that one request holds of a ``Memory``."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.nbytes = 0

    def grow(self, nbytes: int) -> None:
        """Hold more.

        Raises:
            ProxyError: 503, all requests together hold too much.
        """
        memory = self._memory
        if memory.nbytes + nbytes > memory.limit:
            raise ProxyError(
                503,
                "overloaded",
                f"the requests under way hold {memory.limit} bytes already, which is what this "
                "proxy takes; try again later",
                headers={"Retry-After": "1"},
            )
        memory.nbytes += nbytes
        self.nbytes += nbytes


class Memory:
    """What all requests under way hold together. Event loop only.

    Args:
        limit: Bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0

    @contextmanager
    def held(self) -> Iterator[Held]:
        """For as long as one request is under way."""
        held = Held(self)
        try:
            yield held
        finally:
            self.nbytes -= held.nbytes


class Workers:
    """Runs work on long bodies beside the event loop, a bounded number at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "ec-bodies")

    async def run(self, nbytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``, which takes time in proportion to ``nbytes``."""
        if nbytes <= INLINE_BYTES:
            return work(*args, **kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Take no more work; what has begun ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)


async def read_body(request: web.Request, settings: ProxySettings, held: Held) -> bytes:
    """The body, read within the limits.

    Args:
        request: Its body has not been read.
        settings: The limits.
        held: Grows by what is read.

    Raises:
        ProxyError: 413, 415, 408 or 503; the message says the limit. The rest of the
            body is not read.
    """
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise ProxyError(
            415,
            "body_encoded",
            "a request body is taken as it is; send it without Content-Encoding",
        )
    if (request.content_length or 0) > settings.max_body_bytes:
        raise _too_large(settings)
    body = bytearray()
    marks = 0
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            while chunk := await request.content.readany():
                if len(body) + len(chunk) > settings.max_body_bytes:
                    raise _too_large(settings)
                held.grow(len(chunk))
                marks += sum(map(chunk.count, _MARKS))
                if marks > settings.max_json_marks:
                    raise ProxyError(
                        413,
                        "body_too_complex",
                        f"the request body has more than {settings.max_json_marks} commas, "
                        "colons and opening brackets",
                    )
                body += chunk
    except TimeoutError:
        raise ProxyError(
            408,
            "body_too_slow",
            f"the request body did not arrive within {settings.body_timeout_s:g} s",
            headers={"Connection": "close"},
        ) from None
    except web.RequestPayloadError as exc:
        raise ProxyError(400, "invalid_body", f"the request body is malformed: {exc}") from None
    return bytes(body)


def _too_large(settings: ProxySettings) -> ProxyError:
    return ProxyError(
        413,
        "body_too_large",
        f"the request body is longer than {settings.max_body_bytes} bytes",
    )


def parse(raw: bytes) -> dict[str, Any]:
    """A body that is a JSON object.

    Raises:
        ProxyError: 400, it is none.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    def finite(digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            raise ValueError(f"{digits:.40} is out of range")
        return number

    try:
        # Decoded here: the parser would also take UTF-16, which others may not.
        body = json.loads(raw.decode(), parse_constant=refuse, parse_float=finite)
    except RecursionError:
        raise ProxyError(400, "invalid_json", "the body is nested too deeply") from None
    except ValueError as exc:
        raise ProxyError(400, "invalid_json", f"the body is not JSON: {exc}") from None
    if not isinstance(body, dict):
        raise ProxyError(
            400, "invalid_request", f"the body is a {type(body).__name__}; expected an object"
        )
    return body
