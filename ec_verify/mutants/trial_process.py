# SPDX-License-Identifier: Apache-2.0
"""A fork of the process that tests a change, and what its end means.

Its exit status says what became of the trial: 0 if all tests passed, 1 if one failed. A
test that does not end, or that ends the process, has failed too. All else, as a change
that cannot be made, is a broken trial: it has no verdict.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    import pytest

#: Seconds on the clock for each second of processor time: the host may be busy, but a
#: trial that waits for ever ends too.
_BUSY: Final = 20
#: What a fork writes when its change was made, before the first test.
READY: Final = "\n"
#: Signals that people and systems end processes with: no test does that.
_FROM_OUTSIDE: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


def verdict(code: int, ready: bool, said: str) -> tuple[str | None, str]:
    """``killed_by`` and ``broken`` of a fork that ended with this status.

    Args:
        code: As of ``os.waitstatus_to_exitcode``.
        ready: Whether the change was made.
        said: The fork's words.
    """
    endless = code in (-signal.SIGALRM, -signal.SIGPROF)
    if not ready:
        how = "took too long" if endless else said or f"ended the process ({code})"
        return None, f"the change could not be made: {how}"
    if code == 0:
        return None, ""
    if code == 1:
        return said, ""
    if endless:
        return "timeout", ""
    if code < 0 and -code not in _FROM_OUTSIDE:
        return f"crash ({code})", ""
    return None, f"the trial ended with status {code}{said and ': '}{said}"


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Whoever wants to end the run waits: every fork is known, or is none of ours."""
    held = (signal.SIGINT, signal.SIGTERM)
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, held)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)


def give(cpu_s: float) -> None:
    """From now on, so much processor time for this process."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, cpu_s * _BUSY)


def run_in_child(
    prepare: Callable[[], None], work: Callable[[], tuple[int, str]], pipe: int
) -> NoReturn:
    """Prepare, do the work and leave the process."""
    code = 3
    try:
        # An endless loop ends here, whatever it does: the signals are not caught.
        for number in (signal.SIGALRM, signal.SIGPROF, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        # Ctrl-C at a terminal is for all of its processes: the parent ends the forks.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        prepare()
        _write(pipe, READY)
        code, text = work()
        _write(pipe, text)
    except BaseException as exc:
        with contextlib.suppress(OSError):
            _write(pipe, f"{type(exc).__name__}: {exc}")
    finally:
        os._exit(code)


def _write(pipe: int, text: str) -> None:
    left = memoryview(text.encode())
    while left:
        left = left[os.write(pipe, left) :]


def first_failure(
    items: Sequence[pytest.Item],
    before: Callable[[pytest.Item], None],
    after: Callable[[pytest.Item], None],
) -> str | None:
    """Run tests; the id of the first that fails, ``None`` if all pass.

    Args:
        items: Which, in order.
        before: Called before each.
        after: Called after each that passed.
    """
    from _pytest.runner import runtestprotocol

    for item, following in zip_longest(items, items[1:]):
        before(item)
        for report in runtestprotocol(item, nextitem=following, log=False):
            if report.failed:
                return item.nodeid
        after(item)
    return None
