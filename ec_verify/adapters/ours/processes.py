# SPDX-License-Identifier: Apache-2.0
"""Real processes and files for the region cases: the adapter's ``region`` operation.

Everything happens in a folder of its own on the tmpfs, which goes with the adapter.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import ec_connector
from ec_verify.adapters.ours.region_actions import RegionActions

_CHECKOUT: Final = str(Path(ec_connector.__file__).resolve().parents[1])
_IMPORTS: Final = """
import importlib, json, sys
for name in ("engine.scheduler", "engine.worker", "region.shared"):
    importlib.import_module("ec_connector." + name)
print(json.dumps(sorted({"nixl", "zmq", "msgspec"} & {m.split(".")[0] for m in sys.modules})))
"""


class Processes(RegionActions):
    """The processes of one case, by name, and the folder of their regions."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix=f"ec-conformance-{os.getpid()}-", dir="/dev/shm")
        self._running: dict[str, subprocess.Popen[str]] = {}

    def do_open(
        self,
        who: str,
        instance: str,
        dp_rank: int = 0,
        blocks: int = 8,
        block_size_bytes: int = 4096,
        guard: bool = False,
        start: str | None = None,
    ) -> dict[str, Any]:
        """A process opens the region of an instance."""
        args = {
            "directory": self.folder,
            "instance": instance,
            "dp_rank": dp_rank,
            "blocks": blocks,
            "block_size_bytes": block_size_bytes,
            "guard": guard,
            "start": start,
        }
        return self._ask(who, "open", args)

    def do_write(self, who: str, data: str) -> dict[str, Any]:
        """A process writes the first bytes of its region."""
        return self._ask(who, "write", {"data": data})

    def do_read(self, who: str) -> dict[str, Any]:
        """A process reads the first bytes of its region."""
        return self._ask(who, "read", {})

    def do_close(self, who: str, unlink: bool = True) -> dict[str, Any]:
        """A process ends in good order."""
        result = self._ask(who, "close", {"unlink": unlink})
        self._end(who)
        return result

    def do_kill(self, who: str) -> dict[str, Any]:
        """SIGKILL."""
        process = self._running.pop(who)
        process.send_signal(signal.SIGKILL)
        process.wait()
        return {}

    def names(self) -> list[str]:
        """See ``RegionActions.names``."""
        return os.listdir(self.folder)

    def do_plant(self, name: str, text: str) -> dict[str, Any]:
        """Somebody else's file."""
        Path(self.folder, name).write_text(text, encoding="utf-8")
        return {}

    def do_text(self, name: str) -> dict[str, Any]:
        """What is in a file."""
        return {"text": Path(self.folder, name).read_text(encoding="utf-8")}

    def do_imports(self) -> dict[str, Any]:
        """What a process with peer-to-peer off has imported of nixl, zmq and msgspec."""
        done = subprocess.run(
            [sys.executable, "-c", _IMPORTS], capture_output=True, text=True, env=_environ()
        )
        if done.returncode:
            return {"error": done.stderr[-500:]}
        return {"modules": json.loads(done.stdout)}

    def close(self) -> None:
        """End every process and remove the folder."""
        for who in list(self._running):
            self._end(who)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------------- internals
    def _ask(self, who: str, do: str, args: Mapping[str, Any]) -> dict[str, Any]:
        process = self._running.get(who)
        if process is None:
            process = self._running[who] = subprocess.Popen(
                [sys.executable, "-m", "ec_verify.adapters.ours.region_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=_environ(),
            )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"do": do, "args": dict(args)}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            return {"error": f"process {who} ended with status {process.wait()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _end(self, who: str) -> None:
        process = self._running.pop(who)
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environ() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (_CHECKOUT, os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path}
