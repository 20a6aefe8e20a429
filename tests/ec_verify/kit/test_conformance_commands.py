# SPDX-License-Identifier: Apache-2.0
"""The kit from outside: its command, adapters over stdio, the pytest plugin."""

from __future__ import annotations

import importlib.metadata
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.needs import needs

needs("msgspec")

from ec_verify.kit import stdio
from ec_verify.kit.adapter import OPERATIONS, Adapter, Unsupported
from ec_verify.kit.language.schedule import case_dir, load_dir
from ec_verify.kit.runner import Verdict, connector, run_cases
from ec_verify.kit.world.links import ImplementationError, Subprocess

# Slow: each test starts the command, which starts what it tests.
pytestmark = pytest.mark.slow

TINY = f"{sys.executable} -m ec_verify.kit.examples.tiny"


def conformance(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ec_verify.cli", "conformance", *words],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
    )


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


# -------------------------------------------------------------------- the command
def test_a_name_of_no_case_is_answered_with_the_nearest():
    done = conformance("list", "lease and fense")
    assert done.returncode == 2
    assert "did you mean lease and fence, " in " ".join(done.stderr.split())
    assert len(done.stderr) < 250


def test_run_prints_json_alone_and_a_history_can_be_rechecked(tmp_path: Path):
    scenarios = tmp_path / "scenarios"
    scenarios.mkdir()
    case = {
        "id": "mine",
        "clause": "EC-3.1",
        "area": "tier",
        "title": "wrong on purpose",
        "setup": {"nodes": {"N": {"p2p": False}}},
        "steps": [{"servable": "A", "at": "N", "expect": True}],
    }
    (scenarios / "mine.json").write_text(json.dumps({"version": 1, "cases": [case]}))
    words = ("--adapter-cmd", TINY, "--scenarios", str(scenarios), "--json", "EC-3.1", "mine")
    done = conformance("run", *words, "--histories", str(tmp_path / "h"))
    result = json.loads(done.stdout)
    assert done.returncode == 1
    assert result["ok"] is False
    assert {row["id"]: row["verdict"] for row in result["cases"]} == {
        "EC-3.1/1": "OK",
        "mine": "FAILED",
    }
    again = conformance("recheck", "--json", str(tmp_path / "h" / "mine.json"))
    assert again.returncode == 1
    assert json.loads(again.stdout)["cases"][0]["verdict"] == "FAILED"


def test_list():
    rows = json.loads(conformance("list", "--json", "F6").stdout)["cases"]
    assert {row["id"] for row in rows} >= {"EC-3.3/1", "EC-3.3/2"}
    assert all("F6" in row["tags"] and row["requirement"] for row in rows)


@pytest.mark.parametrize(
    "words",
    [
        ("run",),
        ("run", "--adapter", "nobody"),
        ("run", "--adapter", "ours", "-".join(("EC", "99.1"))),
        ("list", "x"),
    ],
)
def test_a_command_line_that_makes_no_sense(words: tuple[str, ...]):
    done = conformance(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("error:")


def test_ec_protocol_needs_msgspec_only_for_this():
    code = (
        "import sys; sys.modules['msgspec'] = None\n"
        "from ec_verify.cli import app\n"
        "from typer.testing import CliRunner\n"
        "result = CliRunner().invoke(app, ['conformance', 'list'])\n"
        "assert CliRunner().invoke(app, ['generate', '--check']).exit_code == 0\n"
        "assert result.exit_code == 2, result\n"
    )
    done = subprocess.run(python(code), capture_output=True, text=True, cwd=ROOT, timeout=100)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------- adapters over stdio
def test_the_worked_example_passes_what_it_supports():
    cases = [c for c in load_dir(case_dir()) if c.area in ("tier", "save/load")]
    _, connect = connector(None, TINY)
    results = list(run_cases(cases, connect))
    assert {r.case.id: r.detail for r in results if r.verdict is Verdict.FAILED} == {}
    missed = [r.case.id for r in results if r.verdict is Verdict.NON_STRICT]
    assert missed == ["EC-2.7/7"]
    assert sum(r.verdict is Verdict.OK for r in results) > 40


def test_an_adapter_without_peer_to_peer_reads_is_unsupported_there():
    cases = [case for case in load_dir(case_dir()) if case.clause == "EC-5.5"][:2]
    _, connect = connector(None, TINY)
    assert {r.verdict for r in run_cases(cases, connect)} == {Verdict.UNSUPPORTED}


def test_exit_status_127_is_unsupported():
    link = Subprocess(python("import sys; sys.stdin.readline(); sys.exit(127)"))
    with pytest.raises(Unsupported):
        link.call("start", {})
    link.kill()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.stdin.readline(); sys.exit(3)", "exit status 3"),
        ("import sys; sys.stdin.readline(); print('hello', flush=True)", "start"),
        ("import sys; sys.stdin.readline(); print('[1]', flush=True)", "expected an object"),
        ('print(\'{"error": "no room"}\', flush=True)', "no room"),
        ("print('{\"result\": 7}', flush=True)", "is no object"),
    ],
)
def test_an_adapter_that_dies_or_talks_nonsense_has_failed(code: str, message: str):
    link = Subprocess(
        python(code + "; import time; time.sleep(60)" if "exit" not in code else code)
    )
    with pytest.raises(ImplementationError, match=message):
        link.call("start", {"now": 1.0})
    link.kill()


def test_a_command_that_is_not_there_has_failed():
    with pytest.raises(ImplementationError, match="cannot run"):
        Subprocess("/no/such/adapter")


def test_the_python_side_of_stdio():
    class Small(Adapter):
        def tick(self, *, now: float) -> dict[str, Any]:
            self.emit("connect", peer=["h", 1])
            return {"now": now}

        def stop(self, *, now: float) -> dict[str, Any]:
            raise ValueError("no")

    lines = [
        json.dumps({"op": op, "args": {"now": 2.0}}) for op in ("tick", "stop", "pending", "sing")
    ]
    target = io.StringIO()
    stdio.serve(Small, io.StringIO("\n".join([*lines, "{"])), target)
    tick, stop, pending, sing, broken = map(json.loads, target.getvalue().splitlines())
    assert tick == {"result": {"now": 2.0}, "out": [{"kind": "connect", "peer": ["h", 1]}]}
    assert stop == {"error": "ValueError: no"}
    assert "unsupported" in pending
    assert sing == {"unsupported": "sing"}
    assert "error" in broken


def test_every_operation_of_the_interface_is_described():
    for name, arguments in OPERATIONS.items():
        method = getattr(Adapter, name)
        assert method.__doc__, name
        with pytest.raises(Unsupported):
            method(Adapter(), now=0.0, **dict.fromkeys(arguments))


# --------------------------------------------------------------- the pytest plugin
def plugin_options() -> list[str]:
    installed = importlib.metadata.entry_points(group="pytest11")
    if any(point.name == "ec_conformance" for point in installed):
        return []
    return ["-p", "ec_verify.kit.pytest_plugin"]


def run_pytest(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider"),
            *plugin_options(),
            *words,
            *("--rootdir", str(folder), str(folder)),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    return done.stdout + done.stderr


def test_the_plugin_makes_each_case_a_test(tmp_path: Path):
    words = ("--ec-adapter-cmd", TINY, "--ec-case", "EC-2.7", "-rsx")
    text = run_pytest(tmp_path, *words)
    assert "1 passed" in text, text
    assert re.search(r"[1-9]\d* skipped", text)
    assert "1 xfailed" in text


def test_the_plugin_fails_with_clause_and_requirement(tmp_path: Path):
    words = ("--ec-adapter-cmd", TINY, "--ec-case", "EC-2.7/7", "--ec-strict")
    text = run_pytest(tmp_path, *words, "--ec-histories", str(tmp_path / "h"))
    assert "1 failed" in text, text
    assert "EC-2.7: An entry SHOULD have as few extents as possible" in text
    assert "expected extents of save four = 1" in text
    assert (tmp_path / "h" / "EC-2.7-7.json").is_file()


def test_the_plugin_is_silent_unasked(tmp_path: Path):
    (tmp_path / "test_x.py").write_text("def test_x(): pass\n")
    assert "1 passed" in run_pytest(tmp_path)
