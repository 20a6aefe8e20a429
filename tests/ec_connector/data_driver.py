# SPDX-License-Identifier: Apache-2.0
"""Drives ``data_child`` from a test, and waits for what a reader has to say."""

from __future__ import annotations

import base64
import ctypes
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ec_connector.data import NixlReader, ReadEvent

ROOT = Path(__file__).resolve().parents[2]
#: Bound of every wait: far beyond what a healthy run takes, on a busy machine too.
PATIENCE_S = 40.0


class Producer:
    """One producer process.

    Args:
        nbytes: Size of its region.
        seed: Decides its content.
        name: Of its agent; the same name after a restart is a case of its own.
        env: Added to the environment.
    """

    def __init__(
        self,
        nbytes: int = 1 << 20,
        *,
        seed: int = 1,
        name: str = "producer",
        env: dict[str, str] | None = None,
    ) -> None:
        self.nbytes = nbytes
        self.content = random.Random(seed).randbytes(nbytes)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.ec_connector.data_child", name, str(nbytes), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
        )
        hello = self._line()
        self.metadata = base64.b64decode(hello["metadata"])
        self.address = hello["address"]

    def _line(self) -> dict:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the producer died"
        return json.loads(line)

    def tell(self, command: str) -> list[str]:
        """Give a command; the notices that came so far."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._line()["notices"]

    def stop(self) -> None:
        """SIGSTOP, and wait until it is stopped."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


class Region:
    """Memory of the consumer, filled with a pattern that no producer sends."""

    def __init__(self, nbytes: int = 1 << 20) -> None:
        self.nbytes = nbytes
        self.memory = mmap.mmap(-1, nbytes)
        self.clear()
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def clear(self) -> None:
        self.memory[:] = b"\xa5" * self.nbytes

    def bytes(self, offset: int, nbytes: int) -> bytes:
        return self.memory[offset : offset + nbytes]


def until(condition: Callable[[], object], what: str) -> None:
    """Call ``condition``, which does the work, until it is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S} s for {what}"


def events_until(reader: NixlReader, count: int = 1) -> list[ReadEvent]:
    """Poll until there were ``count`` events."""
    events: list[ReadEvent] = []

    def poll() -> bool:
        events.extend(reader.poll())
        return len(events) >= count

    until(poll, f"{count} READ events")
    return events


def poll_for(reader: NixlReader, rounds: int = 2000) -> list[ReadEvent]:
    """Poll a number of times: long enough for anything that is going to move."""
    return [event for _ in range(rounds) for event in reader.poll()]


def prepare(reader: NixlReader, attempt: int, producer: Producer, nbytes: int = 4096) -> None:
    reader.prepare(
        attempt,
        producer.metadata,
        [(0, nbytes)],
        [(producer.address, nbytes)],
        0,
        f"s.{attempt}:h".encode(),
    )


def read(reader: NixlReader, attempt: int, producer: Producer, nbytes: int = 4096) -> None:
    prepare(reader, attempt, producer, nbytes)
    reader.post(attempt)


def connected(reader: NixlReader, producer: Producer) -> None:
    """A READ that completes, so that later ones do not wait for a connection."""
    read(reader, 0, producer)
    assert events_until(reader)[0].outcome == "done"
    reader.release(0)
