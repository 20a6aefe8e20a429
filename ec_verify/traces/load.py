# SPDX-License-Identifier: Apache-2.0
"""Reads trace files into runs: every record checked and in one form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ec_protocol.errors import TraceError
from ec_verify.traces.fields import FACTS, SINCE_3, VARIABLES, arguments_of, read_fields
from ec_verify.traces.read import read_trace

_SUFFIXES: Final = (".ndjson", ".ndjson.gz")
_RECORD: Final = {"seq", "t", "node", "action", "args", "fired", "vars"}
_FIRED: Final = {"lifecycle", "id", "event", "guards", "from", "to"}
#: What kinds of process are known by.
_ROLES: Final = {"shelf": "server", "lent": "reader", "processes": "parent"}
#: Arguments that say which object an action is about.
_IDS: Final = ("copy", "grant", "attempt", "peer", "entry", "offer", "loan", "process")


class RecordError(TraceError):
    """A record that no trace can have.

    Attributes:
        number: Which one of the run, from 1.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


@dataclass(frozen=True, slots=True)
class Fired:
    """One lifecycle event that a record tells."""

    lifecycle: str
    object_id: int
    event: str
    guards: frozenset[str]
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a trace, checked; times in seconds of the process's clock.

    Attributes:
        process: Name of the process, unique in the run.
        instance: Of several processes, of which it is one; ``""`` for none.
        role: See ``Run.role``.
        number: Of a data process in its instance; 0 for every other process.
        file: Where it was read.
        line: Line of the file; the header is line 1.
        seq: Number in the process, from 0.
        t: When it was recorded.
        action: The action's name.
        args: The action's arguments.
        fired: Lifecycle events, in order.
        objects: Kind, then id, then variables; the tier has id 0.
    """

    process: str
    instance: str
    role: str
    number: int
    file: str
    line: int
    seq: int
    t: float
    action: str
    args: Mapping[str, Any]
    fired: tuple[Fired, ...]
    objects: Mapping[str, Mapping[int, Mapping[str, Any]]]

    @property
    def object_id(self) -> int:
        """Id of the object that the action is about, 0 if it names none."""
        return next((self.args[name] for name in _IDS if name in self.args), 0)

    @property
    def clock(self) -> str:
        """Names the clock of its times: the processes of an instance have one together."""
        return f"instance {self.instance}" if self.instance else self.process

    @property
    def place(self) -> str:
        """File and line, for people."""
        return f"{self.file}, line {self.line}"


@dataclass(slots=True)
class Run:
    """The processes of one run.

    Attributes:
        name: The file or folder that it was read from.
        streams: Records of each file, in its order.
        facts: Process, then part, then field.
    """

    name: str
    streams: list[list[Record]] = field(default_factory=list)
    facts: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Number of records of all processes."""
        return sum(map(len, self.streams))

    def instance(self, process: str) -> str:
        """The instance of which it is a process; ``""`` if it stands for itself."""
        return str(self.facts[process].get("instance", {}).get("name", ""))

    def number(self, process: str) -> int:
        """The number that its instance has for it; 0 for every other process."""
        return int(self.facts[process].get("instance", {}).get("process", 0))

    def role(self, process: str) -> str:
        """What the process is, by what it is made of: engine, server, reader or parent."""
        facts = self.facts[process]
        return next((role for part, role in _ROLES.items() if part in facts), "engine")


def load_run(path: str | Path | Sequence[Path], name: str = "") -> Run:
    """Read a trace file, or all those of a folder as the processes of one run.

    Args:
        path: A file, a folder, or the files of one run.
        name: What to call the run, if not by ``path``.

    Raises:
        RecordError: A damaged line, or a field that no record has; the message names
            file and line.
        TraceError: Nothing to read, no trace, or not one record.
    """
    files = trace_files(path)
    return make_run(name or named(path), [(str(file), read_trace(file)) for file in files])


def trace_files(path: str | Path | Sequence[Path]) -> list[Path]:
    """The files that ``load_run`` reads.

    Raises:
        TraceError: A folder without traces.
    """
    if not isinstance(path, str | Path):
        return list(path)
    path = Path(path)
    if not path.is_dir():
        return [path]
    files = sorted(p for p in path.iterdir() if p.name.endswith(_SUFFIXES) and p.is_file())
    if not files:
        raise TraceError(f"{path}: no trace in this folder ({' or '.join(_SUFFIXES)})")
    return files


def named(path: str | Path | Sequence[Path]) -> str:
    """What a run is called: its file, its folder, or all of its files."""
    return str(path) if isinstance(path, str | Path) else " ".join(map(str, path))


def make_run(name: str, sources: Iterable[tuple[str, Iterable[Mapping[str, Any]]]]) -> Run:
    """A run from records as ``read_trace`` or a sink gives them.

    Args:
        name: What to call it.
        sources: Per file its name and its records.

    Raises:
        TraceError: See ``load_run``.
    """
    run = Run(name)
    for number, (file, raw) in enumerate(sources):
        names = _Names(run, number)
        stream: list[Record] = []
        run.streams.append(stream)
        items = iter(raw)
        while True:
            # Line 1 is the header.
            line = len(stream) + 2
            try:
                item = next(items, None)
            except TraceError as exc:
                if stream:
                    raise RecordError(str(exc), run.records + 1) from None
                raise
            if item is None:
                break
            try:
                stream.append(_record(item, file, line, names, run))
            except TraceError as exc:
                number = run.records + 1
                raise RecordError(f"{file}, line {line}: {exc}", number) from None
    if not run.records:
        raise TraceError(f"{name}: an empty trace proves nothing: not one record")
    return run


class _Names:
    """Tells the processes of one file apart.

    A process that starts again begins with ``seq`` 0: the next one of its node.
    """

    def __init__(self, run: Run, number: int) -> None:
        self._run = run
        self._suffix = f"@{number + 1}" if number else ""
        self._current: dict[str, str] = {}

    def of(self, node: str, seq: int) -> str:
        """The process that a record belongs to."""
        if seq == 0 or node not in self._current:
            base = name = f"{node}{self._suffix}"
            starts = 1
            while name in self._run.facts:
                starts += 1
                name = f"{base}#{starts}"
            self._current[node] = name
            self._run.facts[name] = {}
        return self._current[node]


def _record(raw: Any, file: str, line: int, names: _Names, run: Run) -> Record:
    if missing := sorted(_RECORD - set(raw)):
        raise TraceError(f"{', '.join(missing)} missing")
    if unknown := sorted(set(raw) - _RECORD - {"facts"}):
        raise TraceError(f"unknown {', '.join(unknown)}")
    head = read_fields(
        {name: raw[name] for name in ("seq", "t", "node", "action")},
        {"seq": "count", "t": "time", "node": "text", "action": "text"},
        "record",
    )
    arguments = arguments_of(head["action"], raw["args"])
    if arguments is None:
        raise TraceError(f"action={head['action']!r}: the table of actions does not have it")
    process = names.of(head["node"], head["seq"])
    _learn(run.facts[process], raw.get("facts", {}))
    return Record(
        process=process,
        instance=run.instance(process),
        role=run.role(process),
        number=run.number(process),
        file=file,
        line=line,
        seq=head["seq"],
        t=head["t"],
        action=head["action"],
        args=read_fields(raw["args"], arguments, "args"),
        fired=_fired(raw["fired"]),
        objects=_objects(raw["vars"]),
    )


def _learn(known: dict[str, dict[str, Any]], facts: Any) -> None:
    if not isinstance(facts, dict):
        raise TraceError("facts: expected an object")
    for part, value in facts.items():
        if part not in FACTS:
            raise TraceError(f"facts.{part}: unknown")
        told = read_fields(value, FACTS[part], f"facts.{part}")
        if known.setdefault(part, told) != told:
            raise TraceError(f"facts.{part}: {told} contradicts {known[part]} told before")


def _fired(value: Any) -> tuple[Fired, ...]:
    if not isinstance(value, list):
        raise TraceError("fired: expected a list")
    result = []
    for number, item in enumerate(value):
        where = f"fired[{number}]"
        if not isinstance(item, dict) or set(item) != _FIRED:
            raise TraceError(f"{where}: expected exactly {', '.join(sorted(_FIRED))}")
        guards = item["guards"]
        if not isinstance(guards, list) or not all(isinstance(g, str) for g in guards):
            raise TraceError(f"{where}.guards={guards!r}: expected a list of strings")
        texts = read_fields(
            {k: v for k, v in item.items() if k != "guards"},
            {"lifecycle": "text", "id": "count", "event": "text", "from": "text", "to": "text"},
            where,
        )
        result.append(
            Fired(
                texts["lifecycle"],
                texts["id"],
                texts["event"],
                frozenset(guards),
                texts["from"],
                texts["to"],
            )
        )
    return tuple(result)


def _objects(value: Any) -> dict[str, dict[int, dict[str, Any]]]:
    if not isinstance(value, dict):
        raise TraceError("vars: expected an object")
    objects: dict[str, dict[int, dict[str, Any]]] = {kind: {} for kind in VARIABLES}
    for key, variables in value.items():
        kind, colon, number = key.partition(":")
        named = kind in VARIABLES and (number.isascii() and number.isdigit()) == bool(colon)
        if not named or (kind == "tier") == bool(colon) or len(number) > 9:
            raise TraceError(f"vars.{key}: expected tier or kind:id, kind one of {kinds()}")
        may_lack = frozenset(name for of, name in SINCE_3 if of == kind)
        objects[kind][int(number or 0)] = read_fields(
            variables, VARIABLES[kind], f"vars.{key}", may_lack
        )
    return objects


def kinds() -> str:
    """The kinds of objects, for messages."""
    return ", ".join(kind for kind in VARIABLES if kind != "tier")
