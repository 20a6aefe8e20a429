# SPDX-License-Identifier: Apache-2.0
"""Chat completions about pictures, and whether two answers are the same."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from tests.e2e.pictures import picture

#: Batches are summed in different orders; a wrong picture moves it by far more.
LOGPROB_TOLERANCE: Final = 1e-3
TOKENS: Final = 6


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back.

    Attributes:
        status: HTTP status; 0 if there was no answer.
        tokens: Token ids.
        logprobs: One per token.
        params: ``ec_transfer_params`` of the answer.
        seconds: How long it took.
        error: Text of an answer that is none.
    """

    status: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    params: Mapping[str, Any] | None = None
    seconds: float = 0.0
    error: str = ""

    def same(self, other: Answer) -> bool:
        """Whether both say the same, token by token."""
        return (
            self.status == other.status == 200
            and bool(self.tokens)
            and self.tokens == other.tokens
            and len(self.logprobs) == len(other.logprobs)
            and all(
                abs(a - b) <= LOGPROB_TOLERANCE
                for a, b in zip(self.logprobs, other.logprobs, strict=True)
            )
        )


def image_part(number: int) -> dict[str, Any]:
    """A picture as it is sent by clients."""
    return {"type": "image_url", "image_url": {"url": picture(number)}}


def reference_parts(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Metadata-only references to everything that was announced."""
    return [
        {"type": "image_embeds", "uuid": mm_hash, "image_embeds": said["metadata"]}
        for mm_hash, said in params.items()
    ]


def ask(
    url: str,
    pictures: Sequence[int] = (),
    *,
    parts: Sequence[Mapping[str, Any]] | None = None,
    params: Mapping[str, Any] | None = None,
    stream: bool = False,
    timeout_s: float = 400.0,
) -> Answer:
    """One chat completion about pictures, greedily decoded.

    Args:
        url: Base URL of a server.
        pictures: Numbers of pictures.
        parts: Content to send in place of the pictures.
        params: ``ec_transfer_params`` to send along.
        stream: Have the answer streamed.
        timeout_s: When to give up.
    """
    started = time.monotonic()
    try:
        with urllib.request.urlopen(
            _request(url, pictures, parts, params, stream), timeout=timeout_s
        ) as response:
            said = _joined(response) if stream else json.load(response)
    except urllib.error.HTTPError as exc:
        text = exc.read().decode(errors="replace")[:500]
        return Answer(exc.code, seconds=time.monotonic() - started, error=text)
    except (OSError, ValueError) as exc:
        return Answer(0, seconds=time.monotonic() - started, error=f"{type(exc).__name__}: {exc}")
    choice = said["choices"][0]
    logprobs = (choice.get("logprobs") or {}).get("content") or ()
    return Answer(
        200,
        tuple(choice.get("token_ids") or ()),
        tuple(entry["logprob"] for entry in logprobs),
        said.get("ec_transfer_params"),
        time.monotonic() - started,
    )


def walk_away(
    url: str, pictures: Sequence[int], params: Mapping[str, Any] | None, after_s: float
) -> None:
    """Send a request and close the connection without waiting for the answer."""
    request = _request(url, pictures, None, params, False)
    host, _, port = request.host.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request("POST", request.selector, request.data, dict(request.headers))
        time.sleep(after_s)
    finally:
        connection.close()


def _request(
    url: str,
    pictures: Sequence[int],
    parts: Sequence[Mapping[str, Any]] | None,
    params: Mapping[str, Any] | None,
    stream: bool,
) -> urllib.request.Request:
    content = list(parts) if parts is not None else [image_part(n) for n in pictures]
    body: dict[str, Any] = {
        "model": "tiny",
        "messages": [
            {"role": "user", "content": [*content, {"type": "text", "text": "What is it?"}]}
        ],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
        "return_token_ids": True,
        "stream": stream,
    }
    if params is not None:
        body["ec_transfer_params"] = params
    return urllib.request.Request(
        url + "/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )


def _joined(events: Iterable[bytes]) -> dict[str, Any]:
    """The whole answer of a stream.

    Raises:
        ValueError: An error came instead, or the end did not come.
    """
    tokens: list[int] = []
    logprobs: list[Any] = []
    for line in events:
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            choice = {"token_ids": tokens, "logprobs": {"content": logprobs}}
            return {"choices": [choice]}
        if not line.startswith(b"data:"):
            continue
        event = json.loads(data)
        if "error" in event:
            raise ValueError(f"an error in the stream: {event['error']}")
        for choice in event.get("choices", ()):
            tokens += choice.get("token_ids") or ()
            logprobs += (choice.get("logprobs") or {}).get("content") or ()
    raise ValueError("the stream broke off")


def ask_all(
    url: str, wanted: Sequence[Sequence[int]], workers: int = 1, stream: bool = False
) -> list[Answer]:
    """Several requests, up to ``workers`` at a time; answers in the order asked."""
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda pictures: ask(url, pictures, stream=stream), wanted))
