# SPDX-License-Identifier: Apache-2.0
"""What decoders answer: what an event stream says, and what of an answer stays inside.

Decoders that are encoders too (``ec_both``) announce, and announcements name hosts of the
inner network, as parameters of KV transfers do. Clients can use none of it. An answer
without such fields stays the very same bytes.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, Literal

_INNER: Final = ("ec_transfer_params", "kv_transfer_params")
#: One of them that is not null, as it is in most answers.
_SAID: Final = re.compile(rb'"(?:%s)"\s*:\s*(?!null\b|\s)' % "|".join(_INNER).encode())
#: The end of an event.
_END: Final = re.compile(rb"\r?\n\r?\n")
#: Bytes of it that may be at the end of what has come so far.
_END_BYTES: Final = 4
_FRAMES: Final = ("role", "content", "reasoning", "reasoning_content", "refusal")

Verdict = Literal["more", "fine", "lost"]


class TooLong(Exception):
    """An event is longer than what is held of one."""


class Events:
    """An event stream on its way to a client, whole events at a time.

    Args:
        limit: Longest event.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        """Takes what came; returns the events that are whole by now.

        Raises:
            TooLong: One event is too long.
        """
        # Not when it became so: what came before it is the client's.
        if len(self._rest) > self._limit:
            raise TooLong(f"an event of the stream is longer than {self._limit} bytes")
        seen = max(0, len(self._rest) - _END_BYTES)
        self._rest += chunk
        cut = 0
        for end in _END.finditer(self._rest, seen):
            cut = end.end()
        whole = bytes(self._rest[:cut])
        del self._rest[:cut]
        return self._cleaned(whole)

    def end(self) -> bytes:
        """The stream is over: what came after its last whole event."""
        rest = bytes(self._rest)
        self._rest.clear()
        return self._cleaned(rest)

    @staticmethod
    def _cleaned(whole: bytes) -> bytes:
        if not _SAID.search(whole):
            return whole
        parts, start = [], 0
        for end in _END.finditer(whole):
            parts.append(_clean_event(whole[start : end.start()]) + end.group())
            start = end.end()
        parts.append(_clean_event(whole[start:]))
        return b"".join(parts)


def _clean_event(event: bytes) -> bytes:
    lines = event.splitlines()
    data = _data(lines)
    cleaned = without_addresses(data)
    if cleaned is data:
        return event
    kept = [line for line in lines if not line.startswith(b"data:")]
    return b"\n".join([*kept, b"data: " + cleaned])


def _data(lines: list[bytes]) -> bytes:
    return b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))


def without_addresses(body: bytes) -> bytes:
    """An answer, or the data of an event, without what names hosts of the inner network.

    The same object if there is nothing to leave out.
    """
    if not _SAID.search(body):
        return body
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return body
    # The events of a Responses stream hold the whole answer in a field.
    inner = document.get("response") if isinstance(document, dict) else None
    changed = [_clear(document), _clear(inner)]
    return json.dumps(document).encode() if any(changed) else body


def _clear(document: Any) -> bool:
    if not isinstance(document, dict):
        return False
    said = [name for name in _INNER if document.get(name) is not None]
    for name in said:
        document[name] = None
    return bool(said)


def judge(head: bytes) -> Verdict:
    """What the beginning of an event stream says about the request's encodings.

    Args:
        head: All bytes so far; the last event may be incomplete.

    Returns:
        ``lost`` for an error event; ``fine`` for an event that carries output, or
        anything that is not known; ``more`` while there is neither.
    """
    *events, _ = _END.split(head)
    for event in events:
        data = _data(event.splitlines())
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
