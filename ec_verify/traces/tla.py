# SPDX-License-Identifier: Apache-2.0
"""Writes runs as a TLA+ module, which ``tla/traces/Trace.tla`` replays.

TLA+ has no fractions and TLC's integers have 32 bits. So times become whole units
counted from the first record of their process; the unit is the finest that fits.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ec_protocol.errors import TraceError
from ec_protocol.names import encoding_of, is_strangers
from ec_verify.traces.fields import FACTS, VARIABLES, arguments_of
from ec_verify.traces.load import Record, Run
from ec_verify.traces.merge import attempt_of

#: Seconds. With the coarsest, times are compared to two milliseconds.
UNITS: Final = (1e-6, 1e-5, 1e-4, 1e-3)
_MOST_UNITS: Final = 400_000_000
#: Characters. Names on the wire are shorter (EC-8.8).
_MOST_TEXT: Final = 1024
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.:/@# -]")
_TIMES: Final = ("time", "seconds", "seconds-or-none")

#: Names of facts in the specification, by part and field; all else it does not use.
FACT_NAMES: Final[Mapping[tuple[str, str], str]] = {
    ("tier", "total"): "total",
    ("copies", "ranks"): "ranks",
    ("holds", "max_blocks"): "max_blocks",
    ("reads", "session"): "session",
    ("reads", "ack_timeout_s"): "ack_timeout",
    ("reads", "read_timeout_s"): "read_timeout",
    ("reads", "quarantine_s"): "quarantine",
    ("reads", "lease_s"): "read_lease",
    ("reads", "lease_margin_s"): "margin",
    ("reads", "min_read_s"): "min_read",
    ("grants", "incarnation"): "incarnation",
    ("grants", "lease_s"): "lease",
    ("grants", "quota_blocks"): "quota",
    ("grants", "grant_quota_blocks"): "grant_quota",
    ("lent", "total"): "total",
    ("shelf", "total"): "total",
    ("shelf", "slots"): "slots",
    ("offers", "slots"): "slots",
    ("loans", "quarantine_s"): "loan_quarantine",
    ("processes", "servers"): "servers",
    ("processes", "readers"): "readers",
    ("processes", "first"): "first",
    ("instance", "name"): "instance",
    ("instance", "process"): "number",
}
#: Variable names of the specification for the kinds of objects.
_OBJECTS: Final = {
    "entry": "entries",
    "copy": "copies",
    "read": "reads",
    "grant": "grants",
    "peer": "peers",
    "offer": "offers",
    "loan": "loans",
    "process": "processes",
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed copy of a log.

    Attributes:
        operator: ``swap``, ``drop``, ``duplicate`` or ``alter``.
        what: What was changed, for people.
        first: Number of the first changed record, from 1.
        lines: What comes instead.
        resume: Number of the record with which the log goes on.
    """

    operator: str
    what: str
    first: int
    lines: tuple[Record, ...]
    resume: int


@dataclass(frozen=True, slots=True)
class Clock:
    """Turns seconds into units.

    Attributes:
        unit: Seconds of one unit.
        starts: Per clock (see ``Record.clock``) the moment that is 0.
    """

    unit: float
    starts: Mapping[str, float]

    def moment(self, clock: str, seconds: float) -> int:
        """A moment on one of the clocks."""
        return round((seconds - self.starts[clock]) / self.unit)

    def span(self, seconds: float | None) -> int:
        """A duration; None is -1."""
        return -1 if seconds is None else round(seconds / self.unit)


def make_clock(run: Run, log: Sequence[Record]) -> Clock:
    """The finest clock on which all times of a run fit.

    Raises:
        TraceError: A run of more than four days, or a time that is far outside of it.
    """
    starts: dict[str, float] = {}
    for record in log:
        starts.setdefault(record.clock, record.t)
    longest = (0.0, "")
    for record in log:
        for value, kind in _times(record):
            size = abs(value - starts[record.clock] if kind == "time" else value)
            longest = max(longest, (size, record.place))
    for facts in run.facts.values():
        for part, fields in facts.items():
            for name, value in fields.items():
                if FACTS[part][name] in _TIMES:
                    longest = max(longest, (value, f"facts.{part}.{name}"))
    for unit in UNITS:
        if longest[0] / unit <= _MOST_UNITS:
            return Clock(unit, starts)
    raise TraceError(
        f"{longest[1]}: a time {longest[0]:.0f} s away from the process's first record; "
        f"at most {_MOST_UNITS * UNITS[-1]:.0f} s can be checked"
    )


def _times(record: Record) -> Iterable[tuple[float, str]]:
    yield record.t, "time"
    groups = [(arguments_of(record.action, record.args) or {}, record.args)]
    groups += [(VARIABLES[k], v) for k, kind in record.objects.items() for v in kind.values()]
    for fields, values in groups:
        for name, kind in fields.items():
            if kind in _TIMES and values.get(name) is not None:
                yield values[name], kind


def module(
    name: str,
    runs: Sequence[tuple[Run, Sequence[Record], Sequence[Mutant]]],
    extends: str = "Trace",
) -> str:
    """The text of a module that extends ``Trace`` and holds the runs.

    Args:
        name: The module's name.
        extends: The specification: ``Trace``, or a module that extends it.
        runs: Each run with its merged log and its mutants.

    Raises:
        TraceError: See ``make_clock``.
    """
    written = ",\n".join(_run(*item) for item in runs)
    return (
        f"---- MODULE {name} ----\nEXTENDS {extends}\n\nASSUME TLCSet(1, <<\n{written}\n>>)\n====\n"
    )


def _run(run: Run, log: Sequence[Record], mutants: Sequence[Mutant]) -> str:
    clock = make_clock(run, log)
    granted = set()
    sessions = {}
    taken = set()
    strangers = {}
    for record in log:
        name = record.args.get("mm_hash", "")
        if is_strangers(name):
            strangers[name] = encoding_of(name)
        attempt = attempt_of(record)
        if attempt and record.action == "Grant":
            granted.add(attempt)
        elif attempt and record.action == "RequestRead":
            sessions[attempt[0]] = (record.process, record.object_id)
        elif record.action == "Alloc" and record.role == "reader":
            taken |= {(record.process, loan) for loan in record.objects["entry"]}
    incarnations = {
        facts["grants"]["incarnation"] for facts in run.facts.values() if "grants" in facts
    }
    changed = [
        _fields(
            first=str(mutant.first),
            resume=str(mutant.resume),
            lines=_sequence(_record(record, clock) for record in mutant.lines),
        )
        for mutant in mutants
    ]
    return _fields(
        facts=_function(
            (_text(p), _facts(facts, run.role(p), clock)) for p, facts in run.facts.items()
        ),
        granted=_set(_value(item) for item in granted),
        incarnations=_set(_text(item) for item in incarnations),
        sessions=_function((_text(s), _value(item)) for s, item in sessions.items()),
        family=_function((_text(p), _family(run, p)) for p in run.facts),
        taken=_set(_value(item) for item in taken),
        strangers=_function((_text(name), _text(said)) for name, said in strangers.items()),
        log="<<\n" + ",\n".join(_record(record, clock) for record in log) + ">>",
        mutants="<<" + ",\n".join(changed) + ">>",
    )


def _family(run: Run, process: str) -> str:
    """The processes of the same instance, by what they do."""
    name = run.instance(process)
    every = [p for p in run.facts if p == process or (name and run.instance(p) == name)]
    role = {p: run.role(p) for p in every} if name else {}
    numbers = {str(run.number(p)): p for p in every if role.get(p) in ("server", "reader")}
    return _fields(
        all=_set(_text(p) for p in every),
        engine=_text(next((p for p in every if role.get(p) == "engine"), "")),
        parents=_set(_text(p) for p in every if role.get(p) == "parent"),
        data=_function((number, _text(p)) for number, p in numbers.items()),
    )


def _facts(facts: Mapping[str, Mapping[str, Any]], role: str, clock: Clock) -> str:
    written = {"kind": _text(role)}
    for (part, name), variable in FACT_NAMES.items():
        kind = FACTS[part][name]
        known = facts.get(part)
        if known is None and variable in written:
            continue
        if kind == "text":
            written[variable] = _text(known[name]) if known else '""'
        elif known is None:
            written[variable] = "-1"
        else:
            written[variable] = str(clock.span(known[name]) if kind in _TIMES else known[name])
    return _fields(**written)


def _record(record: Record, clock: Clock) -> str:
    args = record.args
    tier = record.objects["tier"]
    parts = {
        "p": _text(record.process),
        "act": _text(record.action),
        "seq": str(record.seq),
        "t": str(clock.moment(record.clock, record.t)),
        "id": str(record.object_id),
        "name": _text(args.get("mm_hash", "")),
        "att": str(args.get("attempt", 0)),
        "blocks": str(args.get("blocks", 0)),
        "holder": _value(args.get("holder", ())),
        "now": str(clock.moment(record.clock, args["now"])) if "now" in args else _NEVER,
        "why": _text(args.get("why", "")),
        "fired": _sequence(
            _fields(
                lifecycle=_text(item.lifecycle),
                id=str(item.object_id),
                event=_text(item.event),
                guards=_value(item.guards),
                **{"from": _text(item.before), "to": _text(item.after)},
            )
            for item in record.fired
        ),
        "tier": _sequence(_object("tier", value, record, clock) for value in tier.values()),
    }
    for kind, name in _OBJECTS.items():
        parts[name] = _function(
            (str(number), _object(kind, value, record, clock))
            for number, value in record.objects[kind].items()
        )
    return _fields(**parts)


#: Stands for "no moment"; no clock gets there.
_NEVER: Final = "-1000000000"


def _object(kind: str, value: Mapping[str, Any], record: Record, clock: Clock) -> str:
    written = {}
    for name, item in value.items():
        match VARIABLES[kind][name]:
            case "time":
                written[name] = str(clock.moment(record.clock, item))
            case "seconds" | "seconds-or-none":
                written[name] = str(clock.span(item))
            case _:
                written[name] = _value(item)
    return _fields(**written)


def _text(text: str) -> str:
    """A string of TLA+; what that cannot hold is percent-encoded, byte by byte.

    TLC keeps every string for ever, at a cost that grows with its length, so a very long
    one is named by its beginning and its digest.
    """
    if len(text) > _MOST_TEXT:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        text = f"{text[:64]}#{digest}"
    safe = _UNSAFE.sub(
        lambda m: "".join(f"%{byte:02x}" for byte in m[0].encode("utf-8", "surrogatepass")), text
    )
    return f'"{safe}"'


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, frozenset):
        return _set(_value(item) for item in value)
    return _sequence(_value(item) for item in value)


def _sequence(items: Iterable[str]) -> str:
    return "<<" + ", ".join(items) + ">>"


def _set(items: Iterable[str]) -> str:
    return "{" + ", ".join(sorted(items)) + "}"


def _fields(**fields: str) -> str:
    return "[" + ", ".join(f"{name} |-> {text}" for name, text in fields.items()) + "]"


def _function(items: Iterable[tuple[str, str]]) -> str:
    written = [f"({key} :> {text})" for key, text in items]
    return " @@ ".join(written) if written else "<<>>"
