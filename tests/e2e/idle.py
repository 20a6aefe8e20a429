# SPDX-License-Identifier: Apache-2.0
"""Processor time of servers that have nothing to do, thread by thread.

Data processes are processes of their server; what they use is also told, and judged, by
itself.

The kernel counts, in nanoseconds, what each thread ran (``schedstat``), whatever else
the host does. All servers are watched over the same time, after they have come to
rest; a server without the connector among them shows what vLLM itself uses.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.e2e.rows import Row, measured
from tests.e2e.server import DATA, Server, name_of

#: From the last request until the servers are watched: what answers leave behind,
#: such as statistics and garbage, is done by then.
SETTLE_S: Final = 5.0
#: What the connector may add, in percent of a core.
ALLOWED: Final = 2.0
#: What its data processes may use of that, all of one server together.
ALLOWED_DATA: Final = 0.5

_SIGNS: Final = {"API server": " serve ", "guard": "guard.py"}

#: Process id, thread id -> nanoseconds.
Times = dict[tuple[int, int], int]


def running_times(server: Server) -> Times:
    """What each thread of a server's processes has run so far, their guards' too."""
    times: Times = {}
    for pid in (*server.pids, *server.guards()):
        for stat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                times[pid, int(stat.parent.name)] = int(stat.read_text().split()[0])
            except OSError:
                continue  # it has just ended
    return times


def used(before: Times, after: Times, seconds: float) -> dict[tuple[int, int], float]:
    """Percent of a core by thread; a thread that was not there before counts whole."""
    return {
        thread: 100 * (ran - before.get(thread, 0)) / (seconds * 1e9)
        for thread, ran in after.items()
    }


def idle(plain: Server, servers: Sequence[Server], seconds: float) -> Row:
    """Watch ``servers`` beside a plain one, none of which is asked anything."""
    watched = [plain, *servers]

    def body(row: Row) -> None:
        time.sleep(SETTLE_S)
        began = time.monotonic()
        before = [running_times(server) for server in watched]
        time.sleep(seconds)
        after = [running_times(server) for server in watched]
        took = time.monotonic() - began
        totals = {}
        for server, was, now in zip(watched, before, after, strict=True):
            threads = used(was, now, took)
            totals[server.name] = sum(threads.values())
            row.notes.append(_described(server, threads))
            own = set(server.data())
            part = sum(percent for (pid, _), percent in threads.items() if pid in own)
            if server is not plain:
                row.notes.append(f"{server.name}: {len(own)} data processes {part:.3f} % of a core")
                row.expect(bool(own), f"{server.name} has no data process")
            row.expect(part <= ALLOWED_DATA, f"{server.name}'s data processes idle at {part:.2f} %")
        for server in servers:
            beyond = totals[server.name] - totals[plain.name]
            row.notes.append(f"{server.name} beyond {plain.name}: {beyond:+.2f} % of a core")
            row.expect(
                beyond <= ALLOWED, f"{server.name} idles at {beyond:.2f} % beyond a plain one"
            )

    return measured(f"idle for {seconds:g} s, peer-to-peer on", None, body)


def _described(server: Server, threads: Mapping[tuple[int, int], float]) -> str:
    """One server's total, its processes, and its busiest thread."""
    by_process: dict[int, float] = {}
    for (pid, _), percent in threads.items():
        by_process[pid] = by_process.get(pid, 0.0) + percent
    parts = [f"{_short(server, pid)} {part:.2f}" for pid, part in by_process.items()]
    busiest, percent = max(threads.items(), key=lambda item: item[1])
    try:
        name = Path(f"/proc/{busiest[0]}/task/{busiest[1]}/comm").read_text().strip()
    except OSError:
        name = "ended"
    return (
        f"{server.name} {sum(threads.values()):.2f} % of a core ({', '.join(parts)}; "
        f"{len(threads)} threads, the busiest, {name}, {percent:.2f})"
    )


def _short(server: Server, pid: int) -> str:
    """A process's name: ``EngineCore``, ``Worker``, ``API server``, ``ec-reader``."""
    if (name := name_of(pid)) in DATA:
        return name
    command = server.command(pid)
    if "::" in command:
        return command.split("::")[1].split()[0]
    return next((name for name in ("API server", "guard") if _SIGNS[name] in command), "helper")
