# SPDX-License-Identifier: Apache-2.0
"""Drives a producer instance in another process (``node_child``)."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.ec_connector.pair import BLOCK

ROOT = Path(__file__).resolve().parents[2]
NBYTES = 100 * BLOCK + 17

_seeds = itertools.count(1)


class Producer:
    """The other process.

    Args:
        port: Control port; 0 takes a free one.
        blocks: Blocks of its region.
        extra: More of ``ec_connector_extra_config``.
    """

    def __init__(self, port: int = 0, blocks: int = 512, **extra: Any) -> None:
        arguments = [str(port), str(blocks), json.dumps(extra)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.ec_connector.node_child", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.address = ("127.0.0.1", int(self._line()))

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the producer died"
        return line

    def tell(self, line: str) -> dict[str, int]:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self._line())

    def save(self, nbytes: int = NBYTES) -> tuple[str, bytes]:
        """Let it save a new encoding; name and bytes."""
        seed = next(_seeds)
        self.tell(f"h{seed} {nbytes} {seed}")
        return f"h{seed}", random.Random(seed).randbytes(nbytes)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def close(self) -> None:
        """Let it end by itself."""
        if self.process.poll() is None:
            self.process.communicate(timeout=30)
