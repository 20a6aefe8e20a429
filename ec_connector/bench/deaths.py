# SPDX-License-Identifier: Apache-2.0
"""Deaths of data processes under load: one after the other, and nothing may go wrong.

A producer and a consumer, each an engine process with all its data processes, and fetches
without a pause (``deaths_engines``). Each round kills one process, by SIGKILL, SIGABRT,
SIGSEGV or SIGSTOP: whoever serves, reads, stands by, or is a parent. It is over when the
process is gone and a fetch that was asked for after its death has landed. Half of the
deaths come at once after that, and find the successors of the one before still starting;
the others wait until everybody is there. In the end both engines must have
all blocks, processes and descriptors that they had at first, and nothing may be left of
them.

``lived_s`` is short here: each death is to be as the first after a while, and no pause
(EC-14.12) is to lengthen the run. Leases and budgets are short, so that many end meanwhile.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

from ec_connector.bench.deaths_engines import consume, produce
from ec_connector.bench.deaths_report import Death, DeathsReport, Role
from ec_connector.clock import boottime
from ec_protocol.errors import ECError

SIGNALS: Final = (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGSTOP)
ROLES: Final[tuple[Role, ...]] = ("server", "reader", "spare", "parent")
#: Threads of a data process that is ready: its own, and those of its libraries.
_READY_THREADS: Final = 3
#: How long anything may take: far beyond what it does on a busy machine.
_PATIENCE_S: Final = 120.0
#: How long an engine may take for its last words: leases, restarts and its end.
_END_S: Final = 200.0
_POLL_S: Final = 0.002


class RigError(ECError):
    """An engine of the rig has ended, or says nothing any more."""


def settings(stall_s: float) -> dict[str, Any]:
    """Of both connectors."""
    return {
        "data_stall_s": stall_s,
        "data_lived_s": 0.05,
        "pin_lease_s": 8.0,
        "read_timeout_s": 5.0,
        "quarantine_s": 10.0,
        "fetch_budget_s": 10.0,
        "announce_hold_s": 2.0,
        "fetched_hold_s": 2.0,
    }


class _Engine:
    """One engine process, as the rig has it."""

    def __init__(self, kind: str, target: Callable[..., None], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.kind = kind
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(theirs, *args), daemon=True)
        self.process.start()
        theirs.close()
        self.pids: dict[str, list[int]] = {}
        self.address: tuple[str, int] | None = None
        self.region = ""
        self.last: dict[str, Any] | None = None

    def hear(self) -> Iterator[tuple[float, float, str]]:
        """Take in what it has said; how requests ended.

        Raises:
            RigError: It is gone.
        """
        try:
            while self.pipe.poll(0):
                message = self.pipe.recv()
                if message[0] == "ready":
                    _, self.address, self.region = message
                elif message[0] == "state":
                    self.pids = message[1]
                    yield from message[2]
                else:
                    self.last = message[1]
                    yield from message[2]
        except (EOFError, OSError) as exc:
            if self.last is None:
                raise RigError(f"the {self.kind}'s engine has ended") from exc

    def children(self) -> list[int]:
        """Data processes that its parent has."""
        found: list[int] = []
        for parent in self.pids.get("parent", ()):
            with contextlib.suppress(OSError):
                found += map(
                    int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
                )
        return found

    def works(self) -> bool:
        """Whether all of its data processes that are to work do, as far as it knows."""
        working = [*self.pids.get("server", ()), *self.pids.get("reader", ())]
        there = self.children()
        wanted = 1 if self.kind == "producer" else 2
        return len(working) == wanted and all(pid in there for pid in working)

    def of(self, role: Role) -> list[int]:
        """Its processes that have a role just now."""
        if role != "spare":
            return self.pids.get(role, [])
        working = [*self.pids.get("server", ()), *self.pids.get("reader", ())]
        return [pid for pid in self.children() if pid not in working and _is_ready(pid)]

    def whole(self) -> bool:
        """Whether everybody is there, and one stands by."""
        wanted = 2 if self.kind == "producer" else 3
        return self.works() and len(self.children()) == wanted and len(self.of("spare")) == 1


class Rig:
    """Both engines, and what has become of everything so far.

    Args:
        seed: Of the order of deaths, and of what is asked for.
        stall_s: When a process that stands still is killed.
    """

    def __init__(self, seed: int, stall_s: float) -> None:
        self._dice = Random(seed)
        self._seen: dict[int, str] = {}
        self._landed: list[tuple[float, float]] = []
        self._fell_back: list[float] = []
        self.outcomes: Counter[str] = Counter()
        one, other = multiprocessing.get_context("spawn").Pipe()
        chosen = settings(stall_s)
        self.producer = _Engine("producer", produce, one, chosen, seed)
        self.consumer = _Engine("consumer", consume, other, chosen, seed)
        one.close()
        other.close()
        self._engines = (self.producer, self.consumer)

    def begin(self) -> None:
        """Wait until encodings arrive.

        Raises:
            RigError: They do not.
        """
        self._until(lambda: all(e.works() for e in self._engines), "both engines to work")
        self._until(lambda: len(self._landed) > 0, "a first encoding")

    def strike(self, role: Role, how: signal.Signals) -> Death:
        """One death, and what follows.

        Raises:
            RigError: An engine is gone.
            TimeoutError: There is no such process, and none comes.
        """
        side = {"server": self.producer, "reader": self.consumer}.get(
            role, self._dice.choice(self._engines)
        )
        victims: list[int] = []
        whole = self._dice.random() < 0.5
        if whole:
            self._until(lambda: all(e.whole() for e in self._engines), "everybody")

        def found() -> bool:
            victims[:] = side.of(role)
            return bool(victims) and side.works()

        pidfd = -1
        while pidfd < 0:
            self._until(found, f"a {role} of the {side.kind}")
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(self._dice.choice(victims))
        self._remember()
        self._landed.clear()
        self._fell_back.clear()
        struck = boottime()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, how)
        served: list[float] = []

        def over() -> bool:
            served[:] = [ended - struck for asked, ended in self._landed if asked >= struck]
            return bool(served) and bool(select.select([pidfd], [], [], 0)[0])

        try:
            self._until(over, f"an encoding after the {role}'s {how.name}")
        except TimeoutError:
            served.clear()
        finally:
            os.close(pidfd)
        return Death(role, how.name, min(served, default=None), len(self._fell_back), whole)

    def end(self) -> list[str]:
        """No more requests; what is left, in words: nothing, if all is well.

        Returns:
            What is wrong.
        """
        wrong = []
        for phase in ("stop", "end"):
            for engine in self._engines:
                engine.pipe.send(phase)
            if phase == "stop":
                time.sleep(settings(1.0)["fetch_budget_s"] / 10)
        self._until(lambda: all(e.last is not None for e in self._engines), "the ends", _END_S)
        self._remember()
        for engine in self._engines:
            engine.process.join(_PATIENCE_S)
            if engine.process.exitcode != 0:
                wrong.append(f"{engine.kind}: its engine ended with {engine.process.exitcode}")
            last = engine.last or {}
            for what in ("loans", "quarantined", "retired", "lost_blocks"):
                if last[what]:
                    wrong.append(f"{engine.kind}: {what} {last[what]}")
            if not last["whole"]:
                wrong.append(f"{engine.kind}: its data processes did not come back")
            if last["descriptors"] > 0:
                wrong.append(f"{engine.kind}: {last['descriptors']} descriptors more than at first")
        return wrong + self._left()

    def close(self) -> None:
        """Whatever happened, end both."""
        for engine in self._engines:
            engine.pipe.close()
            engine.process.join(5)
            if engine.process.is_alive():
                engine.process.kill()
                engine.process.join()

    # ---------------------------------------------------------------------- internals
    def _until(
        self, condition: Callable[[], bool], what: str, seconds: float = _PATIENCE_S
    ) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            for engine in self._engines:
                for asked, ended, outcome in engine.hear():
                    self.outcomes[outcome] += 1
                    if outcome == "landed":
                        self._landed.append((asked, ended))
                    else:
                        self._fell_back.append(ended)
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds:g} s for {what}")
            time.sleep(_POLL_S)

    def _remember(self) -> None:
        """Every process of ours that there has been, with its start."""
        for engine in self._engines:
            for pid in (*engine.pids.get("parent", ()), *engine.children()):
                self._seen.setdefault(pid, _start_of(pid))

    def _left(self) -> list[str]:
        """Processes, files and sockets that nobody needs any more."""
        left = [
            f"process {pid} is left"
            for pid, start in self._seen.items()
            if start and _start_of(pid) == start
        ]
        # Others on this machine make and remove files there too.
        ours = [engine.region.removesuffix(".mmap") for engine in self._engines]
        left += [
            f"/dev/shm/{name} is left"
            for name in sorted(os.listdir("/dev/shm"))
            if any(stem and stem in name for stem in ours)
        ]
        address = self.producer.address
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                again.bind(address or ("127.0.0.1", 0))
            except OSError as exc:
                left.append(f"the control socket {address} is left: {exc}")
        return left


def _is_ready(pid: int) -> bool:
    """Whether a data process has registered its memory, as far as that shows from outside."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) >= _READY_THREADS
    except OSError:
        return False


def _start_of(pid: int) -> str:
    """When a process started; empty if it runs no more."""
    try:
        state, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else numbers[18]


def run_deaths(
    count: int,
    seed: int = 1,
    *,
    stall_s: float = 2.0,
    step: Callable[[str, int], None] = lambda doing, done: None,
) -> DeathsReport:
    """Kill so many processes, one after the other.

    Args:
        count: Deaths.
        seed: Of their order, and of what is asked for.
        stall_s: When a process that stands still is killed (``data_stall_s``).
        step: Told what happens, and how many deaths that was.

    Returns:
        What became of them, and everything that is wrong.
    """
    dice = Random(seed)
    deaths: list[Death] = []
    pairs: list[tuple[Role, signal.Signals]] = []
    while len(pairs) < count:
        once = [(role, how) for role in ROLES for how in SIGNALS]
        dice.shuffle(once)
        pairs += once
    began = time.monotonic()
    step("starting", 0)
    rig = Rig(seed, stall_s)
    wrong: list[str] = []
    try:
        rig.begin()
        for role, how in pairs[:count]:
            deaths.append(rig.strike(role, how))
            step(f"{role}: {how.name}", 1)
        step("the end", 0)
        wrong += rig.end()
    except (RigError, TimeoutError) as exc:
        wrong.append(str(exc))
    finally:
        rig.close()
    wrong += [
        f"{number} requests ended: {outcome}"
        for outcome, number in rig.outcomes.items()
        if outcome not in ("landed", "fell back")
    ]
    wrong += [
        f"not served again after the {death.role}'s {death.signal}"
        for death in deaths
        if death.served_s is None
    ]
    lasts = [engine.last or {} for engine in (rig.producer, rig.consumer)]
    return DeathsReport(seed, deaths, dict(rig.outcomes), wrong, lasts, time.monotonic() - began)
