# SPDX-License-Identifier: Apache-2.0
"""One ``vllm serve``, or one proxy, as a child process group on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent

#: What vLLM needs to know on a host without a GPU (``shims/sitecustomize.py``).
CPU_ENV: Final = {
    "PYTHONPATH": f"{ROOT / 'e2e' / 'shims'}:{ROOT}",
    "TRITON_INTERPRET": "1",
    "TRITON_DEFAULT_BACKEND": "cpu",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    # A few helpers are compiled whatever --enforce-eager says, for a Triton that is not there.
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # POST /reset_encoder_cache
}
# vllm:ec_items_total{engine="0",model_name="tiny",result="hit"} 3.0
_COUNTER: Final = re.compile(r"^vllm:ec_(\w+)_total(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_COMMON: Final = frozenset({"engine", "model_name"})
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_REGION: Final = re.compile(r"(/dev/shm/vllm_ec_\S+\.mmap)")


class ServerError(Exception):
    """A server did not start, or did not do what it was asked."""


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """A command in a process group of its own, with its output in a file.

    Attributes:
        url: Where it listens.
    """

    def __init__(self, name: str, command: list[str], env: Mapping[str, str], log: Path, port: int):
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        self._since = time.monotonic()
        with log.open("wb") as out:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                cwd=log.parent,
                start_new_session=True,
            )

    def wait_ready(self, timeout_s: float, path: str = "/health") -> float:
        """Wait until it answers; returns the seconds since it was started."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                with urllib.request.urlopen(self.url + path, timeout=5):
                    return time.monotonic() - self._since
            except (OSError, urllib.error.URLError):
                if self._child.poll() is not None:
                    raise ServerError(
                        f"{self.name} ended with status {self._child.returncode}; see {self.log}"
                    ) from None
                if time.monotonic() > deadline:
                    raise ServerError(
                        f"{self.name} did not answer within {timeout_s:g} s; see {self.log}"
                    ) from None
                time.sleep(0.2)

    @property
    def pids(self) -> list[int]:
        """Processes of its group that are still there."""
        group = self._child.pid
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    text = Path("/proc", entry, "stat").read_text()
                except OSError:
                    continue
                state, _, pgrp = text.rpartition(")")[2].split()[:3]
                if int(pgrp) == group and state != "Z":
                    found.append(int(entry))
        return found

    def cpu_seconds(self) -> float:
        """Processor time that its processes have used so far."""
        ticks = 0
        for pid in self.pids:
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def terminate(self, timeout_s: float = 60.0) -> float:
        """SIGTERM to the first process, as a supervisor does; returns how long it took.

        Raises:
            ServerError: Some process of it is still there; it is killed then.
        """
        started = time.monotonic()
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerError(f"{self.name} did not end within {timeout_s:g} s") from None
        while self.pids:
            if time.monotonic() > started + timeout_s:
                self.kill()
                raise ServerError(f"{self.name} left processes behind: {self.pids}")
            time.sleep(0.05)
        return time.monotonic() - started

    def freeze(self, frozen: bool) -> None:
        """Stop all of its processes where they are, or let them go on."""
        os.killpg(self._child.pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to all of its processes at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


class Server(Process):
    """One ``vllm serve``.

    Args:
        name: For messages and the log's name.
        folder: Where its log and its trace go.
        model: Folder of the model.
        role: ``ec_role``; None starts a plain server without a connector.
        extra: ``ec_connector_extra_config``.
        side_port: Control port of a producer.
        max_batched_tokens: Also what its own encoder cache holds, in rows.
        builtin_name: Load the connector under the built-in one's name.
        options: More options of the command line.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        model: Path,
        *,
        role: str | None = None,
        extra: Mapping[str, Any] | None = None,
        side_port: int | None = None,
        max_batched_tokens: int = 1024,
        builtin_name: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        port = free_port()
        env = dict(CPU_ENV)
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny"]
        command += ["--enforce-eager", "--dtype", "float32", "--max-model-len", "512"]
        command += ["--max-num-seqs", "4", "--max-num-batched-tokens", str(max_batched_tokens)]
        # Otherwise a repeated request would need no encoding at all.
        command += ["--no-enable-prefix-caching", *options]
        self.trace: Path | None = None
        if role is not None:
            self.trace = folder / f"{name}.ndjson"
            said: dict[str, Any] = {
                "ec_role": role,
                "ec_connector_extra_config": {"ec_trace_file": str(self.trace), **(extra or {})},
            }
            if builtin_name:
                said["ec_connector"] = "ECCPUConnector"
                env["EC_CONNECTOR_REPLACE_BUILTIN"] = "1"
            else:
                said["ec_connector"] = "ECConnector"
                said["ec_connector_module_path"] = "ec_connector.vllm"
            command += ["--ec-transfer-config", json.dumps(said)]
        if side_port is not None:
            env["VLLM_EC_SIDE_CHANNEL_HOST"] = "127.0.0.1"
            env["VLLM_EC_SIDE_CHANNEL_PORT"] = str(side_port)
        super().__init__(name, command, env, folder / f"{name}.log", port)

    def events(self) -> Counter[str]:
        """The connector's counters, once they have come to rest.

        Named by family and label: ``items/hit``, ``evictions``.
        """
        last = self._events()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            time.sleep(0.3)
            now = self._events()
            if now == last:
                return now
            last = now
        return last

    def _events(self) -> Counter[str]:
        with urllib.request.urlopen(self.url + "/metrics", timeout=30) as answer:
            text = answer.read().decode()
        counters: Counter[str] = Counter()
        for family, labels, value in _COUNTER.findall(text):
            own = [said for name, said in _LABEL.findall(labels) if name not in _COMMON]
            counters["/".join([family, *own])] += int(float(value))
        return counters

    def reset_encoder_cache(self) -> None:
        """Make it forget the encodings on its own device."""
        request = urllib.request.Request(self.url + "/reset_encoder_cache", method="POST")
        with urllib.request.urlopen(request, timeout=60):
            pass

    def regions(self) -> set[str]:
        """Region files that its processes map."""
        found: set[str] = set()
        for pid in self.pids:
            try:
                found.update(_REGION.findall(Path(f"/proc/{pid}/maps").read_text()))
            except OSError:
                continue
        return found


class Proxy(Process):
    """One ``ec-connector proxy``."""

    def __init__(
        self, name: str, folder: Path, encoder: Server, decoder: Server, *options: str
    ) -> None:
        port = free_port()
        command = [sys.executable, "-m", "ec_connector.cli", "proxy"]
        command += ["--encoder", encoder.url, "--decoder", decoder.url, "--port", str(port)]
        command += ["--health-interval", "1", *options]
        super().__init__(name, command, {"PYTHONPATH": str(ROOT)}, folder / f"{name}.log", port)


def wait_gone(paths: set[str], timeout_s: float = 10.0) -> set[str]:
    """Wait until no file of ``paths`` is left; returns those that are."""
    deadline = time.monotonic() + timeout_s
    while (left := {path for path in paths if os.path.exists(path)}) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)
    return left
