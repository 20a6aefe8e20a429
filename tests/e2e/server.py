# SPDX-License-Identifier: Apache-2.0
"""One ``vllm serve``, or one proxy, as a child process group on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import random
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
from typing import Final

from ec_connector.bench.platforms import Platform
from ec_protocol.names import encoding_of
from tests.e2e.platform import ROOT

# vllm:ec_items_total{engine="0",model_name="tiny",result="hit"} 3.0
_COUNTER: Final = re.compile(r"^vllm:ec_(\w+)_total(?:\{(.*)\})? (\S+)$", re.MULTILINE)
# vllm:ec_blocks{engine="0",model_name="tiny",state="held"} 64.0
_GAUGE: Final = re.compile(r"^vllm:ec_(blocks)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_COMMON: Final = frozenset({"engine", "model_name"})
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
#: The engine's line about a request whose picture its side of the processor cache lacks.
_DRIFT: Final = re.compile(r"^.*Multi-modal cache miss for request.*$", re.MULTILINE)
_REGION: Final = re.compile(r"(/dev/shm/vllm_ec_\S+\.mmap)")
#: What the connector's data processes call themselves.
DATA: Final = frozenset({"ec-parent", "ec-server", "ec-reader"})
#: Bytes of each server's key-value cache: the models are tiny.
KV_CACHE_BYTES: Final = 64 << 20


class ServerError(Exception):
    """A server did not start, or did not do what it was asked."""


_given: set[int] = set()


def free_port() -> int:
    """A port that nobody uses at the moment, and nobody else is given in this run.

    Servers bind theirs half a minute later, so it must not be one that the system
    hands out for connections meanwhile. Runs side by side mostly have ranges of their own.
    """
    first = 20000 + os.getpid() % 12 * 1000
    while True:
        port = random.randrange(first, first + 1000)
        if port in _given:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port


class Process:
    """A command in a process group of its own, with its output in a file.

    Attributes:
        url: Where it listens.
        log: What it prints.
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

    def command(self, pid: int) -> str:
        """How a process calls itself, ``VLLM::Worker`` for example."""
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            return ""

    def terminate(self, timeout_s: float = 120.0) -> float:
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

    def freeze(self, frozen: bool, only: str = "") -> None:
        """Stop its processes where they are, or let them go on.

        Args:
            frozen: Stop, or go on.
            only: Only processes that call themselves so; there must be some.

        Raises:
            ServerError: There are none.
        """
        chosen = [pid for pid in self.pids if self.command(pid).startswith(only)]
        if not chosen:
            raise ServerError(f"{self.name} has no process {only!r}")
        for pid in chosen:
            os.kill(pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to all of its processes at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


class Server(Process):
    """One ``vllm serve``.

    Args:
        name: For messages, and the names of its log and its trace.
        folder: Where these go.
        model: Folder of the model.
        platform: The machine.
        said: ``--ec-transfer-config``; None starts a plain server without a connector.
        env: More environment.
        max_model_len: Longest prompt and answer. Its own encoder cache holds so many rows
            or more, since one video may be as long.
        options: More options of the command line.
        prefix_caching: Whether to leave it on, as it is by default. Without it every
            request needs its encodings.
        own_worker: Give the engine's worker a process of its own, as it has on several
            GPUs. Otherwise it lives in the engine's process.
        ranks: Tensor-parallel ranks; fewer where the machine has not so many.
        ahead: Plan the next step before this one is over, or do not. None: as is usual
            on the machine.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        model: Path,
        platform: Platform,
        *,
        said: str | None = None,
        env: Mapping[str, str] | None = None,
        max_model_len: int = 512,
        options: Sequence[str] = (),
        prefix_caching: bool = False,
        own_worker: bool = False,
        ranks: int = 1,
        ahead: bool | None = None,
    ) -> None:
        port = free_port()
        env = {**platform.env, **platform.step_env(ahead), **(env or {})}
        # For `vllm serve` the variable only decides where the worker lives.
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if own_worker else "0"
        command = [str(Path(sys.executable).with_name("vllm")), "serve", str(model)]
        self.trace: Path | None = None
        if said is not None:
            self.trace = folder / f"{name}.ndjson"
            env["EC_CONNECTOR_TRACE_FILE"] = str(self.trace)
            command += ["--ec-transfer-config", said]
        command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny"]
        # Not more: the encoder cache would grow with it.
        command += ["--max-model-len", str(max_model_len)]
        command += ["--max-num-batched-tokens", str(max_model_len), "--max-num-seqs", "4"]
        command += platform.options(KV_CACHE_BYTES, own_worker=own_worker)
        command += [*platform.parallel(ranks), *platform.step_options(ahead), *options]
        if not prefix_caching:
            command.append("--no-enable-prefix-caching")
        super().__init__(name, command, env, folder / f"{name}.log", port)

    def events(self) -> Counter[str]:
        """The connector's counters, once they have come to rest.

        Named by family and label: ``items/hit``, ``evictions``.
        """
        deadline = time.monotonic() + 20
        last, alike = self._events(), 0
        while alike < 3 and time.monotonic() < deadline:
            time.sleep(0.15)
            now = self._events()
            alike = alike + 1 if now == last else 0
            last = now
        return last

    def actions(self, mm_hash: str | None = None) -> Counter[str]:
        """How often its traces tell each action, of one encoding or of all.

        Data processes have traces of their own. What a reader takes up or gives up is
        what the engine has lent, and counts there.
        """
        found: Counter[str] = Counter()
        for trace in self.traces:
            # The last line may still be on its way.
            *lines, _ = trace.read_text(encoding="utf-8").split("\n")
            for line in lines[1:]:
                record = json.loads(line)
                action = record["action"]
                if trace != self.trace and action in ("Alloc", "Cancel", "Reclaim"):
                    continue
                # By whosever word it is kept (EC-15.8).
                name = record["args"].get("mm_hash", "")
                if mm_hash is None or encoding_of(name) == mm_hash:
                    found[action] += 1
        return found

    @property
    def traces(self) -> list[Path]:
        """The traces of the engine's process, and of its data processes and their parent."""
        if self.trace is None:
            return []
        others = sorted(self.trace.parent.glob(f"{self.trace.stem}.*.ndjson"))
        return [path for path in (self.trace, *others) if path.exists()]

    def await_actions(self, mm_hash: str, action: str, count: int = 1) -> None:
        """Wait until its trace tells an action of an encoding so often.

        Raises:
            ServerError: Not within three minutes.
        """
        deadline = time.monotonic() + 180
        while self.actions(mm_hash)[action] < count:
            if time.monotonic() > deadline:
                raise ServerError(f"{self.name}: no {count} {action} of {mm_hash}")
            time.sleep(0.02)

    def drifted(self, mm_hash: str) -> int:
        """How often its engine said that it lacks a picture that was not sent again.

        A client that leaves within milliseconds makes the API server believe that the
        engine has the preprocessed picture. The next request for it fails, on a plain
        server too, and the one after that is answered.
        """
        said = self.log.read_text(errors="replace")
        return sum(mm_hash in line for line in _DRIFT.findall(said))

    def amount(self, name: str) -> int:
        """A gauge as it was told last: ``blocks/held``."""
        return self._values(_GAUGE)[name]

    def _events(self) -> Counter[str]:
        return self._values(_COUNTER)

    def _values(self, pattern: re.Pattern[str]) -> Counter[str]:
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as answer:
            text = answer.read().decode()
        values: Counter[str] = Counter()
        for family, labels, value in pattern.findall(text):
            own = [said for name, said in _LABEL.findall(labels) if name not in _COMMON]
            values["/".join([family, *own])] += int(float(value))
        return values

    def forget(self) -> None:
        """Make it forget the encodings on its own device, and the prompts behind them."""
        for cache in ("prefix", "encoder"):
            request = urllib.request.Request(f"{self.url}/reset_{cache}_cache", method="POST")
            with urllib.request.urlopen(request, timeout=120):
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

    def guards(self) -> set[int]:
        """The processes that will remove the names of its regions when it is gone.

        They have left its process group.
        """
        return guards_of(self.regions())

    def data(self, *kinds: str) -> list[int]:
        """Its data processes and their parent, or those of the kinds that are named."""
        return [pid for pid in self.pids if name_of(pid) in (kinds or DATA)]

    def hosts(self) -> list[int]:
        """Its other processes: vLLM's own."""
        return [pid for pid in self.pids if name_of(pid) not in DATA]

    def kill_hosts(self, timeout_s: float = 20.0) -> float:
        """SIGKILL to vLLM's own processes at once; the data processes end by themselves.

        Returns:
            How long the last of them took.

        Raises:
            ServerError: Some are still there; they are killed then.
        """
        for pid in self.hosts():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return self._wait_ended(time.monotonic(), timeout_s)

    def _wait_ended(self, killed: float, timeout_s: float) -> float:
        """Wait until no process of it is left; returns how long that took."""
        while left := self.pids:
            if time.monotonic() > killed + timeout_s:
                names = [f"{name_of(pid)} {pid}" for pid in left]
                self.kill()
                raise ServerError(f"{self.name} was killed and left processes behind: {names}")
            time.sleep(0.01)
        self._child.wait()
        return time.monotonic() - killed

    def kill_engine(self, timeout_s: float = 60.0) -> float:
        """SIGKILL to its engine's process alone; all others end by themselves.

        Returns:
            How long the last of them took.

        Raises:
            ServerError: There is no such process, or others are still there; they are
                killed then.
        """
        engines = [pid for pid in self.hosts() if self.command(pid).startswith("VLLM::EngineCore")]
        if not engines:
            raise ServerError(f"{self.name} has no engine")
        for pid in engines:
            os.kill(pid, signal.SIGKILL)
        return self._wait_ended(time.monotonic(), timeout_s)


class Proxy(Process):
    """One ``ec-connector proxy``."""

    def __init__(
        self, name: str, folder: Path, encoder: Server, decoder: Server, *options: str
    ) -> None:
        port = free_port()
        command = [sys.executable, "-m", "ec_connector.cli", "proxy"]
        command += ["--encoder", encoder.url, "--decoder", decoder.url, "--port", str(port)]
        # A health check may take so long, and on a busy host it does take its time.
        command += ["--health-interval", "10", "--encoder-timeout", "300", *options]
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        env = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        super().__init__(name, command, env, folder / f"{name}.log", port)


def guards_of(regions: set[str]) -> set[int]:
    """Processes that guard region files: each has the file's name on its command line."""
    found = set()
    for entry in os.listdir("/proc"):
        try:
            words = Path("/proc", entry, "cmdline").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        if regions & set(words):
            found.add(int(entry))
    return found


def name_of(pid: int) -> str:
    """What ``ps`` calls a process; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def data_of(regions: set[str]) -> dict[int, str]:
    """Data processes, and parents of such, that have one of these region files open."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or (name := name_of(int(entry))) not in DATA:
            continue
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{entry}/fd"):
                with contextlib.suppress(OSError):
                    path = os.readlink(f"/proc/{entry}/fd/{fd}").removesuffix(" (deleted)")
                    if path in regions:
                        found[int(entry)] = name
    return found


def wait_gone(regions: set[str], timeout_s: float = 20.0) -> list[str]:
    """Wait until neither region files, guards nor data processes are left; what is."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = sorted(path for path in regions if os.path.exists(path))
        left += [f"guard {pid}" for pid in sorted(guards_of(regions))]
        left += [f"{name} {pid}" for pid, name in sorted(data_of(regions).items())]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)
