# SPDX-License-Identifier: Apache-2.0
"""What is known of each target, ten seconds of looking for more, and that it would be noticed."""

from __future__ import annotations

import platform
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT, needs
from tests.fuzz import __main__ as fuzzing
from tests.fuzz.__main__ import CORPUS, FOUND, KEEP, KEEP_BYTES, fuzz
from tests.fuzz.targets import TARGETS

pytestmark = pytest.mark.clause("EC-8.1", "EC-8.8")


def _atheris() -> None:
    needs.optional(platform.machine() == "x86_64", "atheris has wheels for x86-64 only")
    needs.installed("atheris")


def kept(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_known_is_read_rightly(name: str) -> None:
    target = TARGETS[name]
    known = [path.read_bytes() for path in kept(CORPUS / name) + kept(FOUND / name)]
    assert known, "campaigns leave something (python -m tests.fuzz --keep)"
    for data in [*target.seeds(), *known]:
        target.run(data)


def test_the_corpus_is_small_and_of_these_targets() -> None:
    assert {path.parent.name for path in kept(CORPUS) + kept(FOUND)} <= set(TARGETS)
    for name in TARGETS:
        files = kept(CORPUS / name)
        assert len(files) <= KEEP
        assert all(path.stat().st_size <= KEEP_BYTES for path in files)


@pytest.mark.timeout(180)
def test_ten_seconds_of_looking_find_nothing() -> None:
    _atheris()
    seed = random.SystemRandom().randrange(1, 1 << 31)
    outcome = fuzz("any", 0, 10, seed)
    assert outcome.found == [], f"seed {seed}: {outcome.said}"
    assert outcome.inputs > 100
    assert outcome.edges > 100


@pytest.mark.timeout(180)
def test_a_reader_that_raises_something_else_is_found(tmp_path: Path) -> None:
    """The seeds of a target alone do not show it: libFuzzer has to make it up."""
    _atheris()
    script = tmp_path / "broken.py"
    script.write_text(
        "import atheris\n"
        "def broken(data):\n"
        "    if data[:1] == b'E' and data[1:2] == b'C':\n"
        "        raise KeyError('data')\n"
        "atheris.instrument_func(broken)\n"
        f"atheris.Setup(['x', '-runs=200000', '-artifact_prefix={tmp_path}/'], broken)\n"
        "atheris.Fuzz()\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "KeyError" in done.stdout + done.stderr


@pytest.mark.parametrize(("left", "status"), [(True, 77), (False, 1), (False, -9)])
def test_what_libfuzzer_finds_is_kept_and_told(
    left: bool, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is an end of which it leaves no input."""

    def child(name: str, *arguments: str) -> tuple[int, str]:
        (prefix,) = (a.partition("=")[2] for a in arguments if a.startswith("-artifact_prefix"))
        if left:
            Path(f"{prefix}crash-1").write_bytes(b"bad")
        return status, "stat::number_of_executed_units: 5\n#5 NEW cov: 7 ft: 9 corp: 1\n"

    monkeypatch.setattr(fuzzing, "_child", child)
    monkeypatch.setattr(fuzzing, "ROOT", tmp_path)
    monkeypatch.setattr(fuzzing, "FOUND", tmp_path / "found")
    outcome = fuzz("keys", 5, 0, 1)
    assert (outcome.inputs, outcome.edges) == (5, 7)
    assert outcome.found == ["found/keys/crash-1" if left else f"(libFuzzer ended with {status})"]
    kept_as = [path.read_bytes() for path in kept(tmp_path / "found")]
    assert kept_as == ([b"bad"] if left else [])
