# SPDX-License-Identifier: Apache-2.0
"""Runs TLC, one process per run, each in a folder of its own.

TLC names its working folder after the current second and unpacks its standard
modules into ``java.io.tmpdir``, so runs that share either destroy each other.
Every run here gets a temporary folder with a copy of the modules and a config,
its own metadir and its own tmpdir; nothing is written beside the sources.

One worker per run: the depth and the counterexample are then the same each
time, and a counterexample is a shortest one. Several runs go side by side
instead (``ec_verify.models.check``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

from ec_protocol.errors import ECError
from ec_verify.models.config import Config
from ec_verify.models.graph import Graph, read_graph
from ec_verify.models.java import find_jar, find_java
from ec_verify.models.model import Simulate
from ec_verify.models.modules import copy_modules
from ec_verify.models.output import Output, OutputParser

# Longer than any run, in minutes: the statistics come once, at the end.
_COVERAGE_INTERVAL: Final = "1440"

# A run of a second spends most of it on starting: the simple collector and the
# quick compiler save two fifths of its processor time, and lose on longer runs.
_SHORT_JAVA: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LONG_JAVA: Final = ("-XX:+UseParallelGC",)


class RunStopped(ECError):
    """The run was ended by ``TlcRunner.stop`` before it gave a result."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to run.

    Attributes:
        folder: Where the modules lie, or folders with them; it is only read.
        module: File name of the root module.
        config: What TLC is asked.
        name: Of the model, for messages; the config's file has it too.
        deadlock: Whether a state without successor is an error.
        coverage: Count how often each action is taken (costs about half as
            much again, so only where it is used).
        final_liveness: Check temporal properties once, at the end, instead of
            again and again on the growing graph.
        dump: Also return the state graph.
        simulate: Random walks instead of a search.
        short: The run takes seconds: use the Java settings that start quickly.
        timeout: Seconds before the run is killed.
    """

    folder: Path
    module: str
    config: Config
    name: str = "model"
    deadlock: bool = True
    coverage: bool = False
    final_liveness: bool = False
    dump: bool = False
    simulate: Simulate | None = None
    short: bool = False
    timeout: float = 900.0


@dataclass(frozen=True, slots=True)
class Run:
    """What came of it.

    Attributes:
        output: What TLC said.
        seconds: Wall time.
        exit_code: TLC's exit status; negative if a signal ended it.
        timed_out: The run was killed at its timeout.
        graph: The state graph, if one was asked for and the run succeeded.
    """

    output: Output
    seconds: float
    exit_code: int
    timed_out: bool = False
    graph: Graph | None = None


class TlcRunner:
    """Starts TLC processes and can end all of them.

    Thread-safe: several threads may call ``run`` while another calls ``stop``.
    """

    def __init__(self, java: Path | None = None, jar: Path | None = None) -> None:
        self._java = java or find_java()
        self._jar = jar or find_jar()
        self._lock = threading.Lock()
        self._live: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def stop(self) -> None:
        """Kill every run and refuse new ones; the threads in ``run`` raise ``RunStopped``."""
        with self._lock:
            self._stopped = True
            for process in self._live:
                _kill_group(process)

    def run(self, job: Job, on_progress: Callable[[int], None] = lambda distinct: None) -> Run:
        """Run one job to its end.

        Args:
            job: What to run.
            on_progress: Called with the number of distinct states found so far.

        Raises:
            RunStopped: ``stop`` was called.
        """
        with tempfile.TemporaryDirectory(prefix="ec-tlc-", ignore_cleanup_errors=True) as temporary:
            folder = Path(temporary)
            copy_modules(job.folder, folder)
            started = time.monotonic()
            run = self._run_in(folder, job, on_progress)
            run = self._name_property(folder, job, run)
            return replace(run, seconds=time.monotonic() - started)

    def _run_in(self, folder: Path, job: Job, on_progress: Callable[[int], None]) -> Run:
        scratch = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
        (folder / f"{job.name}.cfg").write_text(job.config.text(), encoding="utf-8")
        command = self._command(job, scratch)
        parser = OutputParser()
        expired = threading.Event()
        with open(scratch / "stderr", "w+", encoding="utf-8", errors="replace") as stderr:
            process = self._start(command, folder, stderr)
            timer = threading.Timer(job.timeout, _expire, (process, expired))
            timer.start()
            try:
                for line in process.stdout or ():
                    if parser.feed(line.rstrip("\n")):
                        on_progress(parser.output.distinct or parser.output.generated or 0)
                exit_code = process.wait()
            finally:
                timer.cancel()
                _kill_group(process)
                process.wait()
                with self._lock:
                    self._live.discard(process)
                if process.stdout:
                    process.stdout.close()
            stderr.seek(0)
            complaints = stderr.read().strip()
        if self._stopped:
            raise RunStopped(f"{job.name}: stopped")
        output = parser.finish(exit_code, searched_all=job.simulate is None)
        if output.kind == "crash" and complaints:
            output.message = f"{output.message}\n{complaints}".strip()
        graph = None
        if job.dump and output.kind == "ok":
            graph = read_graph(scratch / "graph.dot")
        return Run(output, 0.0, exit_code, expired.is_set(), graph)

    def _command(self, job: Job, scratch: Path) -> list[str]:
        temporary = scratch / "tmp"
        temporary.mkdir()
        command = [
            str(self._java),
            *(_SHORT_JAVA if job.short else _LONG_JAVA),
            # Recursive operators over sets of some hundred elements need it.
            "-Xss16m",
            "-Duser.language=en",
            "-Duser.country=US",
            f"-Djava.io.tmpdir={temporary}",
            *("-cp", str(self._jar), "tlc2.TLC", "-tool", "-cleanup"),
            *("-metadir", str(scratch / "states"), "-checkpoint", "0"),
        ]
        if job.simulate is None:
            command += ["-workers", "1", "-fp", "0"]
        else:
            walks = job.simulate
            command += ["-simulate", f"num={walks.traces}"]
            command += ["-depth", str(walks.depth), "-seed", str(walks.seed)]
        if not job.deadlock:
            command.append("-deadlock")  # turns the check off
        if job.coverage:
            command += ["-coverage", _COVERAGE_INTERVAL]
        if job.final_liveness:
            command += ["-lncheck", "final"]
        if job.dump:
            command += ["-dump", "dot,actionlabels", str(scratch / "graph.dot")]
        return [*command, "-config", f"{job.name}.cfg", job.module]

    def _start(self, command: list[str], folder: Path, stderr: IO[str]) -> subprocess.Popen[str]:
        with self._lock:
            if self._stopped:
                raise RunStopped("the runner is stopped")
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
            self._live.add(process)
            return process

    def _name_property(self, folder: Path, job: Job, run: Run) -> Run:
        """Find out which temporal property is violated; TLC says only that one is.

        With one property there is nothing to find out. Otherwise each is checked
        alone, in the config's order, until one fails.
        """
        output = run.output
        if output.kind != "property" or output.name is not None:
            return run
        names = job.config.properties
        if len(names) == 1:
            output.name = names[0]
            return run
        for name in names:
            alone = replace(job, config=replace(job.config, properties=(name,)), coverage=False)
            again = self._run_in(folder, alone, lambda _: None)
            if again.output.kind == "property":
                again.output.name = name
                return again
        output.name = " or ".join(names)
        return run


def _expire(process: subprocess.Popen[str], expired: threading.Event) -> None:
    expired.set()
    _kill_group(process)


def _kill_group(process: subprocess.Popen[str]) -> None:
    """Kill the process and whatever it started, if it is not yet waited for."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
