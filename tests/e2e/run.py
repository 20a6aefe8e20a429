# SPDX-License-Identifier: Apache-2.0
"""`make e2e`: real servers, one table.

    python -m tests.e2e.run [--json] [--only GROUP,…] [--keep FOLDER] [--idle S]

Exit status 0 only if every answer equals the plain server's, every scenario took its
encodings from where it must, nothing was left, and the specification allows all that
the traces tell. README.md describes the groups and what is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests import leftovers
from tests.e2e.bench import Bench, Progress
from tests.e2e.groups import GROUPS
from tests.e2e.rows import Row
from tests.e2e.server import ROOT

#: Logs and traces of a run in which something failed; ``make clean`` removes them.
OUT: Final = ROOT / "out"
#: About what it takes to check the traces of all groups.
TRACES_S: Final = 8.0
#: Lines of each log that are shown when a scenario failed.
TAIL_LINES: Final = 30


def show(rows: list[Row]) -> None:
    """The table, and below it what was measured and what went wrong."""
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
        for text in row.notes:
            console.print(f"{row.scenario}: {text}", markup=False)


def show_failures(folder: Path, rows: list[Row]) -> None:
    """What failed, and the end of every log of the groups in which something did."""
    failed = [row for row in rows if not row.ok]
    for row in failed:
        for text in row.problems or [f"{row.wrong} wrong answers"]:
            where = f"{row.group}, {row.scenario}" if row.group else row.scenario
            print(f"FAILED {where}: {text}", file=sys.stderr)
    logs = sorted(folder.glob("*.log"))
    for group in dict.fromkeys(row.group for row in failed):
        logs += sorted((folder / group).glob("*.log"))
    for log in logs if failed else ():
        lines = log.read_text(errors="replace").splitlines()
        print(f"--- the last lines of {log}", file=sys.stderr)
        for line in lines[-TAIL_LINES:]:
            print(f"    {line[:300]}", file=sys.stderr)


def check_traces(bench: Bench, names: list[str]) -> None:
    """Each group's traces, which are one history, against the specification: a row."""
    folders = [bench.folder / name for name in names]
    folders = [folder for folder in folders if any(folder.glob("*.ndjson"))]
    if not folders:
        return
    row = Row("traces against the specification")
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "ec_verify.cli", "trace", "check", "--json", *map(str, folders)],
        cwd=ROOT,
        env=bench.environment(),
        capture_output=True,
        text=True,
    )
    row.seconds = time.monotonic() - started
    try:
        traces = json.loads(done.stdout)["traces"]
    except (ValueError, KeyError, TypeError):
        traces = []
    for trace in traces:
        what = f"{Path(trace['file']).name}, {trace['records']} actions"
        row.notes.append(f"{what} of {trace.get('processes', 1)} processes")
        row.expect(trace["accepted"], f"{what}: refused at {trace['failed_at']}")
    row.expect(done.returncode == 0, f"status {done.returncode}: {done.stderr[-2000:]}")
    row.expect(len(traces) == len(folders), f"{len(traces)} of {len(folders)} were checked")
    bench.rows.append(row)
    print(f"==> traces: {'ok' if row.ok else 'FAILED'} in {row.seconds:.1f} s", file=sys.stderr)


def run(bench: Bench, names: list[str]) -> None:
    """Run groups one after the other."""
    groups = [GROUPS[name](bench) for name in names]
    planned = {group.name: group.planned for group in groups}
    # Their traces are a row of no group.
    bench.progress = Progress({**planned, "": (1, TRACES_S)})
    bench.begin_models([kind for group in groups for kind in group.kinds])
    try:
        for group, following in zip(groups, [*groups[1:], None], strict=True):
            try:
                group.play(following.begin if following is not None else lambda: None)
            finally:
                group.end()
    finally:
        for group in groups:
            group.end()
        bench.end()
    check_traces(bench, names)


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.run", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document to stdout")
    parser.add_argument("--only", default=",".join(GROUPS), help="groups, by commas")
    parser.add_argument("--keep", type=Path, help="folder for logs and traces; they stay")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds to watch idling")
    parser.add_argument("--start-timeout", type=float, default=600.0, help="seconds")
    options = parser.parse_args(arguments)
    asked = {name.strip() for name in options.only.split(",") if name.strip()}
    names = [name for name in GROUPS if name in asked]
    if len(names) < len(asked) or not names:
        parser.error(f"--only={options.only!r}: choose from {', '.join(GROUPS)}")

    folder = (options.keep or OUT / f"e2e-{os.getpid()}").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    leftovers.reap()
    scratch = leftovers.Home("e2e")
    try:
        bench = Bench(folder, scratch.path, options.start_timeout, options.idle)
        run(bench, names)
    finally:
        scratch.remove()
    seconds = time.monotonic() - started
    rows = bench.rows
    ok = bool(rows) and all(row.ok for row in rows)
    report: dict[str, Any] = {
        "ok": ok,
        "seconds": round(seconds, 1),
        "rows": [{**asdict(row), "ok": row.ok} for row in rows],
    }
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(report))
    else:
        show(rows)
        print(f"{len(rows)} scenarios in {seconds:.0f} s", flush=True)
    show_failures(folder, rows)
    if ok and options.keep is None:
        shutil.rmtree(folder)
    else:
        print(f"logs and traces: {folder}", file=sys.stderr)
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
