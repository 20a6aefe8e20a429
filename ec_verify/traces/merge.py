# SPDX-License-Identifier: Apache-2.0
"""Orders the records of several processes so that causes come before effects.

Clocks of two hosts are not comparable (EC-7.1). The processes of one instance have one
clock, so their records come in the order of their times, as if they were one process's.
Otherwise each file keeps its own order; between files, messages give it: a request comes
before its grant, a grant before its ack, the end of an attempt's waiting before the
notice that completes the grant. By assumption EC-A.2 what a consumer does inside its
fence comes before the end of the lease, which is also when an engine may have the memory
again of which a server that is gone had granted it. Everything else is concurrent, and
any order will do.

Nothing rests on this module: the specification checks, record by record, that the
order is one that causality allows (``tla/traces/TraceRead.tla``). An order that cannot be
had is rejected there, at the record that comes too early. Where causes leave a choice,
the record with the smaller time goes first: that is a convenience for the reader.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ec_protocol.names import encoding_of
from ec_verify.traces.load import Record, Run

#: A record: number of its file, and index in it.
_Place = tuple[int, int]
_Causes = defaultdict[_Place, set[_Place]]
_Posts = Mapping[Hashable, set[_Place]]

_UNANSWERED: Final = ("requested", "granted")
_IN_TIME: Final = frozenset({"fence_open", "in_lease"})


@dataclass(frozen=True, slots=True)
class Cue:
    """What of a record says where it belongs.

    Attributes:
        t: When it was recorded.
        action: What happened.
        attempt: The attempt that it is about, as both sides name it; None for none.
        read: The state that the attempt's READ is in afterwards; None at the producer.
        guards: What held when it happened.
        why: Why a grant expired.
        slot: The slot of the table of offers that it is about: a grant of a server, or
            an offer that is closed; with the instance. None for none.
    """

    t: float
    action: str
    attempt: Hashable | None = None
    read: str | None = None
    guards: frozenset[str] = frozenset()
    why: str = ""
    slot: Hashable | None = None


def merged(run: Run) -> list[Record]:
    """All records of the run in one order."""
    streams = _by_clock(run.streams)
    places = in_order([[_cue(record) for record in stream] for stream in streams])
    return [streams[stream][index] for stream, index in places]


def _by_clock(streams: Sequence[Sequence[Record]]) -> list[Sequence[Record]]:
    """The streams with those of each instance made one, by their times.

    A file in which several processes write has an order already, and keeps it.
    """
    together: defaultdict[str, list[Sequence[Record]]] = defaultdict(list)
    apart: list[Sequence[Record]] = []
    for stream in streams:
        instances = {record.instance for record in stream}
        if len(instances) == 1 and "" not in instances:
            together[instances.pop()].append(stream)
        else:
            apart.append(stream)
    one = (list(heapq.merge(*parts, key=lambda record: record.t)) for parts in together.values())
    return [*apart, *one]


def in_order(
    streams: Sequence[Sequence[Cue]], *, wishes_count: bool = True
) -> Iterator[tuple[int, int]]:
    """One order of the records of all streams: stream and index of each.

    A record whose cause lies in no stream, or that could only follow a circle of causes
    (a damaged trace), waits for nothing.

    Args:
        streams: Records of each process, in its order.
        wishes_count: Whether a record also waits for what only should come before it,
            even if that has a later time.
    """
    causes, wishes = _causes(streams) if len(streams) > 1 else (_Causes(set), _Causes(set))
    if not wishes_count:
        wishes.clear()
    position = [0] * len(streams)

    def ready(stream: int, wanted: _Causes) -> bool:
        return all(i < position[s] for s, i in wanted.get((stream, position[stream]), ()))

    while heads := [s for s, cues in enumerate(streams) if position[s] < len(cues)]:
        able = [s for s in heads if ready(s, causes)]
        # What is only wished for gives way; so does even a cause, if there is a circle.
        best = [s for s in able if ready(s, wishes)] or able or heads
        stream = min(best, key=lambda s: (streams[s][position[s]].t, s))
        yield stream, position[stream]
        position[stream] += 1


def _causes(streams: Sequence[Sequence[Cue]]) -> tuple[_Causes, _Causes]:
    """What must, and what should, come before each record."""
    about = [
        ((stream, index), cue, cue.attempt)
        for stream, cues in enumerate(streams)
        for index, cue in enumerate(cues)
        if cue.attempt is not None
    ]
    requests: dict[Hashable, _Place] = {}
    answers: dict[Hashable, _Place] = {}
    grants: dict[Hashable, _Place] = {}
    posts: defaultdict[Hashable, set[_Place]] = defaultdict(set)
    dones: dict[Hashable, _Place] = {}
    for place, cue, attempt in about:
        if cue.action == "RequestRead":
            requests.setdefault(attempt, place)
        elif cue.action == "Grant":
            grants.setdefault(attempt, place)
        elif cue.action in ("ReadDone", "ReadCorrupt"):
            dones.setdefault(attempt, place)
        if cue.read not in (None, *_UNANSWERED):
            answers.setdefault(attempt, place)
        if cue.action in ("PostRead", "ReadDone") and cue.guards & _IN_TIME:
            posts[attempt].add(place)
    causes, wishes = _Causes(set), _Causes(set)
    for stream, cues in enumerate(streams):
        _leases(stream, cues, posts, causes)
    for place, cue, attempt in about:
        before: set[_Place | None] = set()
        if cue.action == "Grant":
            before = {requests.get(attempt)}
        elif cue.action == "AckOk":
            before = {grants.get(attempt)}
        elif cue.action == "Complete":
            before = {answers.get(attempt)}
            # The notice may overtake what the consumer sees; the READ is over in both.
            if attempt in dones:
                wishes[place].add(dones[attempt])
        elif cue.action == "Expire" and cue.why == "lease":
            before = set(posts.get(attempt, ()))
        causes[place] |= {b for b in before if b is not None and b[0] != place[0]}
    return causes, wishes


def _leases(stream: int, cues: Sequence[Cue], posts: _Posts, causes: _Causes) -> None:
    """An offer is closed when the leases on its slot are over, whoever gave them."""
    granted: defaultdict[Hashable, dict[Hashable, None]] = defaultdict(dict)
    for index, cue in enumerate(cues):
        if cue.slot is None:
            continue
        if cue.action == "Grant":
            granted[cue.slot][cue.attempt] = None
        elif cue.action in ("Complete", "Expire"):
            # What this one itself comes after is known.
            granted[cue.slot].pop(cue.attempt, None)
        else:
            for attempt in granted.pop(cue.slot, ()):
                causes[stream, index] |= {p for p in posts.get(attempt, ()) if p[0] != stream}


def _cue(record: Record) -> Cue:
    read = record.objects["read"].get(record.object_id) if "grant" not in record.args else None
    return Cue(
        record.t,
        record.action,
        attempt_of(record),
        None if read is None else str(read["state"]),
        frozenset(guard for item in record.fired for guard in item.guards),
        str(record.args.get("why", "")),
        _slot(record),
    )


def _slot(record: Record) -> Hashable | None:
    told: Iterator[int] = iter(())
    if record.role == "server":
        told = (grant["entry"] for grant in record.objects["grant"].values())
    elif record.action == "Close":
        told = (offer["slot"] for offer in record.objects["offer"].values())
    slot = next(told, None)
    return None if slot is None else (record.instance, slot)


def attempt_of(record: Record) -> tuple[str, str] | None:
    """The attempt that the record is about, as both sides name it: session and mm_hash."""
    if read := record.objects["read"].get(record.object_id if "attempt" in record.args else -1):
        return read["session"], encoding_of(read["mm_hash"])
    if "grant" in record.args and (grant := record.objects["grant"].get(record.object_id)):
        session, name = grant["notice"]
        return session, name
    return None
