# SPDX-License-Identifier: Apache-2.0
"""Merges the traces of several processes into one order that causality allows.

Each file keeps its own order. Between files only messages order anything: a grant
comes after the request that it answers, an ack after the grant, a notice after
the READ. Where those leave a choice, the record with the smaller time goes first:
that is a convenience for the reader, since clocks of two processes prove nothing
(EC-7.1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]

#: Names one message: what kind it is of, and the attempt's session.
Cause = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Merged:
    """One record in the merged order: which stream it came from, and what it says."""

    stream: int
    record: Record


def session_of(record: Record) -> str | None:
    """Names the attempt that a record is about, the same on both sides of it."""
    for key, variables in record["vars"].items():
        if key.startswith("read:"):
            session = variables.get("session")
            if isinstance(session, str):
                return session
        elif key.startswith("grant:"):
            notice = variables.get("notice")
            if isinstance(notice, str) and ":" in notice:
                return notice.partition(":")[0]
    attempt = record["args"].get("attempt")
    return None if attempt is None else f"{attempt}/{record['args'].get('mm_hash')}"


def gives(record: Record) -> Cause | None:
    """The message that a record's action sends, if others wait for it."""
    kind = {"RequestRead": "request", "Grant": "grant", "PostRead": "read"}.get(record["action"])
    session = session_of(record) if kind else None
    return (kind, session) if kind and session else None


def needs(record: Record) -> Cause | None:
    """The message that a record's action took."""
    kind = {"Grant": "request", "AckOk": "grant", "Complete": "read"}.get(record["action"])
    session = session_of(record) if kind else None
    return (kind, session) if kind and session else None


def merge(streams: Sequence[Iterable[Record]]) -> Iterator[Merged]:
    """One order of all records.

    A record whose cause lies in no stream, or that could only follow a circle of
    causes (a damaged trace), waits for nothing.
    """
    queues = [deque(stream) for stream in streams]
    missing: dict[Cause, int] = {}
    for queue in queues:
        for record in queue:
            if (cause := gives(record)) is not None:
                missing[cause] = missing.get(cause, 0) + 1
    sent: set[Cause] = set()

    def ready(record: Record) -> bool:
        cause = needs(record)
        return cause is None or cause in sent or cause not in missing

    while any(queues):
        heads = [(queue[0], number) for number, queue in enumerate(queues) if queue]
        choice = [head for head in heads if ready(head[0])] or heads
        record, number = min(choice, key=lambda head: (_time(head[0]), head[1]))
        queues[number].popleft()
        if (cause := gives(record)) is not None:
            sent.add(cause)
        yield Merged(number, record)


def _time(record: Record) -> float:
    time = record["t"]
    return float(time) if isinstance(time, (int, float)) else 0.0
