# SPDX-License-Identifier: Apache-2.0
"""A parent with a driven clock, whose processes are numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ec_protocol.processes import (
    Command,
    KillProcess,
    Kind,
    Processes,
    ReportStuck,
    StartProcess,
    Wanted,
)
from ec_protocol.tables.timing import Timing
from ec_protocol.trace import Recorder, Trace
from tests.recording import beside

START = 1000.0
READERS: dict[Kind, Wanted] = {"reader": Wanted(working=2, spare=1)}
SERVER: dict[Kind, Wanted] = {"server": Wanted(working=1, spare=1)}
BOTH: dict[Kind, Wanted] = {**SERVER, **READERS}


class World:
    """A parent that does what it is told, and whose processes do what a test says."""

    def __init__(self, wanted: Mapping[Kind, Wanted], timing: Timing | None = None) -> None:
        self.now = START
        self.timing = timing or Timing()
        self.records: list[Mapping[str, Any]] = []
        trace = Trace("parent", lambda: self.now, beside(self.records.append))
        self.processes = Processes(wanted, self.timing, Recorder(trace))
        self.running: dict[int, Kind] = {}
        self.killed: dict[int, str] = {}

    def tick(self, seconds: float = 0.0) -> list[Command]:
        self.now += seconds
        commands = self.processes.tick(self.now)
        for command in commands:
            if isinstance(command, StartProcess):
                self.running[command.process] = command.kind
            elif isinstance(command, KillProcess):
                assert command.process in self.running
                self.killed[command.process] = command.reason
            elif isinstance(command, ReportStuck):
                assert command.process in self.killed
            else:
                assert self.running[command.process] == command.kind
        return commands

    def ready(self, *numbers: int) -> list[Command]:
        """These are ready, or all that were started."""
        for number in numbers or self.processes.numbers("starting"):
            self.processes.ready(number, self.now)
        return self.tick()

    def beat(self, *numbers: int) -> None:
        for number in numbers or self.running:
            self.processes.beat(number, self.now)

    def exit(self, number: int) -> list[Command]:
        del self.running[number]
        self.killed.pop(number, None)
        self.processes.exited(number, self.now)
        return self.tick()

    def live(self, seconds: float) -> list[Command]:
        """Time passes and all give signs of life."""
        commands: list[Command] = []
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + self.timing.stall_s / 2)
            self.beat()
            commands += self.tick()
        return commands

    def of(self, state: str, kind: Kind | None = None) -> list[int]:
        return self.processes.numbers(state, kind)


def running(wanted: Mapping[Kind, Wanted]) -> World:
    """All that are wanted work and stand by."""
    world = World(wanted)
    world.tick()
    world.ready()
    return world
