# SPDX-License-Identifier: Apache-2.0
"""Steps of make and of CI: one table at the end, whatever happened."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import ROOT, leftovers

Shell = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "EC_STEPS": str(tmp_path / "steps"), "TMPDIR": str(tmp_path)}


@pytest.fixture
def sh(environment: dict[str, str]) -> Shell:
    """A line of a recipe."""

    def run(text: str) -> subprocess.CompletedProcess[str]:
        command = ["/bin/sh", "-c", f". tools/steps.sh; {text}"]
        return subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True)

    return run


def summary(sh: Shell) -> list[list[str]]:
    """Its rows: columns are at least two blanks apart."""
    done = sh('steps_summary "$EC_STEPS"')
    assert done.returncode == 0, done.stderr
    return [re.split(r" {2,}", line.strip()) for line in done.stdout.splitlines()]


def test_a_step_keeps_the_status_and_says_how_it_went(sh):
    good, bad = sh('step "a, good (one)"; true && true'), sh('step "bad"; false || exit 3; true')
    assert (good.returncode, bad.returncode) == (0, 3)
    assert re.fullmatch(r"==> a, good \(one\)\n    done in \d+ s\n", good.stdout)
    assert re.fullmatch(r"==> bad\n    FAILED after \d+ s: bad\n", bad.stdout)
    assert [(row[0], row[-1]) for row in summary(sh)[1:]] == [
        ("a, good (one)", "ok"),
        ("bad", "FAILED (status 3)"),
        ("from the first to the last", "1 of 2 are ok"),
    ]


def test_without_a_file_for_the_summary_nothing_is_written(sh, environment, tmp_path):
    del environment["EC_STEPS"]
    assert sh('step "alone"; true').returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_the_summary_of_no_step_at_all(sh, tmp_path):
    (tmp_path / "steps").touch()
    assert summary(sh)[-1][-1] == "0 of 0 are ok"


def test_seconds_are_those_of_each_step(sh, tmp_path):
    lines = ["begin\t1\t100\tlong", "begin\t2\t105\tbeside", "end\t1\t160\t0", "end\t2\t107\t0"]
    (tmp_path / "steps").write_text("".join(f"{line}\n" for line in lines))
    assert [row[1] for row in summary(sh)[1:]] == ["60", "2", "7"]


@pytest.mark.parametrize(
    ("signum", "verdict"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "interrupted")]
)
def test_a_step_that_is_interrupted(sh, environment, tmp_path, signum, verdict):
    command = '. tools/steps.sh; step "slow"; echo up; cat; true'
    child = subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Whoever runs the tests in the background has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert "up\n" in iter(child.stdout.readline, "")
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert leftovers.maker(folder.name) == (child.pid, leftovers.start_of(child.pid))
    os.killpg(child.pid, signum)
    said, _ = child.communicate()
    assert child.returncode == 128 + signum
    assert "interrupted after" in said
    assert summary(sh)[1][-1] == verdict
    assert not folder.exists()


def test_a_step_that_is_killed_did_not_end(sh):
    assert sh('step "killed"; kill -9 $$').returncode == -signal.SIGKILL
    assert summary(sh)[1][-1] == "did not end"


def test_temporary_files_of_a_step_go_with_it(sh, tmp_path):
    done = sh('step "one"; mktemp -d')
    assert Path(done.stdout.splitlines()[1]).is_relative_to(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["steps"]


@pytest.mark.e2e
def test_pytest_says_in_the_summary_what_it_found(sh):
    session = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    test = "tests/killed_session.py::test_that_uses_everything_and_ends"
    done = sh(f'step "pytest"; EC_TEST_TRACES=off {shlex.join([*session, test])}')
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary(sh)[1][-1] == "ok: 1 passed"
    missing = sh(f'step "pytest"; {shlex.join([*session, test])}-that-is-not-there')
    assert missing.returncode != 0
    assert summary(sh)[2][-1] == "FAILED (status 4)"


# ------------------------------------------------------------------------------ .ci/run
#: In place of the Makefile: what each target of `.ci/run` does.
MAKEFILE = """
.PHONY: venv beside test proofs servers reap first good
STEP = @. tools/steps.sh; step
venv:
	$(STEP) venv; {venv}
beside:
	$(STEP) beside; {beside}
good:
	$(STEP) good; true
test:
	$(STEP) pytest; {test}
first:
	$(STEP) proofs; {proofs}
proofs: first good
servers:
	$(STEP) servers; {servers}
reap:
	@echo reaped
"""


#: What `.ci/run` makes, in this order.
TARGETS = ("venv", "beside", "test", "proofs", "servers")


class Ci:
    """``.ci/run`` in a folder of its own, where it finds other targets than ours."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("tools", ".ci"):
            (folder / name).mkdir()
        shutil.copy(ROOT / "tools" / "steps.sh", folder / "tools")
        shutil.copy(ROOT / ".ci" / "run", folder / ".ci")

    def start(self, limit_s: int = 100, **does: str) -> subprocess.Popen[str]:
        does = dict.fromkeys(TARGETS, "true") | does
        (self._folder / "Makefile").write_text(MAKEFILE.format(**does))
        return subprocess.Popen(
            ["bash", ".ci/run"],
            cwd=self._folder,
            env={**os.environ, "EC_LIMIT_S": str(limit_s), "TMPDIR": str(self._folder)},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def end(self, child: subprocess.Popen[str]) -> tuple[int, list[list[str]]]:
        """Status and rows of the summary, after which nothing comes."""
        said, _ = child.communicate(timeout=100)
        before, _, table = said.partition("==> summary\n")
        assert before.endswith("reaped\n")
        rows = [re.split(r" {2,}", line.strip()) for line in table.splitlines()[1:]]
        assert not list(self._folder.glob("tmp.*"))
        return child.returncode, [[row[0], row[-1]] for row in rows]


@pytest.fixture
def ci(tmp_path: Path) -> Ci:
    return Ci(tmp_path)


def test_ci_runs_everything_and_ends_with_its_summary(ci):
    status, rows = ci.end(ci.start())
    assert status == 0
    assert sorted(rows[:-1]) == sorted(
        [name, "ok"] for name in ("venv", "beside", "pytest", "good", "proofs", "servers")
    )
    assert rows[-1] == ["from the first to the last", "6 of 6 are ok"]


@pytest.mark.parametrize("failing", TARGETS)
def test_ci_goes_on_after_a_failed_step_and_fails(ci, failing):
    status, rows = ci.end(ci.start(**{failing: "exit 3"}))
    assert status == 2
    assert ["good", "ok"] in rows
    named = {"test": "pytest"}.get(failing, failing)
    assert [named, "FAILED (status 3)"] in rows
    assert rows[-1][-1] == "5 of 6 are ok"


def test_ci_that_is_ended_ends_everything_and_shows_the_summary(ci, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    child = ci.start(test=f"echo up >{fifo}; sleep 600")
    with fifo.open() as waiting:
        assert waiting.read() == "up\n"
    child.terminate()
    status, rows = ci.end(child)
    assert status == 143
    assert ["pytest", "interrupted"] in rows


def test_ci_ends_itself_when_it_takes_too_long(ci):
    status, rows = ci.end(ci.start(limit_s=1, proofs="sleep 600"))
    assert status == 143
    assert ["proofs", "interrupted"] in rows


def test_ci_and_test_all_do_the_same():
    """``.ci/run`` has the mutants beside the tests; both must come to every step."""

    def steps(*targets: str) -> set[str]:
        make = ["make", "-n", "VENV=/nowhere/a", "E2E=/nowhere/b", *targets]
        said = subprocess.run(make, cwd=ROOT, text=True, capture_output=True, check=True).stdout
        return set(re.findall(r'step "(.+?)"', said))

    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    targets = re.findall(rf"^(?:run|make .*) ({'|'.join(TARGETS)})\b", run, re.M)
    assert targets == list(TARGETS)
    assert steps("test-all") == steps(*targets)
    assert steps("test") < steps("test-all")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert steps("test-all") == set(re.findall(r"\$\(call step,([^,]+),", makefile))
