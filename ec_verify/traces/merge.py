# SPDX-License-Identifier: Apache-2.0
"""Orders the records of several processes so that causes come before effects.

Clocks of two processes are not comparable (EC-7.1). Each file keeps its own order;
between files, messages give it: a request comes before its grant, a grant before
its ack, the end of an attempt's waiting before the notice that completes the
grant. By assumption EC-A.2 what a consumer does inside its fence comes before the
end of the lease. Everything else is concurrent, and any order will do.

Nothing rests on this module: the specification checks, record by record, that the
order is one that causality allows (``tla/traces/TraceRead.tla``). An order that cannot be
had is rejected there, at the record that comes too early.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from ec_verify.traces.load import Record, Run

#: An attempt, as both sides name it: session and mm_hash.
_Attempt = tuple[str, str]
#: A record: number of its file, and index in it.
_Place = tuple[int, int]

_UNANSWERED: Final = ("requested", "granted")


def merged(run: Run) -> list[Record]:
    """All records of the run in one order."""
    if len(run.streams) == 1:
        return list(run.streams[0])
    causes, wishes = _causes(run)
    position = [0] * len(run.streams)
    result: list[Record] = []

    def ready(stream: int, wanted: defaultdict[_Place, set[_Place]]) -> bool:
        return all(i < position[s] for s, i in wanted.get((stream, position[stream]), ()))

    while len(result) < run.records:
        heads = [s for s, records in enumerate(run.streams) if position[s] < len(records)]
        able = [s for s in heads if ready(s, causes)]
        # What is only wished for gives way; so does even a cause, if there is a circle.
        best = [s for s in able if ready(s, wishes)] or able or heads
        stream = min(best, key=lambda s: (run.streams[s][position[s]].t, s))
        result.append(run.streams[stream][position[stream]])
        position[stream] += 1
    return result


def _causes(
    run: Run,
) -> tuple[defaultdict[_Place, set[_Place]], defaultdict[_Place, set[_Place]]]:
    """What must, and what should, come before each record."""
    requests: dict[_Attempt, _Place] = {}
    answers: dict[_Attempt, _Place] = {}
    grants: dict[_Attempt, _Place] = {}
    posts: defaultdict[_Attempt, set[_Place]] = defaultdict(set)
    dones: dict[_Attempt, _Place] = {}
    for place, record, attempt in _attempts(run):
        if record.action == "RequestRead":
            requests.setdefault(attempt, place)
        elif record.action == "Grant":
            grants.setdefault(attempt, place)
        elif record.action == "ReadDone":
            dones.setdefault(attempt, place)
        if _state(record) not in (None, *_UNANSWERED):
            answers.setdefault(attempt, place)
        in_time = {"fence_open", "in_lease"} & {g for item in record.fired for g in item.guards}
        if record.action in ("PostRead", "ReadDone") and in_time:
            posts[attempt].add(place)
    causes: defaultdict[_Place, set[_Place]] = defaultdict(set)
    wishes: defaultdict[_Place, set[_Place]] = defaultdict(set)
    for place, record, attempt in _attempts(run):
        before: set[_Place | None] = set()
        if record.action == "Grant":
            before = {requests.get(attempt)}
        elif record.action == "AckOk":
            before = {grants.get(attempt)}
        elif record.action == "Complete":
            before = {answers.get(attempt)}
            # The notice may overtake what the consumer sees; the READ is over in both.
            if attempt in dones:
                wishes[place].add(dones[attempt])
        elif record.action == "Expire" and record.args["why"] == "lease":
            before = set(posts.get(attempt, ()))
        causes[place] |= {b for b in before if b is not None and b[0] != place[0]}
    return causes, wishes


def _attempts(run: Run) -> Iterator[tuple[_Place, Record, _Attempt]]:
    """Every record that is about an attempt or about the grant for one."""
    for stream, records in enumerate(run.streams):
        for index, record in enumerate(records):
            attempt = attempt_of(record)
            if attempt is not None:
                yield (stream, index), record, attempt


def attempt_of(record: Record) -> _Attempt | None:
    """The attempt that the record is about."""
    if read := record.objects["read"].get(record.object_id if "attempt" in record.args else -1):
        return read["session"], read["mm_hash"]
    if "grant" in record.args and (grant := record.objects["grant"].get(record.object_id)):
        session, name = grant["notice"]
        return session, name
    return None


def _state(record: Record) -> str | None:
    read = record.objects["read"].get(record.object_id) if "grant" not in record.args else None
    return None if read is None else str(read["state"])
