# SPDX-License-Identifier: Apache-2.0
"""Processes that tests drive over pipes: a line each way, the answers as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: Bound of every wait: far beyond what a healthy run takes, on a busy machine too.
DEADLINE_S = 120.0


def stop(pid: int) -> None:
    """SIGSTOP, and wait until all its threads are stopped; whose child it is is no matter."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + DEADLINE_S
    while not all(
        stat.read_text().rpartition(")")[2].split()[0] == "T"
        for stat in Path(f"/proc/{pid}/task").glob("*/stat")
    ):
        assert time.monotonic() < deadline, f"process {pid} does not stop"
        time.sleep(0.0005)


class Child:
    """One process; nothing here guesses by time.

    Args:
        command: Arguments of the interpreter, such as ``"-m"`` and a module.
        env: Added to the environment.
        options: Of ``Popen``.
    """

    def __init__(self, *command: str, env: dict[str, str] | None = None, **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            **options,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, timeout_s: float = DEADLINE_S) -> Any:
        """The next line that it has printed."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            raise TimeoutError(f"no answer from process {self.pid}")
        line = self.process.stdout.readline()
        if not line:
            raise EOFError(f"process {self.pid} ended: {self.process.wait()}")
        return json.loads(line)

    def tell(self, line: str) -> Any:
        self.say(line)
        return self.answer()

    def stop(self) -> None:
        stop(self.pid)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self._reap()

    def close(self) -> None:
        """Let it end by itself, as it does when its stdin closes."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self._reap()

    def _reap(self) -> None:
        self.process.wait(DEADLINE_S)
        # Not read to their ends: a process that it has started may hold them open.
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
