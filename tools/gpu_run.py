# SPDX-License-Identifier: Apache-2.0
"""Runs what needs a GPU, bounded in time, and keeps what came of it.

    tools/gpu.sh PART...              on the machine with the GPU; it needs no network
    tools/gpu.sh --check FOLDER       elsewhere, with Java: the traces that a run has kept

    tests       the tests of copies that are marked `cuda`
    sanitizer   some of them under compute-sanitizer
    bench       all benchmarks
    smoke       what the machine is, and whether the bundle loads there
    data        data processes, sockets and NIXL, and the tests marked `cuda` with them
    vllm        groups of tests/e2e on real servers, all at once; vllm:p2p,guide chooses

smoke, data and vllm first unpack what tools/gpu_bundle.py has made (--bundle) into --env;
the other parts need PyTorch alone. OUT, or --out, gets summary.json, PART.json for each
part, and logs.tar.xz: logs, traces, plots. A part that did not come to its end, or a group
of vllm, can be run again by itself. --platform cpu is for a rehearsal of data and vllm in a
Python that has all they need.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
#: Whatever happens, all is over and kept by then: a run may have ten minutes.
LIMIT_S: Final = 560.0
#: What a command gets to put its affairs in order when its time is up.
GRACE_S: Final = 25.0
GROUPS: Final = ("engine", "local", "p2p", "counted", "guide")
#: Seconds between the starts of two groups: each start keeps several cores busy.
STAGGER_S: Final = 6.0

# Memory checking slows everything down, so a few tests stand for all. Tests in which CUDA
# refuses a call on purpose would be reported, and are left out.
_SANITIZED: Final = (
    "half_way or waits_for_the_encoder or still_reads or still_writes or let_go or row_order "
    "or (same_bits and bfloat16) or (same_bits and e4m3)"
)
_CUDA_TESTS: Final = ("tests/ec_connector/copies", "tests/ec_connector/processes")
_DATA_TESTS: Final = ("tests/ec_connector/processes", "tests/ec_connector/network")


@dataclass(slots=True)
class Job:
    """A command, its log, and how it ended."""

    name: str
    command: list[str]
    log: Path
    child: subprocess.Popen[bytes] | None = None
    status: int | None = None
    seconds: float = 0.0


class Run:
    """One call.

    Args:
        out: For results.
        env: Where the bundle is unpacked.
        bundle: Where it is.
        limit_s: For all parts.
        platform: See ``tests/e2e/platform.py``. Only with CUDA is the bundle unpacked.
    """

    def __init__(
        self, out: Path, env: Path, bundle: Path, limit_s: float, platform: str = "cuda"
    ) -> None:
        self.out, self.env, self.bundle, self.platform = out, env, bundle, platform
        self.deadline = time.monotonic() + limit_s
        self.work = Path(tempfile.mkdtemp(prefix="ec-gpu-run-"))
        self.results: dict[str, Any] = {}
        out.mkdir(parents=True, exist_ok=True)

    @property
    def left(self) -> float:
        """Seconds for commands, behind which there is time to end and keep them."""
        return max(0.0, self.deadline - time.monotonic() - GRACE_S - 10)

    def python(self, *parts: str) -> str:
        """An interpreter that sees parts of the bundle, or the machine's own.

        Raises:
            RuntimeError: They cannot be unpacked.
        """
        if not parts or self.platform == "cpu":
            return sys.executable
        command = [sys.executable, "tools/gpu_install.py", "--to", str(self.env)]
        command += ["--bundle", str(self.bundle), *parts]
        if subprocess.run(command, cwd=ROOT).returncode:
            raise RuntimeError(f"{', '.join(parts)} cannot be unpacked")
        return str(self.env / "bin/python")

    def together(
        self,
        commands: Mapping[str, Sequence[str]],
        limit_s: float,
        stagger_s: float = 0.0,
        env: Mapping[str, str] | None = None,
    ) -> list[Job]:
        """Run commands side by side, each with a log, until they end or their time is up.

        Args:
            commands: By name.
            limit_s: For all of them, while there is time at all.
            stagger_s: Between two starts.
            env: More environment; ``{}`` in it is the command's name.
        """
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        usual = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        end = time.monotonic() + min(limit_s, self.left)
        jobs = [Job(name, [*cmd], self.work / f"{name}.log") for name, cmd in commands.items()]
        began = time.monotonic()
        for number, job in enumerate(jobs):
            while (ahead := began + number * stagger_s - time.monotonic()) > 0:
                time.sleep(ahead)
            print(f"==> {job.name}", flush=True)
            own = {key: value.format(job.name) for key, value in (env or {}).items()}
            with job.log.open("wb") as log:
                job.child = subprocess.Popen(
                    job.command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL, start_new_session=True,
                    env={**os.environ, **usual, **own},
                )  # fmt: skip
        while going := [job for job in jobs if job.status is None]:
            for job in going:
                assert job.child is not None
                job.status = job.child.poll()
                if job.status is None and time.monotonic() > end:
                    job.status = stopped(job.child)
                    print(f"    {job.name}: its time was up", flush=True)
                if job.status is not None:
                    job.seconds = round(time.monotonic() - began, 1)
                    print(f"    {job.name}: status {job.status} after {job.seconds} s", flush=True)
            time.sleep(0.2)
        return jobs

    def keep(self, part: str, result: dict[str, Any], seconds: float) -> None:
        """What came of a part."""
        result["seconds"] = round(seconds, 1)
        self.results[part] = {"ok": bool(result.get("ok")), "seconds": result["seconds"]}
        (self.out / f"{part}.json").write_text(json.dumps(result, indent=1) + "\n")
        summary = {"ok": all(r["ok"] for r in self.results.values()), "parts": self.results}
        (self.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")

    def pack(self) -> None:
        """Logs, traces and plots into one file; models are made again elsewhere."""

        def chosen(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
            return None if "/models" in info.name else info

        with tarfile.open(self.out / "logs.tar.xz", "w:xz", preset=3) as archive:
            archive.add(self.work, "logs", filter=chosen)
        shutil.rmtree(self.work, ignore_errors=True)


def stopped(child: subprocess.Popen[bytes]) -> int:
    """End a command that has taken too long, and all that it has started in its session.

    As Ctrl-C does: pytest then tells what it has found so far, and e2e ends its servers.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    return 124


def tail(log: Path, lines: int = 12) -> list[str]:
    """The last lines of a log."""
    return [line[:300] for line in log.read_text(errors="replace").splitlines()[-lines:]]


def tested(junit: Path) -> dict[str, Any]:
    """What pytest has found; nothing is not ok."""
    try:
        suites = ElementTree.parse(junit).getroot()
    except (OSError, ElementTree.ParseError) as error:
        return {"ok": False, "error": f"no result of pytest: {error}"}
    found: dict[str, Any] = {"passed": 0, "skipped": {}, "failed": {}}
    for case in suites.iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        bad = [child for child in case if child.tag in ("failure", "error")]
        skip = case.find("skipped")
        if bad:
            found["failed"][name] = (bad[0].get("message") or "")[:500]
        elif skip is not None:
            reason = skip.get("message") or ""
            found["skipped"][reason] = found["skipped"].get(reason, 0) + 1
        else:
            found["passed"] += 1
    found["ok"] = found["passed"] > 0 and not found["failed"]
    return found


# -------------------------------------------------------------------------------- parts
def pytest(python: str, junit: Path, *more: str) -> list[str]:
    """Command line of a session of tests."""
    return [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={junit}", *more]


def sessions(run: Run, commands: Mapping[str, Sequence[str]], limit_s: float) -> dict[str, Any]:
    """Sessions of tests side by side. Their traces are kept, not checked."""
    for name in commands:
        (run.work / "traces" / name).mkdir(parents=True, exist_ok=True)
    # What the parts bring must be there; a GPU must be there in any case.
    env = {"EC_SESSION_TRACES": f"{run.work}/traces/{{}}", "EC_REQUIRE": "all"}
    results: dict[str, Any] = {}
    for job in run.together(commands, limit_s, env=env):
        results[job.name] = tested(run.work / f"{job.name}.xml")
        results[job.name]["status"] = job.status
        results[job.name]["ok"] &= job.status == 0
        if not results[job.name]["ok"]:
            results[job.name]["log"] = tail(job.log, 40)
        print("\n".join(tail(job.log, 6)), flush=True)
    return {"ok": all(result["ok"] for result in results.values()), **results}


def tests(run: Run, _: str) -> dict[str, Any]:
    """The tests of copies that are marked `cuda`."""
    chosen = ["-m", "cuda", "tests/ec_connector/copies"]
    command = pytest(run.python(), run.work / "tests.xml", *chosen)
    return sessions(run, {"tests": command}, 200)


def sanitizer(run: Run, _: str) -> dict[str, Any]:
    """A few of them under compute-sanitizer."""
    places = [shutil.which("compute-sanitizer"), *Path("/usr/local").glob("cuda*/bin/compute-*")]
    found = next((str(place) for place in places if place), None)
    if found is None:
        return {"ok": False, "error": "compute-sanitizer is not installed"}
    tool = [found, "--tool", "memcheck", "--leak-check", "no", "--error-exitcode", "9"]
    junit = run.work / "sanitizer.xml"
    chosen = ["-m", "cuda", "-k", _SANITIZED, "tests/ec_connector/copies"]
    return sessions(run, {"sanitizer": [*tool, *pytest(run.python(), junit, *chosen)]}, 200)


def bench(run: Run, _: str) -> dict[str, Any]:
    """All benchmarks."""
    command = [run.python(), "-m", "ec_connector.cli", "bench", "all", "--json"]
    command += ["--plot", str(run.work / "plots")]
    # JSON alone on stdout: what else is said goes elsewhere.
    quiet = ["bash", "-c", '"$@" 2>"$0"', str(run.work / "bench.err"), *command]
    (job,) = run.together({"bench": quiet}, 320)
    try:
        document: dict[str, Any] = json.loads(job.log.read_text())
    except ValueError:
        return {"ok": False, "status": job.status, "log": tail(job.log)}
    for row in document["rows"]:
        numbers = f"{row['ratio']:>8.3g} {row['ours']:>9.4g} {row['baseline']:>9.4g}"
        print(f"{row['bench']:8} {numbers} {row['unit']:8} {row['case']}", flush=True)
    return {"ok": job.status == 0, **document}


def smoke(run: Run, _: str) -> dict[str, Any]:
    """What the machine is, and whether the bundle loads."""
    command = [run.python("data", "vllm", "packages"), "tools/gpu_smoke.py"]
    (job,) = run.together({"smoke": command}, 180)
    print("\n".join(tail(job.log, 60)), flush=True)
    text = job.log.read_text(errors="replace")
    with contextlib.suppress(ValueError):
        found: dict[str, Any] = json.loads(text[text.index("{\n") :])
        return found
    return {"ok": False, "log": tail(job.log, 60)}


def data(run: Run, _: str) -> dict[str, Any]:
    """Data processes beside CUDA copies; by themselves, with this machine's NIXL."""
    python = run.python("data")
    where = {name: run.work / f"{name}.xml" for name in ("cuda", "processes")}
    return sessions(
        run,
        {
            "cuda": pytest(python, where["cuda"], "-m", "cuda", *_CUDA_TESTS),
            "processes": pytest(
                python, where["processes"], "-m", "not cuda and not vllm", *_DATA_TESTS
            ),
        },
        400,
    )


def vllm(run: Run, chosen: str) -> dict[str, Any]:
    """Real servers: each group a run of its own, all of them side by side."""
    names = [name for name in (chosen or ",".join(GROUPS)).split(",") if name]
    if unknown := [name for name in names if name not in GROUPS]:
        return {"ok": False, "error": f"no such groups: {', '.join(unknown)}"}
    python = run.python("data", "vllm", "packages")
    commands = {
        f"vllm-{name}": [
            *(python, "-m", "tests.e2e.run", "--platform", run.platform, "--unchecked"),
            *("--only", name, "--keep", str(run.work / f"vllm-{name}")),
            *("--start-timeout", str(run.left / 2), "--idle", "10"),
        ]
        for name in names
    }
    result: dict[str, Any] = {"groups": {}}
    for job in run.together(commands, run.left, STAGGER_S):
        report = run.work / job.name / "report.json"
        try:
            found = json.loads(report.read_text())
        except (OSError, ValueError) as error:
            found = {"ok": False, "error": f"no report: {error}", "log": tail(job.log, 40)}
        result["groups"][job.name.removeprefix("vllm-")] = {**found, "status": job.status}
        print("\n".join(tail(job.log, 45 if not found["ok"] else 22)), flush=True)
    groups = result["groups"].values()
    return {"ok": all(group["ok"] and group["status"] == 0 for group in groups), **result}


PARTS: Final = {part.__name__: part for part in (tests, sanitizer, bench, smoke, data, vllm)}


# -------------------------------------------------------------------------------- check
def check(folder: Path, out: Path) -> int:
    """The traces of a run against the specification; exit status.

    Args:
        folder: ``OUT`` of the run.
        out: For its reports, with what became of the traces.
    """
    out.mkdir(parents=True, exist_ok=True)
    unpacked = Path(tempfile.mkdtemp(prefix="ec-gpu-check-"))
    statuses = []
    try:
        with tarfile.open(folder / "logs.tar.xz") as archive:
            archive.extractall(unpacked, filter="data")
        for group in sorted((unpacked / "logs").glob("vllm-*/report.json")):
            print(f"==> {group.parent.name}", flush=True)
            command = [sys.executable, "-m", "tests.e2e.run", "--check", str(group.parent)]
            statuses.append(subprocess.run(command, cwd=ROOT).returncode)
            shutil.copyfile(group, out / f"{group.parent.name}.json")
        for session in sorted((unpacked / "logs/traces").glob("*")):
            if not any(session.rglob("*.ndjson")):
                continue
            print(f"==> traces of the tests of {session.name}", flush=True)
            env = {**os.environ, "EC_SESSION_TRACES": str(session)}
            command = [sys.executable, "-m", "pytest", "-q", "tests/test_traces_of_this_run.py"]
            statuses.append(subprocess.run(command, cwd=ROOT, env=env).returncode)
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)
    if not statuses:
        print(f"{folder} has no traces", file=sys.stderr)
    return 0 if statuses and not any(statuses) else 1


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="tools/gpu.sh", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    out = Path(os.environ.get("OUT") or ROOT / "out/gpu-run")
    parser.add_argument("parts", nargs="*", metavar="PART", default=["tests", "sanitizer", "bench"])
    parser.add_argument("--out", type=Path, default=out, help="for results; OUT says it too")
    parser.add_argument("--env", type=Path, default=Path("/tmp/ec-gpu"), help="for the bundle")
    parser.add_argument("--bundle", type=Path, default=ROOT / "out/gpu", help="where it is")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for all parts")
    parser.add_argument("--platform", default="cuda", help="cpu: a rehearsal")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="OUT of such a run")
    options = parser.parse_args()
    if options.check is not None:
        return check(options.check.resolve(), options.out.resolve())
    if unknown := [part for part in options.parts if part.partition(":")[0] not in PARTS]:
        parser.error(f"no such parts: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    out, bundle = options.out.resolve(), options.bundle.resolve()
    run = Run(out, options.env, bundle, options.limit, options.platform)
    try:
        for part in options.parts:
            name, _, chosen = part.partition(":")
            began = time.monotonic()
            try:
                result = PARTS[name](run, chosen)
            except (RuntimeError, OSError) as error:
                result = {"ok": False, "error": f"{type(error).__name__}: {error}"}
            run.keep(name, result, time.monotonic() - began)
    finally:
        run.pack()
    print(json.dumps(run.results), flush=True)
    return 0 if all(result["ok"] for result in run.results.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
