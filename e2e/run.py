# SPDX-License-Identifier: Apache-2.0
"""`make e2e`: real servers, one table.

    python -m e2e.run [--json] [--only local,tp,p2p,deepstack] [--keep FOLDER] [--idle S]

Groups, each with its own servers, so that few are up at a time:

* ``local``: a plain server and an ``ec_both`` one with a tier for four pictures;
* ``tp``: an ``ec_both`` server with two tensor-parallel ranks;
* ``p2p``: the same plain server, a producer, a consumer, and the proxy in front;
* ``deepstack``: the same with Qwen3-VL, whose encodings are wider than its text.

Exit status 0 only if every answer equals the plain server's and nothing was left.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from e2e import scenarios
from e2e.scenarios import Oracle, Row
from e2e.server import CPU_ENV, Process, Proxy, Server, ServerError, free_port

#: Bytes of one picture's encoding in the tiny Qwen2-VL: 64 rows of 128 floats.
PICTURE_BYTES: Final = 64 * 128 * 4
ROOMY: Final = 64 * PICTURE_BYTES

#: The first READ between two instances sets up their connection, which takes seconds
#: of processor time; on a busy host the answers behind it would come too late. Longer
#: than a heartbeat, so that a producer that hangs is noticed by that.
PEER_TO_PEER: Final = {"ec_enable_nixl": True, "consumer_ack_timeout_s": 5}


class Bench:
    """Folder, models and options of one run, and the rows so far."""

    def __init__(self, folder: Path, start_timeout_s: float, idle_s: float) -> None:
        self.folder = folder
        self.start_timeout_s = start_timeout_s
        self.idle_s = idle_s
        self.rows: list[Row] = []
        self._processes: list[Process] = []
        self._seen: set[str] = set()
        self._plain: dict[str, Server] = {}
        self._oracles: dict[str, Oracle] = {}

    def server(self, name: str, model: Path, **options: Any) -> Server:
        """Start a server; ``end`` sees to it that it ends."""
        server = Server(name, self.folder, model, **options)
        self._processes.append(server)
        return server

    def proxy(self, name: str, encoder: Server, decoder: Server, *options: str) -> Proxy:
        """Start a proxy. As ``server``."""
        proxy = Proxy(name, self.folder, encoder, decoder, *options)
        self._processes.append(proxy)
        return proxy

    def plain(self, kind: str) -> Server:
        """The plain server of a model, the same one for all groups."""
        known = self._plain.get(kind)
        if known is None:
            known = Server(f"plain-{kind}", self.folder, self.model(kind))
            self._plain[kind] = known
        return known

    def oracle(self, kind: str, wanted: list[tuple[int, ...]]) -> Oracle:
        """What the plain server says; a bad oracle is a row of its own."""
        known = self._oracles.setdefault(kind, Oracle())
        problems = known.learn(self.plain(kind).url, wanted)
        if problems:
            self.rows.append(Row(f"oracle, {kind}", requests=len(wanted), problems=problems))
        return known

    def end(self, all_of_them: bool) -> None:
        """Kill whatever was started; plain servers only if ``all_of_them``."""
        ended = [*self._processes, *(self._plain.values() if all_of_them else ())]
        for process in ended:
            process.kill()
        self._processes.clear()

    def model(self, kind: str) -> Path:
        """The model's folder; made when first asked for."""
        path = self.folder / kind
        if not path.exists():
            # In a process of its own: the shims must be there before transformers is.
            made = subprocess.run(
                [sys.executable, "-m", "e2e.tiny_model", kind, str(path)],
                env={**os.environ, **CPU_ENV},
                capture_output=True,
                text=True,
            )
            if made.returncode:
                raise ServerError(f"no tiny model {kind}: {made.stderr[-2000:]}")
        return path

    def add(self, row: Row) -> None:
        """Keep a row, and say how it went."""
        self.rows.append(row)
        verdict = "ok" if row.ok else "FAILED"
        print(f"    {row.scenario}: {verdict} in {row.seconds:.1f} s", file=sys.stderr)

    def wait(self, *processes: Process) -> None:
        """Wait until they answer."""
        for process in processes:
            if process.name not in self._seen:
                took = process.wait_ready(self.start_timeout_s)
                print(f"    {process.name} is up after {took:.0f} s", file=sys.stderr)
                self._seen.add(process.name)


def run_local(bench: Bench) -> None:
    """(a) local tier, (g) churn, (f) stop."""
    model = bench.model("qwen2vl")
    plain = bench.plain("qwen2vl")
    both = bench.server(
        "both",
        model,
        role="ec_both",
        extra={"ec_cpu_bytes": 4 * PICTURE_BYTES},
        # Two pictures in the device's own encoder cache.
        max_batched_tokens=128,
        builtin_name=True,
    )
    bench.wait(plain, both)
    oracle = bench.oracle("qwen2vl", [*scenarios.each(range(10)), (0, 1, 0)])
    bench.add(scenarios.local_tier(both, oracle))
    bench.add(scenarios.churn(both, oracle))
    bench.add(scenarios.stopped([both], "SIGTERM to ec_both"))


def run_tensor_parallel(bench: Bench) -> None:
    """Two ranks: one writes, both load, both report."""
    plain = bench.plain("qwen2vl")
    ranks = bench.server(
        "tp2",
        bench.model("qwen2vl"),
        role="ec_both",
        extra={"ec_cpu_bytes": ROOMY},
        options=["--tensor-parallel-size", "2"],
    )
    bench.wait(plain, ranks)
    oracle = bench.oracle("qwen2vl", [*scenarios.each(range(3)), (0, 1, 0)])
    bench.add(scenarios.local_tier(ranks, oracle, "local tier, two ranks"))
    bench.add(scenarios.stopped([ranks], "SIGTERM, two ranks"))


def run_p2p(bench: Bench) -> None:
    """(b) pulls, (d) kill -9, (e) restart, (f) stop."""
    model, extra = bench.model("qwen2vl"), {"ec_cpu_bytes": ROOMY, **PEER_TO_PEER}
    port = free_port()
    plain = bench.plain("qwen2vl")
    first = bench.server("producer", model, role="ec_producer", extra=extra, side_port=port)
    consumer = bench.server("consumer", model, role="ec_consumer", extra=extra)
    bench.wait(plain, first, consumer)
    oracle = bench.oracle("qwen2vl", scenarios.each(range(26)))
    if bench.idle_s > 0:
        bench.add(scenarios.idle(plain, [first, consumer], bench.idle_s))
    plain.kill()

    keeping = bench.proxy("proxy-keep", first, consumer, "--keep-media")
    lean = bench.proxy("proxy", first, consumer)
    bench.wait(keeping, lean)
    bench.add(scenarios.pull("pull, image kept", keeping, consumer, oracle, range(5)))
    bench.add(scenarios.pull("pull, metadata only", lean, consumer, oracle, range(5, 10)))
    bench.add(scenarios.reload_pulled("reload pulled", consumer, oracle, range(10)))
    bench.add(scenarios.hostile(consumer, oracle, 0))
    bench.add(scenarios.killed(first, consumer, lean, oracle, range(10, 20)))

    second = bench.server("producer-again", model, role="ec_producer", extra=extra, side_port=port)
    bench.wait(second)
    again = bench.proxy("proxy-again", second, consumer)
    bench.wait(again)
    bench.add(scenarios.pull("restart on the same port", again, consumer, oracle, range(20, 24)))
    bench.add(scenarios.frozen(second, consumer, oracle, range(24, 26)))
    bench.add(scenarios.stopped([second, consumer], "SIGTERM to producer, consumer"))


def run_deepstack(bench: Bench) -> None:
    """(c) Qwen3-VL: rows of 384 in a model with a text width of 128."""
    model, extra = bench.model("qwen3vl"), {"ec_cpu_bytes": ROOMY, **PEER_TO_PEER}
    plain = bench.plain("qwen3vl")
    producer = bench.server(
        "producer-q3", model, role="ec_producer", extra=extra, side_port=free_port()
    )
    consumer = bench.server("consumer-q3", model, role="ec_consumer", extra=extra)
    bench.wait(plain, producer, consumer)
    oracle = bench.oracle("qwen3vl", scenarios.each(range(4)))
    plain.kill()
    proxy = bench.proxy("proxy-q3", producer, consumer)
    bench.wait(proxy)
    bench.add(scenarios.pull("DeepStack, pull", proxy, consumer, oracle, range(4)))
    bench.add(scenarios.reload_pulled("DeepStack, reload", consumer, oracle, range(4)))
    bench.add(scenarios.stopped([producer, consumer], "SIGTERM, Qwen3-VL"))


GROUPS: Final[dict[str, Callable[[Bench], None]]] = {
    "local": run_local,
    "tp": run_tensor_parallel,
    "p2p": run_p2p,
    "deepstack": run_deepstack,
}


def show(rows: list[Row]) -> None:
    """The table, and below it what went wrong."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="real vllm serve on this CPU")
    table.add_column("scenario")
    for name in ("requests", "local", "remote", "recomputed", "wrong", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for row in rows:
        counts = (row.requests, row.local, row.remote, row.recomputed, row.wrong)
        verdict = "ok" if row.ok else "FAILED"
        table.add_row(row.scenario, *map(str, counts), f"{row.seconds:.1f}", verdict)
    console = Console(highlight=False, width=100)
    console.print(table)
    for row in rows:
        for text in (*row.problems, *row.notes):
            console.print(f"{row.scenario}: {text}", markup=False)


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m e2e.run", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document to stdout")
    parser.add_argument("--only", default=",".join(GROUPS), help="groups, by commas")
    parser.add_argument("--keep", type=Path, help="folder for logs and traces; they stay")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds to watch idling")
    parser.add_argument("--start-timeout", type=float, default=420.0, help="seconds")
    options = parser.parse_args(arguments)
    asked = {name.strip() for name in options.only.split(",") if name.strip()}
    # In this order whatever was asked: the plain server ends with its last group.
    names = [name for name in GROUPS if name in asked]
    if len(names) < len(asked) or not names:
        parser.error(f"--only={options.only!r}: choose from {', '.join(GROUPS)}")

    folder = options.keep or Path(tempfile.mkdtemp(prefix="ec-e2e-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    bench = Bench(folder, options.start_timeout, options.idle)
    started = time.monotonic()
    for name in names:
        print(f"==> {name}", file=sys.stderr)
        try:
            GROUPS[name](bench)
        except ServerError as error:
            bench.rows.append(Row(f"{name}: servers", problems=[str(error)]))
        finally:
            # The next group may ask the same plain server.
            bench.end(all_of_them=name == names[-1])
    seconds = time.monotonic() - started
    ok = bool(bench.rows) and all(row.ok for row in bench.rows)
    if options.json:
        rows = [{**asdict(row), "ok": row.ok} for row in bench.rows]
        print(json.dumps({"ok": ok, "seconds": round(seconds, 1), "rows": rows}))
    else:
        show(bench.rows)
        print(f"{len(bench.rows)} scenarios in {seconds:.0f} s")
    if ok and options.keep is None:
        shutil.rmtree(folder)
    else:
        print(f"logs and traces: {folder}", file=sys.stderr)
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
