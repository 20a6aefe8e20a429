# SPDX-License-Identifier: Apache-2.0
"""The driver of processes itself: no line is missed, and no process is left behind."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.world import processes
from tests.world.processes import Child

SAYS = "import sys; sys.stdout.write({text!r}); sys.stdout.flush(); {then}"
#: Ends when its stdin closes, as all children do.
WAITS = "sys.stdin.read()"


class Watched(Child):
    """Is known of before it has said a word."""

    processes: ClassVar[list[subprocess.Popen[bytes]]] = []

    def kill(self) -> None:
        self.processes.append(self.process)
        super().kill()


def made(text: str, then: str = WAITS, **options: Any) -> Watched:
    return Watched("-c", SAYS.format(text=text, then=then), **options)


def test_lines_that_come_together_are_all_answers():
    one = made("1\n[2, 3]\n4")
    try:
        assert [one.answer(), one.answer()] == [1, [2, 3]]
        with pytest.raises(TimeoutError, match=str(one.pid)):
            one.answer(0.0)
    finally:
        one.close()
    assert one.process.returncode == 0


def test_an_end_is_told():
    one = made("1\n", "sys.exit(3)")
    assert one.answer() == 1
    with pytest.raises(EOFError, match="ended: 3"):
        one.answer()
    one.close()


@pytest.mark.parametrize("stopped", [True, False])
def test_who_does_not_end_is_killed(stopped):
    one = made("1\n", WAITS if stopped else "import time; time.sleep(1000)")
    assert one.answer() == 1
    if stopped:
        one.stop()
    with pytest.raises(subprocess.TimeoutExpired):
        one.close(0.01)
    assert one.process.returncode == -9


@pytest.mark.parametrize(
    ("text", "then", "error"),
    [("", "sys.exit(1)", EOFError), ("no json\n", WAITS, ValueError)],
    ids=["dies", "nonsense"],
)
def test_who_does_not_greet_is_not_left_behind(text, then, error):
    with pytest.raises(error):
        made(text, then, greets=True)
    assert Watched.processes.pop().returncode is not None


def test_a_greeting_is_kept():
    one = made("[1]\n2\n", greets=True)
    assert (one.hello, one.answer()) == ([1], 2)
    one.close()


def test_a_thread_that_has_ended_counts_as_stopped(tmp_path: Path):
    assert processes._stands(tmp_path / "task" / "1" / "stat")
    stat = tmp_path / "stat"
    for state in "TRS":
        stat.write_text(f"1 (a b) {state} 1 2")
        assert processes._stands(stat) == (state == "T")
