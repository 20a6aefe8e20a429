# SPDX-License-Identifier: Apache-2.0
"""What a record of a trace may hold: names and kinds of all fields.

The same names stand in the field tables of ``tla/traces/*.tla`` and
``spec/TRACE.md``; a test compares the three with each other and with what the
code records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from ec_protocol.errors import TraceError

#: How a field is read. ``time``: a moment on the process's clock, seconds;
#: ``seconds``: a duration; ``-or-none``: null is allowed; ``writer``: null or
#: ``[kind, id]``; ``notice``: ``session:mm_hash``.
Kind = Literal[
    "text",
    "count",
    "count-or-none",
    "flag",
    "time",
    "seconds",
    "seconds-or-none",
    "extents",
    "holder",
    "holders",
    "writer",
    "numbers",
    "notice",
]

_Fields = Mapping[str, Kind]

#: Variables of the objects of each kind, by field; the tier is one object.
VARIABLES: Final[Mapping[str, _Fields]] = MappingProxyType(
    {
        "tier": {"free": "count", "retired": "count", "total": "count"},
        "entry": {
            "mm_hash": "text",
            "state": "text",
            "extents": "extents",
            "holders": "holders",
            "writer": "writer",
        },
        "copy": {
            "kind": "text",
            "entry": "count",
            "state": "text",
            "waiting": "numbers",
            "all_landed": "flag",
        },
        "read": {
            "mm_hash": "text",
            "session": "text",
            "entry": "count",
            "peer": "count",
            "version": "count",
            "state": "text",
            "sent_at": "time",
            "fence": "time",
            "posted_at": "time",
            "lost_at": "time",
            "lease_s": "seconds-or-none",
            "incarnation": "text",
            "source": "extents",
        },
        "grant": {
            "state": "text",
            "entry": "count",
            "attempt": "count-or-none",
            "notice": "notice",
            "identity": "text",
            "expires_at": "time",
            "extents": "extents",
        },
        "peer": {
            "key": "text",
            "state": "text",
            "incarnation": "text",
            "version": "count",
            "attempts": "numbers",
        },
        "offer": {"state": "text", "slot": "count", "entry": "count"},
        "loan": {"state": "text", "entry": "count", "reader": "count", "lost_at": "time"},
        "process": {"state": "text", "kind": "text"},
    }
)

#: Fields that records of version 2 do not have.
SINCE_3: Final = frozenset({("grant", "extents")})

#: What a process never changes: part, then field.
FACTS: Final[Mapping[str, _Fields]] = MappingProxyType(
    {
        "tier": {"total": "count", "block_size": "count"},
        "copies": {"ranks": "count"},
        "holds": {"max_blocks": "count"},
        "reads": {
            "session": "text",
            "ack_timeout_s": "seconds",
            "read_timeout_s": "seconds",
            "quarantine_s": "seconds",
            "lease_s": "seconds",
            "lease_margin_s": "seconds",
            "min_read_s": "seconds",
        },
        "grants": {
            "incarnation": "text",
            "lease_s": "seconds",
            "quota_blocks": "count",
            "grant_quota_blocks": "count",
        },
        "offers": {"slots": "count"},
        "shelf": {"total": "count", "slots": "count"},
        "loans": {"quarantine_s": "seconds"},
        "lent": {"total": "count", "block_size": "count"},
        "processes": {"servers": "count", "readers": "count", "first": "count"},
        "instance": {"name": "text", "process": "count"},
    }
)

_COPY: Final[_Fields] = {"mm_hash": "text", "copy": "count"}
_READ: Final[_Fields] = {"attempt": "count", "mm_hash": "text", "now": "time"}
_GRANT: Final[_Fields] = {
    "grant": "count",
    "mm_hash": "text",
    "attempt": "count-or-none",
    "now": "time",
}
_NAME: Final[_Fields] = {"mm_hash": "text"}
_PEER: Final[_Fields] = {"peer": "count"}
_HOLD: Final[_Fields] = {"mm_hash": "text", "holder": "holder"}
_OFFER: Final[_Fields] = {"offer": "count", "mm_hash": "text"}
_LOAN: Final[_Fields] = {"loan": "count", "mm_hash": "text", "now": "time"}
_PROCESS: Final[_Fields] = {"process": "count"}

#: Arguments of each action.
ARGUMENTS: Final[Mapping[str, _Fields]] = MappingProxyType(
    {
        "Alloc": {"mm_hash": "text", "blocks": "count"},
        "Evict": _NAME,
        "Cancel": _NAME,
        "Reserve": _NAME,
        "EndStep": {},
        "PlanSave": _COPY,
        "SubmitSave": _COPY,
        "SaveLanded": _COPY,
        "SaveSkipped": _COPY,
        "PlanLoad": _COPY,
        "SubmitLoad": _COPY,
        "RankReport": _COPY,
        "LoadLanded": _COPY,
        "LoadSkipped": _COPY,
        "Hold": _HOLD,
        "ReleaseHold": _HOLD,
        "RequestRead": _READ,
        "AckOk": _READ,
        "AckRetry": _READ,
        "AckRefused": _READ,
        "AckTimeout": _READ,
        "Abort": _READ,
        "PostRead": _READ,
        "PostFailed": _READ,
        "ReadDone": _READ,
        "ReadCorrupt": _READ,
        "ReadLost": _READ,
        "PeerLost": _READ,
        "DmaEnded": _READ,
        "Retire": _READ,
        "Reclaim": {"entry": "count", "blocks": "count"},
        "Settle": _READ,
        "Grant": _GRANT,
        "Complete": _GRANT,
        "Expire": {**_GRANT, "why": "text"},
        "PeerOpen": _PEER,
        "PeerHeard": _PEER,
        "PeerDown": _PEER,
        "PeerDrained": _PEER,
        "Expect": _OFFER,
        "Offer": _OFFER,
        "Close": {**_OFFER, "now": "time"},
        "Lend": _LOAN,
        "Landed": _LOAN,
        "Failed": _LOAN,
        "Lost": _LOAN,
        "Proven": _LOAN,
        "Exited": _LOAN,
        "Overdue": _LOAN,
        "RetireLoan": _LOAN,
        "StartProcess": _PROCESS,
        "ProcessReady": _PROCESS,
        "TakePlace": _PROCESS,
        "DrainProcess": _PROCESS,
        "KillProcess": _PROCESS,
    }
)
#: Arguments of actions that the parent of the data processes takes too: it knows no loans.
OF_A_PROCESS: Final[Mapping[str, _Fields]] = MappingProxyType({"Exited": _PROCESS})

_MAX_COUNT: Final = 1 << 30
_MAX_SECONDS: Final = 1e12


def arguments_of(action: str, args: Any) -> _Fields | None:
    """The arguments that a record with these has; None for no action of the table."""
    if isinstance(args, dict) and "process" in args and action in OF_A_PROCESS:
        return OF_A_PROCESS[action]
    return ARGUMENTS.get(action)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a string")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX_COUNT:
        raise ValueError(f"a number from 0 to {_MAX_COUNT - 1}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _seconds(value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or abs(value) > _MAX_SECONDS:
        raise ValueError("seconds as a number")
    return float(value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError("a list")
    return list(value)


def _extents(value: Any) -> tuple[tuple[int, int], ...]:
    extents = []
    for item in _list(value):
        start, count = _list(item)
        extents.append((_count(start), _count(count)))
    return tuple(extents)


def _holder(value: Any) -> tuple[str, int]:
    kind, number = _list(value)
    return _text(kind), _count(number)


def _writer(value: Any) -> tuple[str, int] | tuple[()]:
    return () if value is None else _holder(value)


def _set(read: Callable[[Any], Any]) -> Callable[[Any], frozenset[Any]]:
    def read_set(value: Any) -> frozenset[Any]:
        items = [read(item) for item in _list(value)]
        found = frozenset(items)
        if len(found) != len(items):
            raise ValueError("a list without repetition")
        return found

    return read_set


def _notice(value: Any) -> tuple[str, str]:
    session, colon, name = _text(value).partition(":")
    if not colon:
        raise ValueError("session:mm_hash")
    return session, name


_READERS: Final[Mapping[Kind, Callable[[Any], Any]]] = {
    "text": _text,
    "count": _count,
    "count-or-none": lambda value: 0 if value is None else _count(value),
    "flag": _flag,
    "time": _seconds,
    "seconds": _seconds,
    "seconds-or-none": lambda value: None if value is None else _seconds(value),
    "extents": _extents,
    "holder": _holder,
    "holders": _set(_holder),
    "writer": _writer,
    "numbers": _set(_count),
    "notice": _notice,
}


def read_fields(
    value: Any, fields: _Fields, where: str, may_lack: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Check an object of the record and bring its fields into one form.

    Args:
        value: As JSON gave it.
        fields: All fields that it must have; others are an error.
        where: Names it in messages, such as ``vars.read:3``.
        may_lack: Fields that it may be without.

    Raises:
        TraceError: The message names the field and what was expected.
    """
    if not isinstance(value, dict):
        raise TraceError(f"{where}: expected an object")
    if missing := sorted(set(fields) - set(value) - may_lack):
        raise TraceError(f"{where}: {', '.join(missing)} missing")
    if unknown := sorted(set(value) - set(fields)):
        raise TraceError(f"{where}: unknown {', '.join(unknown)}")
    result = {}
    for name, kind in fields.items():
        if name not in value:
            continue
        try:
            result[name] = _READERS[kind](value[name])
        except ValueError as exc:
            raise TraceError(f"{where}.{name}={value[name]!r}: expected {exc}") from None
    return result
