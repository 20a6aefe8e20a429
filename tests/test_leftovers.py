# SPDX-License-Identifier: Apache-2.0
"""Nothing of a session stays, of a killed one not after the next; nothing live is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests import ROOT, leftovers, needs

NOBODY = 4_194_305  # above the largest process id of Linux


def session(test: str) -> list[str]:
    options = ["-q", "-s", "-p", "no:cacheprovider"]
    return [sys.executable, "-m", "pytest", *options, f"tests/killed_session.py::{test}"]


def environment() -> dict[str, str]:
    """Without this session's own folder, and without traces of nodes."""
    return {**os.environ, "TMPDIR": str(leftovers.temporary_root()), "EC_TEST_TRACES": "off"}


def run(*command: str, dead: int) -> None:
    env = {**environment(), "EC_TEST_DEAD": str(dead)}
    done = subprocess.run(command, cwd=ROOT, env=env, text=True, capture_output=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr


def whole_session(dead: int) -> None:
    run(*session("test_that_uses_everything_and_ends"), dead=dead)


def clean(dead: int) -> None:
    run(sys.executable, "-m", "tests.leftovers", dead=dead)


def left_by(pid: int) -> list[str]:
    roots = (leftovers.SHM, leftovers.temporary_root())
    found = [path for root in roots for path in root.iterdir()]
    return sorted(str(p) for p in found if (leftovers.maker(p.name) or (0,))[0] == pid)


@pytest.mark.e2e
@pytest.mark.parametrize("next_one", [whole_session, clean])
def test_a_killed_session_leaves_nothing_after_the_next_start_or_clean(next_one):
    killed = subprocess.Popen(
        session("test_that_is_killed"),
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert "ready\n" in iter(killed.stdout.readline, "")
        there = left_by(killed.pid)
        # Its folder, one of `make`, one in /dev/shm, a region.
        assert len(there) == 4, there
        next_one(0)
        assert left_by(killed.pid) == there, "what a live session uses was removed"
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
    assert left_by(killed.pid) == there
    next_one(killed.pid)
    assert left_by(killed.pid) == []


@pytest.mark.e2e
def test_a_whole_session_leaves_nothing():
    shm, temporary = (set(os.listdir(p)) for p in (leftovers.SHM, leftovers.temporary_root()))
    child = subprocess.Popen(
        session("test_that_uses_everything_and_ends"),
        cwd=ROOT,
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
    )
    said, _ = child.communicate(timeout=110)
    assert child.returncode == 0, said
    assert left_by(child.pid) == []
    # Others may run at the same time: what is new must be theirs.
    new = set(os.listdir(leftovers.SHM)) - shm
    new |= set(os.listdir(leftovers.temporary_root())) - temporary
    assert [name for name in new if "forgotten" in name or leftovers.is_left(name)] == []


# ------------------------------------------------------------------------------- names
def test_a_process_is_known_by_its_start():
    assert leftovers.start_of(os.getpid()) == leftovers.start_of(os.getpid())
    assert leftovers.start_of(NOBODY) is None
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    # It has ended, but nobody has asked how.
    assert leftovers.start_of(child.pid) is None
    child.wait()


@pytest.mark.parametrize("kind", ["test", "make", "e2e"])
def test_folders_of_dead_processes_are_left_and_others_not(kind):
    mine = leftovers.prefix(kind)
    start = leftovers.start_of(os.getpid())
    assert start is not None
    assert mine == f"ec-{kind}-{os.getpid()}-{start}-"
    assert not leftovers.is_left(f"{mine}abcdefgh")
    assert leftovers.is_left(f"ec-{kind}-{os.getpid()}-{start + 1}-abcdefgh")
    assert leftovers.is_left(f"ec-{kind}-{NOBODY}-1-abcdefgh")


@pytest.mark.parametrize(
    "name",
    [
        "ec-conformance-{pid}-abcdefgh",
        "vllm_ec_test-{pid}_dp0.mmap",
        "vllm_ec_test-{pid}-ad330dbf_dp12.mmap",
        "vllm_ec_fake-{pid}-ad330dbf_dp0.mmap",
        "vllm_ec_builtin-{pid}_dp0.mmap",
        "vllm_ec_guide-{pid}-ad330dbf_dp3.mmap",
        "vllm_ec_demo-{pid}-producer-ad330d_dp0.mmap",
        ".vllm_ec_test-{pid}_dp0.mmap.0123456789abcdef0123456789abcdef.tmp",
    ],
)
def test_what_our_programs_make_is_known_by_its_process(name):
    assert leftovers.is_left(name.format(pid=NOBODY))
    assert not leftovers.is_left(name.format(pid=os.getpid()))


@pytest.mark.parametrize(
    "name",
    [
        f"vllm_ec_engine-{NOBODY}_dp0.mmap",  # somebody's server
        f"vllm_ec_test-{NOBODY}_dp0.mmap.bak",
        f"ec-test-{NOBODY}-abcdefgh",
        f"ec-other-{NOBODY}-1-abcdefgh",
        f"my-ec-test-{NOBODY}-1-abcdefgh",
        "sem.mp-8aztuk3q",
    ],
)
def test_other_names_are_not_ours(name):
    assert leftovers.maker(name) is None
    assert not leftovers.is_left(name)


def test_reaping_takes_folders_files_and_links_and_nothing_behind_links(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    root = tmp_path / "root"
    (root / f"ec-test-{NOBODY}-1-a" / "deep").mkdir(parents=True)
    (root / f"ec-test-{NOBODY}-1-b").symlink_to(outside)
    (root / f"vllm_ec_test-{NOBODY}_dp0.mmap").write_text("x")
    live = root / f"{leftovers.prefix()}c"
    live.mkdir()
    assert len(leftovers.reap([root, tmp_path / "missing"])) == 3
    assert list(root.iterdir()) == [live]
    assert [path.name for path in outside.iterdir()] == ["kept"]


def test_what_a_killed_test_mounted_is_unmounted(tmp_path):
    left = tmp_path / f"ec-test-{NOBODY}-1-a"
    (left / "small").mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "tmpfs", str(left / "small")]
    done = subprocess.run(mount, capture_output=True)
    needs.optional(done.returncode == 0, "needs the right to mount a tmpfs")
    assert leftovers.reap([tmp_path]) == [left]
    assert not left.exists()


def test_a_folder_for_temporary_files_is_not_nested(monkeypatch):
    root = leftovers.temporary_root()
    monkeypatch.setattr("tempfile.tempdir", str(root / "ec-make-1-1-abc" / "inner"))
    assert leftovers.temporary_root() == root


def test_make_clean_reaps():
    said = subprocess.run(
        ["make", "-n", "clean"], cwd=ROOT, text=True, capture_output=True, check=True
    )
    assert "-m tests.leftovers" in said.stdout
