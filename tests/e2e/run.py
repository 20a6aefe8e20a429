# SPDX-License-Identifier: Apache-2.0
"""`make e2e`: real servers, one table.

    python -m tests.e2e.run [--json] [--only GROUP,…] [--keep FOLDER] [--idle S]
    python -m tests.e2e.run --platform cuda --unchecked --keep FOLDER   # where Java is not
    python -m tests.e2e.run --check FOLDER                              # where it is

Exit status 0 only if every answer equals the plain server's, every scenario took its
encodings from where it must, nothing was left, and the specification allows all that
the traces tell. README.md describes the groups and what is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from ec_connector.bench.platforms import Platform
from tests import leftovers
from tests.e2e.bench import Bench, Progress
from tests.e2e.groups import GROUPS, KEPT, TRACE_TESTS
from tests.e2e.platform import ROOT, chosen, named
from tests.e2e.rows import Row

#: Logs and traces of a run in which something failed; ``make clean`` removes them.
OUT: Final = ROOT / "out"
#: The row about the traces of all groups, and about what it takes to check them.
TRACES: Final = "traces against the specification"
TRACES_S: Final = 8.0
#: Lines of each log that are shown when a scenario failed.
TAIL_LINES: Final = 30


def show(rows: list[Row], platform: str) -> None:
    """The table, and below it what was measured and what went wrong."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"real vllm serve, {platform}")
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


def check_traces(folder: Path, names: list[str]) -> Row | None:
    """Each group's traces, which are one history, against the specification: a row."""
    folders = [folder / name for name in names]
    folders = [folder for folder in folders if any(folder.glob("*.ndjson"))]
    if not folders:
        return None
    row = Row(TRACES)
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "ec_verify.cli", "trace", "check", "--json", *map(str, folders)],
        cwd=ROOT,
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
    print(f"==> traces: {'ok' if row.ok else 'FAILED'} in {row.seconds:.1f} s", file=sys.stderr)
    return row


class Stopped(BaseException):
    """SIGINT or SIGTERM: whoever started the run has no more time."""


def run(bench: Bench, names: list[str]) -> None:
    """Run groups one after the other.

    Raises:
        Stopped: By a signal; all servers have been killed.
    """
    groups = [GROUPS[name](bench) for name in names]

    def stop(*_: object) -> None:
        # First of all: threads wait for answers of theirs, and somebody for the threads.
        for group in groups:
            group.end()
        bench.end()
        raise Stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
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
        for number, handler in before.items():
            signal.signal(number, handler)
        for group in groups:
            group.end()
        bench.end()


def checked_later(folder: Path) -> tuple[str, list[Row]]:
    """A run elsewhere: its platform, its rows, and what the specification says of its traces.

    Raises:
        ValueError: The folder has no such run.
    """
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        platform = str(report["platform"])
        rows = [Row(**{k: v for k, v in row.items() if k != "ok"}) for row in report["rows"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} has no report of a run: {error!r}") from None
    names = sorted({path.parent.name for path in folder.glob("*/*.ndjson")})
    done = [check_traces(folder, names), *map(check_tests, sorted(folder.glob(f"*/{KEPT}")))]
    checked = [row for row in done if row is not None]
    checked = checked or [Row(TRACES, problems=["there are none"])]
    return platform, [*(old for old in rows if old.scenario != TRACES), *checked]


def check_tests(kept: Path) -> Row:
    """What a session of tests has left: each of its runs against the specification."""
    row = Row(TRACES, group=kept.parent.name)
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", TRACE_TESTS],
        cwd=ROOT,
        env={**os.environ, "EC_SESSION_TRACES": str(kept)},
        capture_output=True,
        text=True,
    )
    row.seconds = time.monotonic() - started
    row.notes.append(" ".join(done.stderr.split()))
    row.expect(any(kept.rglob("*.ndjson")), f"no traces in {kept}")
    row.expect(done.returncode == 0, f"status {done.returncode}: {done.stdout[-2000:]}")
    return row


def _platform(name: str) -> Platform:
    try:
        return named(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _played(options: argparse.Namespace, folder: Path, names: list[str]) -> list[Row]:
    """The rows of a run here."""
    folder.mkdir(parents=True, exist_ok=True)
    leftovers.reap()
    scratch = leftovers.Home("e2e")
    try:
        wait, idle, unchecked = options.start_timeout, options.idle, options.unchecked
        bench = Bench(folder, scratch.path, wait, idle, options.platform, unchecked)
        run(bench, names)
    except Stopped:
        bench.rows.append(Row("the run", problems=["it was stopped before its end"]))
    finally:
        scratch.remove()
    row = None if options.unchecked else check_traces(folder, names)
    return bench.rows if row is None else [*bench.rows, row]


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.run", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document to stdout")
    parser.add_argument("--only", default=",".join(GROUPS), help="groups, by commas")
    parser.add_argument("--keep", type=Path, help="folder for logs and traces; they stay")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds to watch idling")
    parser.add_argument("--start-timeout", type=float, default=600.0, help="seconds")
    parser.add_argument(
        "--platform", type=_platform, default=chosen(), help="cpu, cuda, or cuda:N for N GPUs"
    )
    parser.add_argument("--unchecked", action="store_true", help="traces are checked elsewhere")
    parser.add_argument("--check", type=Path, help="folder of a run that was not checked")
    options = parser.parse_args(arguments)
    asked = {name.strip() for name in options.only.split(",") if name.strip()}
    names = [name for name in GROUPS if name in asked]
    if len(names) < len(asked) or not names:
        parser.error(f"--only={options.only!r}: choose from {', '.join(GROUPS)}")
    if options.unchecked and options.keep is None:
        parser.error("--unchecked needs --keep: the traces are for somebody else")

    started = time.monotonic()
    keep = options.check or options.keep
    folder = (keep or OUT / f"e2e-{os.getpid()}").resolve()
    if options.check is None:
        platform, rows = options.platform.name, _played(options, folder, names)
    else:
        try:
            platform, rows = checked_later(folder)
        except ValueError as error:
            parser.error(str(error))
    seconds = time.monotonic() - started
    ok = bool(rows) and all(row.ok for row in rows)
    report: dict[str, Any] = {
        "ok": ok,
        "platform": platform,
        "checked": not options.unchecked,
        "seconds": round(seconds, 1),
        "rows": [{**asdict(row), "ok": row.ok} for row in rows],
    }
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(report))
    else:
        show(rows, platform)
        print(f"{len(rows)} scenarios in {seconds:.0f} s", flush=True)
    show_failures(folder, rows)
    if ok and keep is None:
        shutil.rmtree(folder)
    else:
        print(f"logs and traces: {folder}", file=sys.stderr)
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
