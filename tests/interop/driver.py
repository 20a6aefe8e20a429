# SPDX-License-Identifier: Apache-2.0
"""Drives ``builtin_host`` from a test; our own side is ``tests.ec_connector.pair.Node``."""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import pytest

from e2e.server import CPU_ENV, ROOT, free_port
from ec_connector.instance import ModelFacts
from tests.ec_connector.pair import BLOCK, Node

#: The release whose classes are driven; the compatibility hash contains it.
RELEASE = "0.32.0"
FACTS = ModelFacts(RELEASE, "interop", "bfloat16", 2)

marks = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vLLM is not installed: `make interop` runs this in .venv-e2e",
    ),
]

_seeds = itertools.count(1)


class Builtin:
    """A process with vLLM's connector.

    Args:
        role: ``ec_producer`` or ``ec_consumer``.
        blocks: Blocks of its region.
        port: Its control port; 0 picks a free one.
        options: See ``builtin_host``.
    """

    def __init__(self, role: str, blocks: int = 128, port: int = 0, **options: Any) -> None:
        self.port = port or free_port()
        words = [f"{name}={value}" for name, value in options.items()]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.interop.builtin_host"),
                *(role, str(self.port), str(blocks), *words),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env={**os.environ, **CPU_ENV, "VLLM_LOGGING_LEVEL": "ERROR"},
        )
        try:
            self.hello = self._line()
        except BaseException:
            # Interrupted while it was starting: nobody else knows of it.
            self.kill()
            raise

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process with the built-in connector died: {self.errors()}"
        return json.loads(line)

    def errors(self) -> str:
        """The end of what it has said on stderr."""
        self._log.seek(0)
        return self._log.read()[-4000:]

    def tell(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()
        return self._line()

    def save(self, rows: int = 40, *, land: bool = True) -> tuple[str, bytes, Any]:
        """Name, bytes and announcement of a new encoding."""
        name, seed = fresh(), next(_seeds)
        answer = self.tell("save", name=name, rows=rows, seed=seed, land=land)
        return name, random.Random(seed).randbytes(rows * BLOCK), answer["params"]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self._reap()

    def close(self) -> None:
        """End it in good order, so that its region goes too; kill it if it does not."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self._reap()

    def _reap(self) -> None:
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        # What a killed one has left behind.
        for path in glob.glob(f"/dev/shm/vllm_ec_builtin-{self.process.pid}_dp0.mmap"):
            os.unlink(path)


def fresh() -> str:
    """A name of no encoding so far."""
    return f"{next(_seeds):064x}"


class Clock:
    """The real clock, and as far ahead of it as a test likes."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


class Around:
    """A data plane that calls something before it prepares or posts a READ, once.

    Attributes:
        before_prepare: Called after the ack was accepted and before the last look at the
            fence.
        before_post: Called after that look.
    """

    def __init__(self) -> None:
        self.before_prepare: Callable[[], None] | None = None
        self.before_post: Callable[[], None] | None = None
        self.posted: list[int] = []
        self._reader: Any = None

    def wrap(self, reader: Any) -> Around:
        self._reader = reader
        return self

    def prepare(self, *arguments: Any) -> None:
        call, self.before_prepare = self.before_prepare, None
        if call is not None:
            call()
        self._reader.prepare(*arguments)

    def post(self, attempt_id: int) -> None:
        call, self.before_post = self.before_post, None
        if call is not None:
            call()
        self.posted.append(attempt_id)
        self._reader.post(attempt_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


class Ours(Node):
    """Our connector's scheduler half, with hooks around its data plane and its clock."""

    def __init__(self, role: str, blocks: int = 128, **timing: float) -> None:
        self.clock = Clock()
        self.plane = Around()
        super().__init__(
            role, blocks, facts=FACTS, extra=timing, wrap_reader=self.plane.wrap, clock=self.clock
        )

    def whole(self) -> bool:
        """Whether every invariant holds and nothing is kept but ready entries."""
        with self.lock:
            self.tier.check()
            held = self.tier.quarantined_blocks + self.tier.retired_blocks
        return held == 0 and self.p2p.consumer is not None and self.p2p.consumer.idle
