# SPDX-License-Identifier: Apache-2.0
"""Processes that tests drive over pipes: a line each way, the answers as JSON.

And how to wait for what they, or other threads, do: ``until``.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from tests import ROOT

#: Bound of every wait: far beyond what a healthy run takes, on a busy machine too.
DEADLINE_S = 120.0

Made = TypeVar("Made")


def eventually(condition: Callable[[], object], timeout_s: float = DEADLINE_S) -> bool:
    """Ask again and again, for what nothing announces; False: not within that time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.0005)
    return True


def until(condition: Callable[[], object], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Wait until something that another thread or process does has happened."""
    assert eventually(condition, timeout_s), f"waited {timeout_s} s for {what}"


@contextlib.contextmanager
def several(
    make: Callable[..., Made], end: Callable[[Made], object]
) -> Iterator[Callable[..., Made]]:
    """Makes as many as a test wants, and ends each of them after it."""
    with contextlib.ExitStack() as stack:

        def one(*arguments: Any, **options: Any) -> Made:
            made = make(*arguments, **options)
            stack.callback(end, made)
            return made

        yield one


def stop(pid: int) -> None:
    """SIGSTOP, and wait until all its threads are stopped; whose child it is is no matter."""
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")
    until(lambda: all(_stands(s) for s in threads.glob("*/stat")), f"process {pid} to stop")


def _stands(stat: Path) -> bool:
    """Whether a thread is stopped; one that has ended meanwhile does nothing either."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return True


class Child:
    """One process; nothing here guesses by time.

    Args:
        command: Arguments of the interpreter, such as ``"-m"`` and a module.
        env: Added to the environment.
        greets: Whether it prints a line of its own first, which is kept in ``hello``. It is
            killed if that does not come: nobody else knows of it yet.
        options: Of ``Popen``.
    """

    def __init__(
        self, *command: str, env: dict[str, str] | None = None, greets: bool = False, **options: Any
    ) -> None:
        self._read = bytearray()
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # What Python has read ahead is nothing that one can wait for.
            bufsize=0,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            **options,
        )
        if greets:
            try:
                self.hello = self.answer()
            except BaseException:
                self.kill()
                raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        left = memoryview(line.encode() + b"\n")
        while left:
            left = left[self.process.stdin.write(left) :]

    def answer(self, timeout_s: float = DEADLINE_S) -> Any:
        """The next line that it has printed."""
        deadline = time.monotonic() + timeout_s
        while (end := self._read.find(b"\n")) < 0:
            self._read += self._more(deadline)
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        return json.loads(line)

    def _more(self, deadline: float) -> bytes:
        assert self.process.stdout is not None
        left = max(0.0, deadline - time.monotonic())
        if not select.select([self.process.stdout], [], [], left)[0]:
            raise TimeoutError(f"no answer from process {self.pid}")
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        if not data:
            raise EOFError(f"process {self.pid} ended: {self.process.wait(DEADLINE_S)}")
        return data

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

    def close(self, patience_s: float = DEADLINE_S) -> None:
        """Let it end by itself, as it does when its stdin closes.

        Raises:
            subprocess.TimeoutExpired: It did not in that time, and was killed.
        """
        self.process.stdin.close()
        try:
            self.process.wait(patience_s)
        except BaseException:
            self.process.kill()
            raise
        finally:
            self._reap()

    def _reap(self) -> None:
        self.process.wait(DEADLINE_S)
        # Not read to their ends: a process that it has started may hold them open.
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()
