# SPDX-License-Identifier: Apache-2.0
"""Runs the demo: starts its processes, follows them, adds up what they measured.

Every process is stopped when its run ends, in whatever way, and a run that takes too
long is killed: the demo leaves no process and no shared memory behind.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ec_connector.demo.errors import DemoError
from ec_connector.demo.images import Picture, write_pictures
from ec_connector.demo.report import RunName, RunRow, Step, progress_bar
from ec_connector.region.shared import reap_orphans

# Children are forked from one process that has imported torch, which takes seconds, and
# has done nothing with it yet. This one needs no torch.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["ec_connector.demo.child"])


def _live(*args: Any) -> None:
    from ec_connector.demo import child

    child.run(*args)


class Child:
    """One process of a run.

    Args:
        role: ``producer``, ``consumer`` or ``local``.
        folder: Where the pictures are and the log goes.
        run: Names the log.
        traces: Where its trace goes; None writes none.
    """

    def __init__(self, role: str, folder: Path, run: str, traces: Path | None) -> None:
        self.role = role
        self.log = folder / f"{run}-{role}.log"
        self.log.touch()
        instance = f"demo-{os.getpid()}-{role}-{secrets.token_hex(3)}"
        trace = ""
        if traces is not None:
            (traces / run).mkdir(parents=True, exist_ok=True)
            trace = str((traces / run / f"{role}.ndjson").resolve())
        self._events, events = _FORKS.Pipe(duplex=False)
        commands, self._commands = _FORKS.Pipe(duplex=False)
        self._process = _FORKS.Process(
            target=_live,
            args=(role, folder / "pictures", instance, trace, self.log, events, commands),
            name=f"demo {run} {role}",
        )
        self._process.start()
        # Its ends are its alone: when it is gone, in whatever way, ours say so.
        events.close()
        commands.close()

    def tell(self, **command: Any) -> None:
        """Send a command; a child that is gone is noticed when its events end."""
        with contextlib.suppress(OSError):
            self._commands.send(command)

    def next_event(self, deadline: float) -> dict[str, Any] | None:
        """The next event, or None when the child has ended.

        Raises:
            DemoError: Nothing came before the deadline, or the child reported an error.
        """
        try:
            if not self._events.poll(max(0.0, deadline - time.monotonic())):
                raise DemoError(
                    f"the {self.role} process took too long; raise --timeout, or see its log with "
                    "--keep-logs"
                )
            event: dict[str, Any] = self._events.recv()
        except (EOFError, ConnectionResetError):
            return None
        if event["event"] == "error":
            raise DemoError(f"the {self.role} process: {event['message']}")
        return event

    def stop(self, grace_s: float = 10.0) -> None:
        """End the child in good order, or kill it."""
        self._commands.close()
        self._process.join(grace_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._events.close()

    def explain(self) -> str:
        """The end of the child's log, for an error."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it left no message"


def run_demo(
    pictures: Sequence[Picture],
    *,
    runs: Sequence[RunName],
    timeout_s: float,
    keep_logs: bool,
    traces: Path | None = None,
) -> list[RunRow]:
    """Run the named runs.

    Args:
        pictures: What to encode; at least one.
        runs: Which runs, in order.
        timeout_s: Seconds each run may take.
        keep_logs: Keep the processes' logs, and say where they are.
        traces: Folder for the processes' traces, one folder in it for each run.

    Returns:
        One row per run.

    Raises:
        DemoError: A process failed or took too long.
    """
    folder = Path(tempfile.mkdtemp(prefix="ec-demo-"))
    rows = []
    try:
        # The processes read files, as the servers they stand for do.
        write_pictures(pictures, folder / "pictures")
        with progress_bar(len(runs) * (len(pictures) + 1)) as step:
            for run in runs:
                deadline = time.monotonic() + timeout_s
                if run == "local":
                    rows.append(_run_local(folder, traces, pictures, deadline, step))
                else:
                    kill_at = len(pictures) // 2 + 1 if run == "producer-killed" else 0
                    rows.append(_run_pair(run, folder, traces, pictures, kill_at, deadline, step))
    finally:
        if keep_logs:
            sys.stderr.write(f"logs: {folder}\n")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        # The killed producer had no chance to remove its region; its guard does, or we do.
        reap_orphans()
    return rows


@contextlib.contextmanager
def _children(*children: Child) -> Iterator[None]:
    try:
        yield
    finally:
        for child in children:
            child.stop()


def _run_local(
    folder: Path, traces: Path | None, pictures: Sequence[Picture], deadline: float, step: Step
) -> RunRow:
    child = Child("local", folder, "local", traces)
    with _children(child):
        compared, _ = _follow(child, "local", pictures, deadline, step)
    loaded = sum(item["pulled"] for item in compared)
    load_ms = _mean(compared, "load_ms")
    return RunRow(
        "local",
        loaded == len(pictures),
        f"{loaded} loaded" + ("" if loaded == len(pictures) else f", {len(compared)} wanted"),
        len(compared),
        _total(compared, "bytes"),
        _total(compared, "wrong"),
        load_ms=load_ms,
        recompute_ms=_mean(compared, "recompute_ms"),
        gb_per_s=_rate(_total(compared, "bytes"), load_ms, len(compared)),
    )


def _run_pair(
    run: RunName,
    folder: Path,
    traces: Path | None,
    pictures: Sequence[Picture],
    kill_at: int,
    deadline: float,
    step: Step,
) -> RunRow:
    producer = Child("producer", folder, run, traces)
    consumer = Child("consumer", folder, run, traces)
    with _children(consumer, producer):
        announced = None
        while announced is None:
            event = producer.next_event(deadline)
            if event is None:
                raise DemoError(f"the producer process ended early: {producer.explain()}")
            if event["event"] == "announced":
                announced = event
            elif event["event"] == "progress":
                step(f"{run}: {event['doing']}")
        step(f"{run}: announced", 1)
        consumer.tell(params=announced["params"], pids=announced["pids"], kill_at=kill_at)
        compared, stats = _follow(consumer, run, pictures, deadline, step)
    pulled = [item for item in compared if item["pulled"]]
    fallen = [item for item in compared if not item["pulled"]]
    # The one that was being fetched when the producer died may still have landed.
    wanted = (kill_at - 1, kill_at) if kill_at else (len(pictures),)
    outcome = f"{len(pulled)} pulled"
    note = ""
    if fallen:
        outcome += f", {len(fallen)} fell back"
        waited = max(item["waited_ms"] for item in fallen)
        note = (
            f"the producer was killed (-9) during a fetch; its last {len(fallen)} encodings were "
            f"computed locally after waiting at most {waited:.0f} ms"
            if kill_at
            else f"{len(fallen)} encodings were not pulled: {stats['counters']}"
        )
    measured = stats["stats"]
    read_ms = measured.get("read_ms")
    return RunRow(
        run,
        len(pulled) in wanted and len(compared) == len(pictures),
        outcome,
        len(compared),
        _total(compared, "bytes"),
        _total(compared, "wrong"),
        ack_ms=measured.get("ack_ms"),
        read_ms=read_ms,
        load_ms=_mean(pulled, "load_ms"),
        recompute_ms=_mean(compared, "recompute_ms"),
        gb_per_s=_rate(_total(pulled, "bytes"), read_ms, len(pulled)),
        note=note,
    )


def _follow(
    child: Child, run: str, pictures: Sequence[Picture], deadline: float, step: Step
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    compared: list[dict[str, Any]] = []
    stats: dict[str, Any] = {"stats": {}, "counters": {}}
    while (event := child.next_event(deadline)) is not None:
        if event["event"] == "compared":
            compared.append(event)
            how = "pulled" if event["pulled"] else "computed"
            step(f"{run}: {how} {event['name']}", 1)
        elif event["event"] == "stats":
            stats = event
        elif event["event"] == "progress":
            step(f"{run}: {event['doing']}")
        elif event["event"] == "killed":
            step(f"{run}: killed the producer (pid {event['pid']})")
    if len(compared) != len(pictures):
        raise DemoError(f"the {child.role} process ended early: {child.explain()}")
    return compared, stats


def _mean(items: Sequence[dict[str, Any]], key: str) -> float | None:
    return sum(item[key] for item in items) / len(items) if items else None


def _total(items: Sequence[dict[str, Any]], key: str) -> int:
    return sum(item[key] for item in items)


def _rate(nbytes: int, mean_ms: float | None, count: int) -> float | None:
    return nbytes / (mean_ms * count / 1e3) / 1e9 if mean_ms and count else None
