# SPDX-License-Identifier: Apache-2.0
"""Records every protocol action for validation against the TLA+ spec (EC-1.3).

Off by default: whatever moves goes through one ``Recorder``, which without a trace pays
one comparison. When on, an action collects the lifecycle events it fired
and the spec variables of every object it touched, and becomes one NDJSON line::

    {"seq": 7, "t": 12.5, "node": "consumer", "action": "ReadDone",
     "args": {"attempt": 3}, "fired": [{"lifecycle": "read", "id": 3,
     "event": "read_done", "guards": ["in_lease"], "from": "reading",
     "to": "done"}, …], "vars": {"read:3": {…}, "entry:9": {…}, "tier": {…}}}

``vars`` holds the complete record of each touched object, so that the whole
state follows from the lines before. What a process never changes (timers, size of
the region, its incarnation) is in ``facts`` of its first record. The format is
described in ``spec/TRACE.md``. Not thread-safe.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol

from ec_protocol.errors import LocalProtocolError, TraceError
from ec_protocol.tables.dispatch import DISPATCH, Dispatcher, Step
from ec_protocol.tables.lifecycle import load_actions

TRACE_VERSION = 3

logger = logging.getLogger(__name__)


class Trace:
    """Collects actions and hands each finished one to a sink.

    Args:
        node: Name of this process in merged traces.
        clock: Returns seconds of the clock that the caller passes as ``now``.
        sink: Called with each finished record, in order.
    """

    def __init__(
        self, node: str, clock: Callable[[], float], sink: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self.node = node
        self.clock = clock
        self.sink = sink
        self.seq = 0
        self._fired: list[dict[str, Any]] = []
        self._vars: dict[str, Any] = {}
        self._facts: dict[str, dict[str, Any]] = {}

    def facts(self, part: str, **facts: Any) -> None:
        """Note what ``part`` of the process is built with; the next record tells it.

        Called once per part, by its constructor.
        """
        self._facts[part] = facts

    def fired(
        self,
        lifecycle: str,
        object_id: int | str,
        event: str,
        guards: int,
        before: str,
        after: str,
    ) -> None:
        """Note one lifecycle move of the action under way."""
        held = [g for g, bit in DISPATCH[lifecycle].bits.items() if guards & bit]
        self._fired.append(
            {
                "lifecycle": lifecycle,
                "id": object_id,
                "event": event,
                "guards": held,
                "from": before,
                "to": after,
            }
        )

    def touch(self, key: str, variables: Mapping[str, Any]) -> None:
        """Note the spec variables of an object after the move."""
        self._vars[key] = dict(variables)

    def action(self, name: str, **args: Any) -> None:
        """Close the action under way and hand it to the sink.

        Raises:
            LocalProtocolError: The action is not in the table, or it fired an
                event that the table does not list for it.
        """
        known = load_actions().get(name)
        if known is None:
            raise LocalProtocolError(f"trace: unknown action {name!r}", clause="EC-1.3")
        for item in self._fired:
            full = f"{item['lifecycle']}.{item['event']}"
            if full not in known.fires:
                raise LocalProtocolError(
                    f"trace: action {name} fired {full}, which its table row does not list",
                    clause="EC-1.3",
                )
        record: dict[str, Any] = {
            "seq": self.seq,
            "t": self.clock(),
            "node": self.node,
            "action": name,
            "args": args,
            "fired": self._fired,
            "vars": self._vars,
        }
        if self._facts:
            record["facts"], self._facts = self._facts, {}
        self.seq += 1
        self._fired, self._vars = [], {}
        self.sink(record)


class Told(Protocol):
    """What a trace tells the variables of."""

    @property
    def label(self) -> str:
        """Its name in traces: ``tier``, or lifecycle and number as in ``entry:9``."""

    def variables(self) -> dict[str, Any]:
        """Its spec variables."""


class Moved(Told, Protocol):
    """What has a lifecycle: an entry, a copy, a READ's attempt, a grant or a peer."""

    lifecycle: ClassVar[Dispatcher]
    state: str


class Recorder:
    """Fires events, stores the states they lead to, and tells the trace, if there is one.

    One for all parts of a process, and for one thread.

    Args:
        trace: Where to record; None records nothing.
    """

    __slots__ = ("trace",)

    def __init__(self, trace: Trace | None = None) -> None:
        self.trace = trace

    def facts(self, part: str, **facts: Any) -> None:
        """See ``Trace.facts``."""
        if self.trace is not None:
            self.trace.facts(part, **facts)

    def move(self, what: Moved, event: str, guards: int = 0) -> Step:
        """Move an object of a lifecycle; the caller carries the step's effect out.

        Raises:
            ProtocolError: As ``Dispatcher.fire``; nothing is changed (EC-1.2).
        """
        before = what.state
        table = what.lifecycle
        # Every event of every object comes here: what is there is taken without a call.
        step = table.steps.get((before, event, guards)) or table.fire(before, event, guards)
        what.state = step.state
        if self.trace is not None:
            lifecycle, _, number = what.label.partition(":")
            self.trace.fired(lifecycle, int(number), event, guards, before, what.state)
        return step

    def touch(self, one: Told, other: Told | None = None) -> None:
        """Note the variables of an object or two as the action under way leaves them."""
        if self.trace is not None:
            self.trace.touch(one.label, one.variables())
            if other is not None:
                self.trace.touch(other.label, other.variables())

    def action(
        self, name: str, one: Told | None = None, other: Told | None = None, **args: Any
    ) -> None:
        """Touch what is given, and close the action under way."""
        if self.trace is not None:
            if one is not None:
                self.touch(one, other)
            self.trace.action(name, **args)


class NdjsonSink:
    """Writes records to a file, one JSON object a line, first a header line.

    Each line is handed to the system when it is complete, so that a process which is
    killed leaves a readable trace. A file that cannot be written any more ends the
    trace, with an error in the log, and not whoever records.

    Raises:
        TraceError: The file cannot be opened; the message names it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._end = 0
        try:
            self._file: IO[bytes] | None = open(self.path, "wb", buffering=0)  # noqa: SIM115
            self._append({"trace_version": TRACE_VERSION})
        except OSError as exc:
            raise TraceError(
                f"trace file {self.path}: {exc.strerror}; name a writable file"
            ) from exc

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Append one record; nothing once the trace has ended."""
        if self._file is None:
            return
        try:
            self._append(record)
        except (OSError, ValueError) as exc:
            logger.error("trace file %s ends here: %s", self.path, exc)
            # Half a line would make the whole trace a damaged one.
            with contextlib.suppress(OSError, ValueError):
                self._file.truncate(self._end)
            self.close()

    def _append(self, record: Mapping[str, Any]) -> None:
        line = memoryview(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        rest = line
        while rest and self._file is not None:
            rest = rest[self._file.write(rest) :]
        self._end += len(line)

    def close(self) -> None:
        """Close; later records are dropped. May be called twice."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
