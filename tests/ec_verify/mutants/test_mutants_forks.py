# SPDX-License-Identifier: Apache-2.0
"""Trials of changes in forks: what is a verdict, what is none, and what is left behind.

Each test runs trials in a process of its own, on a test file that does what ``probe``
does; the changes replace that.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

# Slow: each test runs a pytest of its own that forks.
pytestmark = pytest.mark.slow

HEAD = """
import builtins, functools, json, os, pathlib, signal, sys
from ec_verify.mutants import trials

root = pathlib.Path(sys.argv[1])
builtins.probe = lambda: None

def loop():
    while True:
        pass

def end(number):
    os.kill(os.getpid(), number)
    loop()

def instead(probe):
    return lambda: setattr(builtins, "probe", probe)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with one small test, and an empty folder for whatever is temporary."""
    folder = tmp_path / "tests" / "ec_protocol"
    folder.mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    (folder / "test_small.py").write_text(
        "def test_probe(tmp_path):\n    (tmp_path / 'file').write_text('')\n    probe()\n"
    )
    return tmp_path


def process(root: Path, script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + textwrap.dedent(script), str(root)],
        env={**os.environ, "TMPDIR": str(root / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(root: Path, script: str) -> str:
    """What a script writes that ends well."""
    running = process(root, script)
    out, err = running.communicate(timeout=100)
    assert running.returncode == 0, err
    return out


OUTCOMES = """
changes = {
    "nothing": trials.Trial("", lambda: None),
    "fails": trials.Trial("", instead(lambda: 1 / 0)),
    "does not end": trials.Trial("", instead(loop)),
    "dies": trials.Trial("", instead(lambda: end(signal.SIGUSR1))),
    "is not asked": trials.Trial("", instead(lambda: 1 / 0), function="holds:Holds.release"),
    "was killed": trials.Trial("", instead(lambda: end(signal.SIGKILL))),
    "left": trials.Trial("", instead(lambda: os._exit(3))),
    "cannot change": trials.Trial("", lambda: 1 / 0),
    "dies of the change": trials.Trial("", lambda: end(signal.SIGUSR1)),
    "leaves by the change": trials.Trial("", lambda: os._exit(1)),
    "does not end the change": trials.Trial("", loop),
}
told = []
done = trials.run_trials(
    list(changes.values()), root, parallel=2, files=("test_small.py",), timeout=0.5,
    done=lambda index, outcome: told.append(index),
)
assert sorted(told) == list(range(len(changes)))
print(json.dumps({name: (done[i].killed_by, done[i].broken) for i, name in enumerate(changes)}))
"""


@pytest.mark.timeout(120)
def test_a_test_that_fails_kills_and_a_trial_that_breaks_has_no_verdict(root):
    outcomes = json.loads(said(root, OUTCOMES))
    no_change = "the change could not be made: "
    assert outcomes == {
        "nothing": [None, ""],
        "fails": ["tests/ec_protocol/test_small.py::test_probe", ""],
        "does not end": ["timeout", ""],
        "dies": [f"crash ({-signal.SIGUSR1})", ""],
        "is not asked": [None, ""],
        "was killed": [None, f"the trial ended with status {-signal.SIGKILL}"],
        "left": [None, "the trial ended with status 3"],
        "cannot change": [None, f"{no_change}ZeroDivisionError: division by zero"],
        "dies of the change": [None, f"{no_change}ended the process ({-signal.SIGUSR1})"],
        "leaves by the change": [None, f"{no_change}ended the process (1)"],
        "does not end the change": [None, f"{no_change}took too long"],
    }
    assert list((root / "tmp").iterdir()) == [], "what the tests wrote is gone"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("probe", "message"),
    [
        ("loop", "a test does not end"),
        ("lambda: 1 / 0", "tests/ec_protocol/test_small.py::test_probe fails"),
        ("lambda: os._exit(3)", "the trial ended with status 3"),
    ],
)
def test_tests_that_fail_without_any_change_are_no_measure(root, probe, message):
    script = f"""
    builtins.probe = {probe}
    try:
        trials.run_trials([], root, parallel=1, files=("test_small.py",), timeout=0.05)
    except trials.ECError as exc:
        print(exc)
    """
    expected = f"the tests of the core are no measure: without any change {message}\n"
    assert said(root, script) == expected


INTERRUPTED = """
from ec_verify.mutants import command as cli, source
from typer.testing import CliRunner

def wait():
    with open(root / "pids", "a") as file:
        print(os.getpid(), file=file)
    while True:
        signal.pause()

class Mutant(source.SourceMutant):
    def trial(self):
        return trials.Trial(self.id, instead(wait))

def mutants(module):
    for m in list(source_mutants(module))[:4]:
        yield Mutant(*(getattr(m, name) for name in m.__dataclass_fields__))

source_mutants, source.source_mutants = source.source_mutants, mutants
cli.checkout_dir = lambda: root
cli.run_trials = functools.partial(trials.run_trials, files=("test_small.py",))
from ec_verify import cli
# Whoever runs the tests in the background may have it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
cli.app(["mutants", "--source", "deferral"])
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whoever_interrupts_a_run_ends_its_forks(root, number):
    running = process(root, INTERRUPTED)
    pids = root / "pids"
    deadline = time.monotonic() + 60
    try:
        while not pids.exists() or len(pids.read_text().splitlines()) < 2:
            assert running.poll() is None, running.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        running.send_signal(number)
        _, err = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130, err
    assert "error: interrupted" in err
    for pid in map(int, pids.read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert list((root / "tmp").iterdir()) == []
