# SPDX-License-Identifier: Apache-2.0
"""What a run owns: folders, models, servers, and the rows so far."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ec_connector.bench.platforms import Platform
from ec_verify.estimate import duration
from tests.e2e.platform import VARIABLE
from tests.e2e.rows import Oracle, Row
from tests.e2e.server import Process, Proxy, Server, ServerError


class Progress:
    """How many scenarios of all are done, and how long the others will take.

    Args:
        planned: By name of the groups that run: scenarios, and seconds that the group
            once took until the next one began.
    """

    def __init__(self, planned: Mapping[str, tuple[int, float]]) -> None:
        self._planned = planned
        self._started = time.monotonic()

    def said(self, rows: Sequence[Row]) -> str:
        """As a clause after what is done."""
        done = Counter(row.group for row in rows)
        total = sum(count for count, _ in self._planned.values())
        of_all = sum(seconds for _, seconds in self._planned.values())
        so_far = sum(
            seconds * min(1.0, done[name] / count)
            for name, (count, seconds) in self._planned.items()
        )
        if not so_far:
            return ""
        left = (time.monotonic() - self._started) / so_far * (of_all - so_far)
        return f" ({len(rows)} of {total} scenarios, about {duration(left)} left)"


class Bench:
    """One run.

    Args:
        folder: For models, logs, traces; exists.
        scratch: For sockets and other short-lived files of the servers; its path is
            short, since the system limits those of sockets.
        start_timeout_s: How long a server may take to answer for the first time.
        idle_s: How long idle servers are watched.
        platform: The machine.
        unchecked: Keep traces for somebody else, who checks them.
    """

    def __init__(
        self,
        folder: Path,
        scratch: Path,
        start_timeout_s: float,
        idle_s: float,
        platform: Platform,
        unchecked: bool = False,
    ) -> None:
        self.folder = folder
        self.platform = platform
        self.unchecked = unchecked
        self.start_timeout_s = start_timeout_s
        self.idle_s = idle_s
        self.rows: list[Row] = []
        self.progress = Progress({})
        self.up: set[Process] = set()
        self.env = {"TMPDIR": str(scratch), "VLLM_RPC_BASE_PATH": str(scratch)}
        self._models: dict[str, subprocess.Popen[str]] = {}
        self._plain: dict[str, Server] = {}
        self._oracles: dict[str, Oracle] = {}

    def environment(self, **more: str) -> dict[str, str]:
        """The whole environment of a process of the run."""
        own = {VARIABLE: self.platform.name, **self.env}
        return {**os.environ, **self.platform.env, **own, **more}

    def _model_folder(self, kind: str) -> Path:
        return self.folder / "models" / kind

    def begin_models(self, kinds: Sequence[str]) -> None:
        """Start making the models that are not there yet, all at once."""
        for kind in kinds:
            path = self._model_folder(kind)
            if kind not in self._models and not (path / "config.json").exists():
                # In a process of its own: the shims must be there before transformers is.
                self._models[kind] = subprocess.Popen(
                    [sys.executable, "-m", "tests.e2e.tiny_model", kind, str(path)],
                    env=self.environment(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )

    def model(self, kind: str) -> Path:
        """The folder of a whole model.

        Raises:
            ServerError: It could not be made.
        """
        self.begin_models([kind])
        making = self._models.pop(kind, None)
        if making is not None:
            output, _ = making.communicate()
            if making.returncode:
                raise ServerError(f"no tiny model {kind}: {output[-2000:]}")
        return self._model_folder(kind)

    def plain(self, kind: str) -> Server:
        """The plain server of a model, the same one for all groups."""
        known = self._plain.get(kind)
        if known is None:
            model = self.model(kind)
            known = Server(f"plain-{kind}", self.folder, model, self.platform, env=self.env)
            self._plain[kind] = known
        return known

    def oracle(self, kind: str) -> Oracle:
        """What the plain server of a model has said so far."""
        return self._oracles.setdefault(kind, Oracle())

    def end(self) -> None:
        """Kill the plain servers and whatever makes models."""
        for server in self._plain.values():
            server.kill()
        for making in self._models.values():
            making.kill()
            making.communicate()


class Group:
    """Servers that belong together, and what is asked of them.

    ``begin`` starts the servers and returns at once; ``play`` waits for them. A group
    calls ``ahead`` when it does not mind that the next one's servers start meanwhile.

    Attributes:
        name: Also of the folder for its logs and traces.
        kinds: Models that it needs.
        planned: Its scenarios, and about how many seconds it takes, for the progress.
    """

    name = ""
    kinds: tuple[str, ...] = ()
    planned: tuple[int, float] = (1, 1.0)

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.folder = bench.folder / self.name
        self.processes: list[Process] = []
        self._begun = False
        self._failure: ServerError | None = None

    # ------------------------------------------------------------ for its subclasses
    def prepare(self) -> None:
        """Start the servers that the group needs first."""
        raise NotImplementedError

    def scenarios(self, ahead: Callable[[], None]) -> None:
        """Run the scenarios one after the other."""
        raise NotImplementedError

    def server(
        self, name: str, kind: str, *, env: dict[str, str] | None = None, **options: Any
    ) -> Server:
        """Start a server; ``end`` sees to it that it ends."""
        env = {**self.bench.env, **(env or {})}
        model, platform = self.bench.model(kind), self.bench.platform
        server = Server(name, self.folder, model, platform, env=env, **options)
        self.processes.append(server)
        return server

    def proxy(self, name: str, encoder: Server, decoder: Server, *options: str) -> Proxy:
        """Start a proxy. As ``server``."""
        proxy = Proxy(name, self.folder, encoder, decoder, *options)
        self.processes.append(proxy)
        return proxy

    def wait(self, *processes: Process) -> None:
        """Wait until they answer."""
        for process in processes:
            if process not in self.bench.up:
                took = process.wait_ready(self.bench.start_timeout_s)
                print(f"    {process.name} is up after {took:.0f} s", file=sys.stderr)
                self.bench.up.add(process)

    def learn(self, kind: str, wanted: Sequence[Sequence[int]]) -> Oracle:
        """Ask the plain server; a bad oracle is a row of its own."""
        plain, oracle = self.bench.plain(kind), self.bench.oracle(kind)
        self.wait(plain)
        problems = oracle.learn(plain.url, wanted)
        if problems:
            self.add(Row(f"oracle, {kind}", requests=len(wanted), problems=problems))
        return oracle

    def add(self, row: Row) -> None:
        """Keep a row, and say how it went."""
        row.group = self.name
        self.bench.rows.append(row)
        verdict = "ok" if row.ok else "FAILED"
        done = self.bench.progress.said(self.bench.rows)
        print(f"    {row.scenario}: {verdict} in {row.seconds:.1f} s{done}", file=sys.stderr)
        for problem in row.problems:
            print(f"        {problem}", file=sys.stderr)

    # ------------------------------------------------------------------ for the run
    def begin(self) -> None:
        """Start its first servers, once. An error is kept for ``play``."""
        if self._begun:
            return
        self._begun = True
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.prepare()
        except ServerError as error:
            self._failure = error

    def play(self, ahead: Callable[[], None]) -> None:
        """Run it. Whatever a server does not do becomes a row."""
        print(f"==> {self.name}", file=sys.stderr)
        self.begin()
        try:
            if self._failure is not None:
                raise self._failure
            self.scenarios(ahead)
        except ServerError as error:
            self.add(Row(f"{self.name}: servers", problems=[str(error)]))

    def end(self) -> None:
        """Kill whatever it started."""
        for process in self.processes:
            process.kill()
        self.processes.clear()
