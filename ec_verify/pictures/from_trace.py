# SPDX-License-Identifier: Apache-2.0
"""Makes a story of traces: what real processes did, one file for each process."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ec_protocol.errors import TraceError
from ec_protocol.tables.lifecycle import load_actions, load_lifecycles
from ec_verify.behaviours.story import Arrow, ArrowKind, Lane, OpenBars, Step, Story
from ec_verify.behaviours.tier import REPORTS
from ec_verify.traces.merge import Cue, in_order
from ec_verify.traces.read import read_trace

Record = Mapping[str, Any]

ELSEWHERE: Final = "elsewhere"
_HEX: Final = re.compile(r"[0-9a-f]{16,}\Z")
_NUMBER: Final = re.compile(r"(\w+):(\d+)\Z")
_FIELDS: Final = ("seq", "t", "node", "action", "args", "fired", "vars")
_TIMES: Final = frozenset({"sent_at", "fence", "posted_at", "lost_at", "expires_at"})
_TAKES_ACK: Final = frozenset({"AckOk", "AckRetry", "AckRefused"})
_READ_OVER: Final = frozenset({"done", "retryable", "settled"})


def story_of_traces(paths: Sequence[Path]) -> Story:
    """The story of one or more trace files, merged.

    Raises:
        TraceError: A file is no trace, or a record in it lacks something; the
            message names file and record.
    """
    streams = [_records(path) for path in paths]
    if not any(streams):
        raise TraceError(f"trace file {paths[0]}: holds no record, so there is nothing to show")
    names = _process_names(paths, streams)
    total = sum(map(len, streams))
    title = paths[0].stem if len(paths) == 1 else f"{paths[0].parent.name or paths[0].stem} trace"
    story = Story(
        title=title,
        subtitle=f"{total} records of {len(set(names.values()))} process(es)",
        lanes=[],
        time_unit="seconds",
        about="A recorded run. Rows of one process are in its own order; rows of different "
        "processes are ordered by the messages between them, and otherwise by the time that "
        "each took down.",
    )
    picture = _Picture(story, names, streams)
    lines = [1] * len(streams)  # the header is line 1
    for row, (stream, record) in enumerate(merged(streams)):
        lines[stream] += 1
        story.places[str(paths[stream]), lines[stream]] = row
        picture.add(names[stream, record["node"]], record)
    return story


def merged(streams: Sequence[Sequence[Record]]) -> Iterator[tuple[int, Record]]:
    """All records in one order, each with the number of its stream."""
    cues = [[_cue(record) for record in stream] for stream in streams]
    # Where causes leave a choice, a reader looks for the order of time.
    for stream, index in in_order(cues, wishes_count=False):
        yield stream, streams[stream][index]


def _cue(record: Record) -> Cue:
    """As ``traces.merge`` has it, of a record that was not checked yet."""
    args = record["args"]
    told = [item.get("guards") for item in record["fired"] if isinstance(item, dict)]
    return Cue(
        float(record["t"]),
        record["action"],
        session_of(record) if {"attempt", "grant"} & args.keys() else None,
        None if "grant" in args else _state(record, "read"),
        frozenset(str(guard) for some in told if isinstance(some, list) for guard in some),
        str(args.get("why", "")),
    )


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


def _records(path: Path) -> list[Record]:
    records: list[Record] = []
    for number, record in enumerate(read_trace(path), 2):
        for field in _FIELDS:
            if field not in record:
                raise TraceError(
                    f"trace file {path}, line {number}: a record without {field!r}; "
                    "is it written by ec_protocol.trace?"
                )
        if not (
            isinstance(record["args"], dict)
            and isinstance(record["vars"], dict)
            and all(isinstance(v, dict) for v in record["vars"].values())
            and isinstance(record["fired"], list)
            and isinstance(record["action"], str)
            and isinstance(record["node"], str)
            and isinstance(record["t"], (int, float))
        ):
            raise TraceError(f"trace file {path}, line {number}: a field has a wrong type")
        records.append(record)
    return records


def _process_names(
    paths: Sequence[Path], streams: Sequence[Sequence[Record]]
) -> dict[tuple[int, str], str]:
    """A short name for each node of each file."""
    names: dict[tuple[int, str], str] = {}
    for number, (path, stream) in enumerate(zip(paths, streams, strict=True)):
        nodes = list(dict.fromkeys(record["node"] for record in stream))
        for node in nodes:
            name = path.name.split(".")[0] if len(nodes) == 1 and len(paths) > 1 else short(node)
            if name in names.values():
                name = f"{name} {number + 1}"
            names[number, node] = name
    return names


def short(name: str) -> str:
    """A name that fits: the beginning of a hash, a long text with an ellipsis."""
    if _HEX.match(name.replace("-", "")):
        return name[:8]
    return name if len(name) <= 20 else name[:18] + "…"


class _Picture:
    def __init__(
        self,
        story: Story,
        names: Mapping[tuple[int, str], str],
        streams: Sequence[Sequence[Record]],
    ) -> None:
        self.story = story
        self.bars = OpenBars(story)
        self.row = -1
        self.origin = min(record["t"] for stream in streams for record in stream)
        self._last_time = ""
        self._over: dict[str, str | None] = {}
        self._shown: dict[str, dict[str, str]] = {}
        self._waiting: dict[tuple[str, str], set[Any]] = {}
        self._requests: dict[str, Arrow] = {}
        self._acks: dict[str, Arrow] = {}
        self._moved: dict[str, tuple[str, int]] = {}
        self._grantors = {
            session_of(r) for stream in streams for r in stream if r["action"] == "Grant"
        }
        self._askers = {
            session_of(r) for stream in streams for r in stream if r["action"] == "RequestRead"
        }
        ranks = {
            rank
            for stream in streams
            for record in stream
            for key, variables in record["vars"].items()
            if key.startswith("copy:") and isinstance(variables.get("waiting"), list)
            for rank in variables["waiting"]
        }
        story.lanes = self._lanes(list(dict.fromkeys(names.values())), sorted(ranks, key=str))

    def _lanes(self, processes: list[str], ranks: list[Any]) -> list[Lane]:
        lanes = []
        for name in processes:
            lanes += [
                Lane(f"{name}/engine", "engine", name),
                *(Lane(f"{name}/rank {rank}", f"worker rank {rank}", name) for rank in ranks),
                Lane(f"{name}/copies", "copies", name, "bars"),
                Lane(f"{name}/data", "data processes", name),
                Lane(f"{name}/fence", "fence · quarantine", name, "bars"),
                Lane(f"{name}/dma", "DMA", name),
                Lane(f"{name}/lease", "lease", name, "bars"),
            ]
        return [*lanes, Lane(ELSEWHERE, "peer", "not recorded")]

    # ------------------------------------------------------------------- steps
    def add(self, process: str, record: Record) -> None:
        """Add the step of one record."""
        self.row += 1
        action = record["action"]
        known = load_actions().get(action)
        actor = known.actor if known else "engine"
        lane = f"{process}/{'engine' if actor == 'engine' else 'data'}"
        time = f"{record['t'] - self.origin:.3f}"
        step = Step(
            lane=lane,
            label=action,
            subject=_subject(record["args"]),
            notes=[
                f"{item.get('lifecycle')} {item.get('from')} → {item.get('to')}"
                for item in record["fired"]
                if isinstance(item, dict)
            ],
            time="" if time == self._last_time else time,
            why=known.why if known else "",
            changes=self._changes(process, record["vars"]),
        )
        self._last_time = time
        self.story.steps.append(step)
        session = session_of(record)
        if session is not None:
            self._messages(action, session, process, lane, record)
        for key, variables in record["vars"].items():
            self._object(process, action, key, variables)

    def _changes(self, process: str, touched: Mapping[str, Any]) -> dict[str, str | None]:
        """New values of the touched objects; what was over before this step is gone."""
        changes, self._over = self._over, {}
        for key, variables in touched.items():
            kind, _, number = key.partition(":")
            group = f"{process}: {kind} {number}".rstrip()
            now = {
                f"{group}|{field}": self._value(field, value)
                for field, value in variables.items()
                if value is not None and value not in ([], "")
            }
            before = self._shown.get(group, {})
            changes.update({name: text for name, text in now.items() if before.get(name) != text})
            changes.update({name: None for name in before if name not in now})
            self._shown[group] = now
            if variables.get("state") in _terminal(kind):
                self._over.update(dict.fromkeys(now))
                del self._shown[group]
        return changes

    def _value(self, field: str, value: Any) -> str:
        if field in _TIMES and isinstance(value, (int, float)):
            return f"{value - self.origin:.3f} s"
        if isinstance(value, str):
            return short(value)
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, (list, tuple)):
            return ", ".join(
                " ".join(map(str, item)) if isinstance(item, list) else str(item) for item in value
            )
        return str(value)

    # ------------------------------------------------------------------ arrows
    def _messages(
        self, action: str, session: str, process: str, lane: str, record: Mapping[str, Any]
    ) -> None:
        attempt = record["args"].get("attempt")
        name = short(str(record["args"].get("mm_hash", "")))
        if action == "RequestRead":
            arrow = self._arrow(lane, ELSEWHERE, f"request {attempt} ({name})", "request")
            if session not in self._grantors:
                arrow.end = self.row
            self._requests[session] = arrow
        elif action == "Grant":
            request = self._requests.get(session)
            if request is not None:
                request.target, request.end = lane, self.row
            else:
                self._arrow(
                    ELSEWHERE, lane, f"request {attempt} ({name})", "request"
                ).end = self.row
            self._acks[session] = self._arrow(lane, ELSEWHERE, f"OK {attempt}", "ack")
            if session not in self._askers:
                self._acks[session].end = self.row
        elif action in _TAKES_ACK:
            ack = self._acks.get(session)
            if ack is not None and ack.end is None:
                ack.target, ack.end = lane, self.row
            elif ack is None:
                kind: ArrowKind = "ack" if action == "AckOk" else "nack"
                label = {"AckOk": "OK", "AckRetry": "NOT_READY"}.get(action, "refusal")
                self._arrow(ELSEWHERE, lane, f"{label} {attempt}", kind).end = self.row
        elif action == "Complete":
            source, start = self._moved.get(session, (ELSEWHERE, self.row))
            self.story.arrows.append(
                Arrow(source, lane, start, self.row, f"notice {attempt}", "notice")
            )
        if action == "PostRead" and _state(record, "read") == "reading":
            self._arrow(lane, f"{process}/dma", "post READ", "data").end = self.row
        elif action in ("ReadDone", "ReadCorrupt", "DmaEnded"):
            self._arrow(f"{process}/dma", lane, "seen done", "data").end = self.row
        # The notice travels with the READ, or goes out when an attempt ends without one.
        if action in ("PostRead", "ReadDone", "ReadCorrupt"):
            posted = _state(record, "read") in ("reading", "done")
            self._moved[session] = (f"{process}/dma" if posted else lane, self.row)
        elif action in ("Settle", "AckRefused"):
            self._moved.setdefault(session, (lane, self.row))

    def _arrow(self, source: str, target: str, label: str, kind: ArrowKind) -> Arrow:
        arrow = Arrow(source, target, self.row, None, label, kind)
        self.story.arrows.append(arrow)
        return arrow

    # ----------------------------------------------------------------- objects
    def _object(self, process: str, action: str, key: str, variables: Mapping[str, Any]) -> None:
        match = _NUMBER.match(key)
        if match is None:
            return
        kind, number = match.groups()
        state = variables.get("state")
        name = (process, key)
        if kind == "read":
            self._read(process, name, number, str(state))
        elif kind == "grant":
            if state == "granted":
                self.bars.show(name, self.row, f"{process}/lease", f"lease {number}", "lease")
            else:
                self.bars.hide(name, self.row)
        elif kind == "copy":
            self._copy(process, name, number, action, variables)

    def _read(self, process: str, name: tuple[str, str], number: str, state: str) -> None:
        lane, dma = f"{process}/fence", f"{process}/dma"
        if state in ("requested", "granted", "reading"):
            self.bars.show(name, self.row, lane, f"read {number}: {state}", "fence")
        elif state == "quarantined":
            self.bars.show(name, self.row, lane, f"read {number}: quarantined", "quarantine")
        else:
            self.bars.hide(name, self.row)
        if state == "reading":
            self.bars.show((*name, "dma"), self.row, dma, f"READ {number}", "transfer")
        elif state in _READ_OVER:
            self.bars.hide((*name, "dma"), self.row)

    def _copy(
        self,
        process: str,
        name: tuple[str, str],
        number: str,
        action: str,
        variables: Mapping[str, Any],
    ) -> None:
        state, kind = variables.get("state"), variables.get("kind")
        waiting = variables.get("waiting")
        now = set(waiting) if isinstance(waiting, list) else set()
        engine = f"{process}/engine"
        if action in ("SubmitSave", "SubmitLoad"):
            for rank in sorted(now, key=str):
                self._arrow(
                    engine, f"{process}/rank {rank}", f"{kind} {number}", "local"
                ).end = self.row
        elif action in REPORTS:
            for rank in sorted(self._waiting.get(name, set()) - now, key=str):
                self._arrow(f"{process}/rank {rank}", engine, "report", "local").end = self.row
        if state in ("planned", "in_flight"):
            self._waiting[name] = now
            label = f"{kind} {number}: {state}"
            self.bars.show(name, self.row, f"{process}/copies", label, "transfer")
        else:
            self._waiting.pop(name, None)
            self.bars.hide(name, self.row)


def _state(record: Mapping[str, Any], kind: str) -> str | None:
    for key, variables in record["vars"].items():
        if key.startswith(kind + ":"):
            state = variables.get("state")
            return state if isinstance(state, str) else None
    return None


def _terminal(kind: str) -> tuple[str, ...]:
    table = load_lifecycles().get(kind)
    return table.terminal if table else ()


def _subject(args: Mapping[str, Any]) -> str:
    parts = []
    for field in ("attempt", "grant", "copy", "peer"):
        if args.get(field) is not None and not (field == "grant" and "attempt" in args):
            parts.append(f"{field} {args[field]}")
    if isinstance(args.get("mm_hash"), str):
        parts.append(short(args["mm_hash"]))
    return " · ".join(parts)
