# SPDX-License-Identifier: Apache-2.0
"""Every node that a test runs leaves a trace, which TLC checks when all tests are over.

``tests/conftest.py`` makes a folder for the session and in it one for each module; the
environment names it, so that child processes find it too. ``trace_file`` is for nodes
that run for real: which of them belong to one run is found out from who spoke with
whom. ``played`` is for a node whose world the test plays: a run of its own.
``tests/test_traces_of_this_run.py`` checks what was left.

Tests may run in several sessions, one after the other or beside each other (``pytest -n``),
whose traces are checked by one more: ``EC_SESSION_TRACES`` names a folder for all of them,
where each also tells which tests it ran.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ec_protocol.trace import NdjsonSink, Trace

#: Names the folder of the module whose tests run now.
VARIABLE = "EC_TEST_TRACES"
#: Names the folder of all sessions that are checked together; a folder of its own without it.
SHARED = "EC_SESSION_TRACES"
#: Instead of a folder: no traces, as for those who run the same tests again and again.
OFF = "off"
#: Of the nodes that a module's tests play, so many leave a trace: random tests make thousands.
SAMPLE = 40

#: Seconds of a node's clock after which a played trace ends: some tests let it leap.
LONGEST_S = 100_000.0

#: Records of a played node: more of the same would tell TLC nothing.
MOST_RECORDS = 1000
#: Extents of an entry, of which each pair is compared: some tests make thousands.
MOST_EXTENTS = 100

#: Tests that ran, by module.
ran: Counter[str] = Counter()
#: Tests that were not asked for, by module.
deselected: Counter[str] = Counter()

#: The folder that ``SHARED`` named, while this process runs tests.
shared: Path | None = None

_numbers = itertools.count(1)


def take_part() -> None:
    """Before the first test: learn where the traces go and what other sessions ran."""
    global shared
    # Sessions that tests start are none of these.
    named = os.environ.pop(SHARED, None)
    if named is None:
        return
    shared = Path(named)
    shared.mkdir(parents=True, exist_ok=True)
    for told in shared.glob(".ran-*.json"):
        for mine, theirs in zip((ran, deselected), json.loads(told.read_text()), strict=True):
            mine.update(theirs)


def tell() -> None:
    """After the last test: say to the session that checks what ran here."""
    if shared is not None:
        (shared / f".ran-{os.getpid()}.json").write_text(json.dumps([ran, deselected]))


def folder() -> Path | None:
    """Where the tests that run now leave traces; None outside of a session."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named and named != OFF else None


def wanted() -> bool:
    """Whether this session is to leave traces: unless the environment says "off"."""
    return os.environ.get(VARIABLE) != OFF


def trace_file(name: str) -> str | None:
    """A new file for a node that runs for real, to be given as ``ec_trace_file``."""
    where = folder()
    if where is None:
        return None
    return str(where / f"{name}-{os.getpid()}-{next(_numbers)}.ndjson")


def trace_setting(name: str) -> dict[str, str]:
    """``trace_file`` as a part of ``ec_connector_extra_config``."""
    path = trace_file(name)
    return {"ec_trace_file": path} if path is not None else {}


def recorded(name: str, clock: Callable[[], float]) -> Trace | None:
    """A trace for a node that runs for real, where no ``SchedulerInstance`` makes one."""
    path = trace_file(name)
    return Trace(name, clock, checkable(NdjsonSink(path))) if path is not None else None


@contextlib.contextmanager
def kit() -> Iterator[None]:
    """Every process that the conformance kit starts leaves a trace, a run of its own."""
    from ec_verify.adapters.ours.adapter import Ours

    where = folder()
    sinks: list[NdjsonSink] = []

    def make_trace(ours: Ours, process: str) -> Trace | None:
        if where is None:
            return None
        path = where / "played" / f"kit-{next(_numbers):05}-{process}.ndjson"
        writes: list[Callable[[Mapping[str, Any]], None]] = []

        def write(record: Mapping[str, Any]) -> None:
            # Most processes stand by and do nothing, and a trace of nothing proves nothing.
            if not writes:
                path.parent.mkdir(exist_ok=True)
                sinks.append(NdjsonSink(path))
                writes.append(checkable(sinks[-1], MOST_RECORDS))
            writes[0](record)

        return Trace(f"ours.{process}", lambda: ours.now, write)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Ours, "make_trace", make_trace)
            yield
    finally:
        for sink in sinks:
            sink.close()


class Sample:
    """Traces of played nodes: a choice of them, each as likely as any other.

    Args:
        where: Folder of the module.
        chance: Chooses.
    """

    def __init__(self, where: Path, chance: random.Random) -> None:
        self._where = where
        self._chance = chance
        self._seen = 0
        self._kept: list[NdjsonSink] = []

    def next(self) -> NdjsonSink | None:
        """A file for the node that is made now; None if it is not chosen."""
        self._seen += 1
        if len(self._kept) < SAMPLE:
            place = len(self._kept)
        else:
            place = self._chance.randrange(self._seen)
            if place >= SAMPLE:
                return None
            gone = self._kept.pop(place)
            gone.close()
            gone.path.unlink()
        played = self._where / "played"
        played.mkdir(exist_ok=True)
        sink = NdjsonSink(played / f"{next(_numbers):05}.ndjson")
        self._kept.insert(place, sink)
        return sink

    def close(self) -> None:
        """No more records."""
        for sink in self._kept:
            sink.close()


#: Of the module whose tests run now.
current: Sample | None = None


def chosen() -> NdjsonSink | None:
    """A file for a world of played nodes, if this one is to leave a trace."""
    return current.next() if current is not None else None


def played(name: str, clock: Callable[[], float]) -> Trace | None:
    """A trace for a node whose messages, and whose time, the test plays."""
    sink = chosen()
    if sink is None:
        return None
    return Trace(name, clock, checkable(sink, MOST_RECORDS))


def world_sink() -> Callable[[Mapping[str, Any]], None] | None:
    """What several played nodes record into together, if they are to leave a trace."""
    sink = chosen()
    return None if sink is None else as_told(checkable(sink, MOST_RECORDS))


def beside(write: Callable[[Mapping[str, Any]], None]) -> Callable[[Mapping[str, Any]], None]:
    """What hands records to a test, and to a file if this node is to leave a trace."""
    sink = chosen()
    if sink is None:
        return write
    keep = as_told(checkable(sink, MOST_RECORDS))

    def both(record: Mapping[str, Any]) -> None:
        write(record)
        keep(record)

    return both


def as_told(write: Callable[[Mapping[str, Any]], None]) -> Callable[[Mapping[str, Any]], None]:
    """Let a node's clock be where the test says that it is: some leave the world's alone."""
    clocks: dict[str, float] = {}

    def tell(record: Mapping[str, Any]) -> None:
        told = record["args"].get("now", record["t"])
        now = max(clocks.get(record["node"], told), record["t"], told)
        clocks[record["node"]] = now
        write({**record, "t": now})

    return tell


def checkable(sink: NdjsonSink, most: float = math.inf) -> Callable[[Mapping[str, Any]], None]:
    """Ends a trace before a record that TLC could not replay, or not in a test's time."""
    first: list[float] = []

    def write(record: Mapping[str, Any]) -> None:
        if not first:
            first.append(record["t"])
        pieces = max((len(v.get("extents", ())) for v in record["vars"].values()), default=0)
        too_late = record["t"] > first[0] + LONGEST_S or record["seq"] > most
        if too_late or pieces > MOST_EXTENTS:
            sink.close()
        sink(record)

    return write


def begin(module: str, session: Path, chance: random.Random) -> Callable[[], Any]:
    """Record what the tests of a module do; returns what ends that."""
    global current
    where = session / module
    where.mkdir(parents=True, exist_ok=True)
    before = os.environ.get(VARIABLE), current
    os.environ[VARIABLE] = str(where)
    sample = current = Sample(where, chance)

    def end() -> None:
        global current
        sample.close()
        named, current = before
        if named is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = named

    return end
