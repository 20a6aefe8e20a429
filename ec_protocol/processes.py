# SPDX-License-Identifier: Apache-2.0
"""The data processes of one instance, as their parent sees them.

The parent is told what happened (``ready``, ``beat``, ``drain``, ``exited``) and what time
it is, and does what it is answered: start one, let one take work, kill one. The rules:

- of each kind so many work, and so many more stand by, mapped and registered, so that
  nobody waits for a start;
- a server takes its place when the one before it has *exited* (EC-14.6): a signal that was
  sent proves nothing;
- one that gives no sign of life for ``stall_s``, that is not ready after ``start_s``, or
  that has drained for ``drain_s``, is killed (EC-14.5, EC-14.9);
- one that dies again and again is started later and later, until one has worked for
  ``lived_s`` (EC-14.12);
- time in which the parent stood still itself is nobody's fault (EC-14.11);
- one that was killed and has not exited after ``stall_s`` is *stuck*: somebody is told, and
  the others go on without it (EC-14.13);
- there are never more than twice as many as are wanted, those included that are stuck.

No thread, no clock, no process of its own.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from ec_protocol.errors import LocalProtocolError
from ec_protocol.tables.dispatch import PROCESS, Dispatcher
from ec_protocol.tables.timing import Timing
from ec_protocol.trace import Recorder

#: What a data process does.
Kind = Literal["server", "reader"]

#: Pause after so many short lives in a row, and the longest pause.
_SHORT_LIVES: Final = 3
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0
#: Signs of life within ``stall_s``, of whoever is watched (EC-14.11).
_BEATS: Final = 4


def beat_interval(timing: Timing) -> float:
    """Longest time between two signs of life of one process, in seconds (EC-14.11)."""
    return timing.stall_s / _BEATS


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Start a process with exec and register its exit."""

    process: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class TakePlace:
    """It has work from here on."""

    process: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class KillProcess:
    """SIGKILL; ``exited`` follows when the kernel says so."""

    process: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReportStuck:
    """It was killed and has not exited, and may never: an operator should know."""

    process: int


Command = StartProcess | TakePlace | KillProcess | ReportStuck


@dataclass(slots=True, eq=False)
class _Process:
    lifecycle: ClassVar[Dispatcher] = PROCESS

    number: int
    kind: Kind
    started_at: float
    beat_at: float
    took_at: float | None = None
    drained_at: float = 0.0
    condemned: str = ""
    killed_at: float = 0.0
    stuck: bool = False
    state: str = PROCESS.initial

    @property
    def label(self) -> str:
        return f"process:{self.number}"

    def variables(self) -> dict[str, Any]:
        return {"state": self.state, "kind": self.kind}


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many of a kind: that work, and that stand by."""

    working: int
    spare: int


class Processes:
    """Decides which processes there are.

    Args:
        wanted: By kind.
        timing: ``start_s``, ``stall_s``, ``drain_s`` and ``lived_s`` are used.
        recorder: Moves the processes; None makes one without a trace.
        first: Number of the first process.

    Attributes:
        counters: Starts, exits, and kills by reason.
        stopping: Nothing is started any more, and everything killed.
    """

    def __init__(
        self,
        wanted: Mapping[Kind, Wanted],
        timing: Timing,
        recorder: Recorder | None = None,
        *,
        first: int = 1,
    ) -> None:
        self.wanted = dict(wanted)
        self.timing = timing
        self.recorder = recorder or Recorder()
        self.counters: Counter[str] = Counter()
        self.stopping = False
        self._all: dict[int, _Process] = {}
        self._short_lives: Counter[Kind] = Counter()
        self._not_before: dict[Kind, float] = {}
        self._numbers = itertools.count(first)
        most = {kind: 2 * (some.working + some.spare) for kind, some in wanted.items()}
        self.recorder.facts(
            "processes",
            servers=most.get("server", 0),
            readers=most.get("reader", 0),
            first=first,
        )

    def __len__(self) -> int:
        return len(self._all)

    def numbers(self, state: str, kind: Kind | None = None) -> list[int]:
        """Those of a kind that are in a state, the oldest first."""
        return [p.number for p in self._all.values() if p.state == state and kind in (None, p.kind)]

    # ------------------------------------------------------------------ what happened
    def ready(self, process: int, now: float) -> None:
        """It says that it can work. Nothing if it was killed meanwhile.

        Raises:
            RemoteProtocolError: It said so before.
        """
        one = self._known(process)
        if one.state == "killed":
            return
        self._move(one, "ready", "ProcessReady")
        one.beat_at = now

    def beat(self, process: int, at: float) -> None:
        """It gave a sign of life at ``at``."""
        one = self._known(process)
        one.beat_at = max(one.beat_at, at)

    def stood_still(self, seconds: float, now: float) -> None:
        """The parent itself stood still so long: nobody can be blamed for that time.

        Nothing is shifted beyond ``now``: who went on meanwhile gets no time on top.
        """
        for one in self._all.values():
            one.beat_at = min(one.beat_at + seconds, now)
            one.started_at = min(one.started_at + seconds, now)
            one.drained_at = min(one.drained_at + seconds, now)
            one.killed_at = min(one.killed_at + seconds, now)
            if one.took_at is not None:
                one.took_at = min(one.took_at + seconds, now)

    def drain(self, process: int, now: float) -> None:
        """It is to get no new work: a READ of it is lost. Nothing if it has none anyway."""
        one = self._known(process)
        if one.state == "working":
            self._move(one, "drain", "DrainProcess")
            one.drained_at = now
            self.counters["drained"] += 1

    def condemn(self, process: int, reason: str) -> None:
        """It does what it must not: it is killed next. Nothing if it was killed already."""
        self._known(process).condemned = reason

    @property
    def stuck(self) -> list[int]:
        """Those that were killed and do not exit."""
        return [one.number for one in self._all.values() if one.stuck]

    def exited(self, process: int, now: float) -> None:
        """The kernel says that it is gone."""
        one = self._known(process)
        ours = one.state == "killed"
        effect = self._move(one, "exited", "Exited")
        del self._all[process]
        self.counters["exits"] += 1
        if not ours:
            self.counters["died"] += 1
        if effect == "restart":
            self._count_life(one, now)

    def _count_life(self, one: _Process, now: float) -> None:
        """Another one follows, and later if lives have been short."""
        if one.took_at is not None and now - one.took_at >= self.timing.lived_s:
            self._short_lives[one.kind] = 0
            return
        self._short_lives[one.kind] += 1
        beyond = self._short_lives[one.kind] - _SHORT_LIVES
        if beyond > 0:
            pause = min(_FIRST_PAUSE_S * 2.0 ** min(beyond - 1, 60), _LONGEST_PAUSE_S)
            self._not_before[one.kind] = now + pause

    def stop(self) -> None:
        """The instance ends."""
        self.stopping = True

    # ----------------------------------------------------------------------- time
    def tick(self, now: float) -> list[Command]:
        """What is to be done now."""
        commands: list[Command] = []
        for one in list(self._all.values()):
            reason = self._doomed(one, now)
            if reason is not None and self._move(one, "kill", "KillProcess") == "sigkill":
                self.counters[f"killed_{reason}"] += 1
                one.killed_at = now
                commands.append(KillProcess(one.number, reason))
            elif self._may_be_stuck(one) and now >= self._stuck_at(one):
                one.stuck = True
                self.counters["stuck"] += 1
                commands.append(ReportStuck(one.number))
        if not self.stopping:
            for kind, wanted in self.wanted.items():
                commands += self._fill(kind, wanted, now)
        return commands

    def next_deadline(self) -> float | None:
        """When ``tick`` has something to do next, unless something happens before."""
        due = [self._doom_at(one) for one in self._all.values() if one.state != "killed"]
        due += [self._stuck_at(one) for one in self._all.values() if self._may_be_stuck(one)]
        if not self.stopping:
            due += [at for kind, at in self._not_before.items() if self._lacking(kind)]
        return min(due, default=None)

    def _fill(self, kind: Kind, wanted: Wanted, now: float) -> list[Command]:
        commands: list[Command] = []
        working = len(self.numbers("working", kind))
        for number in self.numbers("spare", kind)[: max(0, wanted.working - working)]:
            # Two that write one ledger would lower what the other has written (EC-14.6).
            if kind == "server" and self._runs_another(number):
                break
            one = self._all[number]
            self._move(one, "take", "TakePlace")
            one.took_at = now
            commands.append(TakePlace(number, kind))
        if now >= self._not_before.get(kind, now):
            for _ in range(self._lacking(kind)):
                one = _Process(next(self._numbers), kind, now, now)
                self._all[one.number] = one
                self.counters["starts"] += 1
                self._record(one, "StartProcess")
                commands.append(StartProcess(one.number, kind))
        return commands

    def _lacking(self, kind: Kind) -> int:
        wanted = self.wanted[kind].working + self.wanted[kind].spare
        mine = [one.state for one in self._all.values() if one.kind == kind]
        there = sum(state in ("starting", "spare", "working") for state in mine)
        return max(0, min(wanted - there, 2 * wanted - len(mine)))

    def _runs_another(self, number: int) -> bool:
        """Whether a server that has had the table may still be running."""
        return any(
            p.kind == "server"
            and p.number != number
            and (p.state in ("working", "draining", "killed"))
            for p in self._all.values()
        )

    # ---------------------------------------------------------------- internals
    def _doom_at(self, one: _Process) -> float:
        if one.state == "starting":
            return one.started_at + self.timing.start_s
        stalled = one.beat_at + self.timing.stall_s
        if one.state == "draining":
            return min(stalled, one.drained_at + self.timing.drain_s)
        return stalled

    def _may_be_stuck(self, one: _Process) -> bool:
        return one.state == "killed" and not one.stuck and not self.stopping

    def _stuck_at(self, one: _Process) -> float:
        return one.killed_at + self.timing.stall_s

    def _doomed(self, one: _Process, now: float) -> str | None:
        if one.state == "killed":
            return None
        if self.stopping:
            return "at_the_end"
        if one.condemned:
            return one.condemned
        if now < self._doom_at(one):
            return None
        if one.state == "starting":
            return "not_ready"
        return "drained" if now < one.beat_at + self.timing.stall_s else "stalled"

    def _known(self, process: int) -> _Process:
        one = self._all.get(process)
        if one is None:
            raise LocalProtocolError(f"process {process} is not there", clause="EC-14.9")
        return one

    def _move(self, one: _Process, event: str, action: str) -> str:
        effect = self.recorder.move(one, event).effect
        self._record(one, action)
        return effect

    def _record(self, one: _Process, action: str) -> None:
        self.recorder.touch(one)
        self.recorder.action(action, process=one.number)
