# SPDX-License-Identifier: Apache-2.0
"""Runs the same tests again and again, each time on a core that was changed a little.

Pytest collects once; then each trial is a fork of that process, which applies its
change to the modules in memory, runs the tests in order and stops at the first that
fails. A trial costs the tests that it runs and nothing else, and whatever it breaks
is gone with the fork. Needs ``os.fork`` and pytest, hence a checkout.
"""

from __future__ import annotations

import contextlib
import io
import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ec_protocol.errors import ECError

if TYPE_CHECKING:
    import pytest

#: The core's own tests: no sockets, no sleeping, no random traffic, and none that
#: compares the tables with what was made of them.
TEST_FILES: Final = (
    "test_timing.py",
    "test_tier.py",
    "test_tier_check.py",
    "test_tier_tells.py",
    "test_copies.py",
    "test_entry.py",
    "test_holds.py",
    "test_peers.py",
    "test_producer.py",
    "test_producer_limits.py",
    "test_consumer.py",
    "test_consumer_acks.py",
    "test_consumer_peers.py",
    "test_consumer_reads.py",
    "test_consumer_unnamed.py",
    "test_consumer_waiters.py",
    "test_consumer_records.py",
    "test_extents.py",
    "test_timing.py",
    "test_actions.py",
    "test_trace.py",
    "test_schedules.py",
)

#: A trial may take this many times the processor time of the tests without any change,
#: but never less than `_LEAST_CPU_S`: what takes longer does not end.
_PATIENCE: Final = 4
_LEAST_CPU_S: Final = 5.0
#: Seconds on the clock for each second of processor time: the host may be busy, but a
#: trial that waits for ever ends too.
_BUSY: Final = 20


@dataclass(frozen=True, slots=True)
class Trial:
    """One change.

    Attributes:
        name: For the report.
        apply: Makes the change, in the forked process.
        first: Names of test files that are the likeliest to notice.
    """

    name: str
    apply: Callable[[], None]
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the tests said.

    Attributes:
        killed_by: The first test that failed, ``"timeout"`` or ``"crash"``; ``None`` if
            all passed.
        seconds: Wall time.
        cpu_s: Processor time.
    """

    killed_by: str | None
    seconds: float
    cpu_s: float = 0.0


@dataclass(slots=True)
class _Child:
    index: int
    started: float
    text: bytes = b""
    pid: int = 0


@dataclass(slots=True)
class ForkPlugin:
    """The pytest plugin that does it; see ``run_trials``."""

    trials: Sequence[Trial]
    parallel: int
    done: Callable[[int, Outcome], None]
    timeout: float | None = None
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    broken: str = ""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of pytest's own loop."""
        if session.testsfailed or not session.items:
            self.broken = "the tests cannot even be collected"
            return True
        untouched = self._run_all(session, [Trial("nothing", lambda: None)])[0]
        if untouched.killed_by is not None:
            self.broken = f"without any change {untouched.killed_by} fails"
            return True
        if self.timeout is None:
            self.timeout = max(_LEAST_CPU_S, _PATIENCE * untouched.cpu_s)
        self.outcomes = self._run_all(session, self.trials, self.done)
        return True

    def _run_all(
        self,
        session: pytest.Session,
        trials: Sequence[Trial],
        done: Callable[[int, Outcome], None] = lambda index, outcome: None,
    ) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        waiting = list(enumerate(trials))[::-1]
        with selectors.DefaultSelector() as selector:
            while waiting or selector.get_map():
                while waiting and len(selector.get_map()) < self.parallel:
                    index, trial = waiting.pop()
                    self._start(session, selector, index, trial)
                for key, _ in selector.select():
                    child: _Child = key.data
                    if part := os.read(key.fd, 65536):
                        child.text += part
                        continue
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    outcomes[child.index] = _outcome(child)
                    done(child.index, outcomes[child.index])
        return outcomes

    def _start(
        self, session: pytest.Session, selector: selectors.BaseSelector, index: int, trial: Trial
    ) -> None:
        ours, theirs = os.pipe()
        child = _Child(index, time.monotonic())
        child.pid = os.fork()
        if child.pid == 0:
            os.close(ours)
            _in_child(session, trial, theirs, self.timeout)
        os.close(theirs)
        selector.register(ours, selectors.EVENT_READ, child)


def _outcome(child: _Child) -> Outcome:
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.monotonic() - child.started
    cpu_s = usage.ru_utime + usage.ru_stime
    code = os.waitstatus_to_exitcode(status)
    killed_by: str | None = None
    if code in (-signal.SIGALRM, -signal.SIGPROF):
        killed_by = "timeout"
    elif code != 0:
        killed_by = child.text.decode("utf-8", "replace") or f"crash ({code})"
    return Outcome(killed_by, seconds, cpu_s)


def _in_child(session: pytest.Session, trial: Trial, pipe: int, timeout: float | None) -> None:
    """Run the tests and leave the process; never returns."""
    code = 3
    try:
        # An endless loop ends here, whatever it does: the signals are not caught.
        for number in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
        if timeout is not None:
            signal.setitimer(signal.ITIMER_PROF, timeout)
            signal.setitimer(signal.ITIMER_REAL, timeout * _BUSY)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        trial.apply()
        failed = _first_failure(session, trial.first)
        if failed is not None:
            os.write(pipe, failed.encode())
        code = 0 if failed is None else 1
    except BaseException as exc:
        with contextlib.suppress(OSError):
            os.write(pipe, f"{type(exc).__name__}: {exc}".encode())
    finally:
        os._exit(code)


def _first_failure(session: pytest.Session, first: Sequence[str]) -> str | None:
    from _pytest.runner import runtestprotocol

    def rank(item: pytest.Item) -> int:
        name = item.path.name
        return first.index(name) if name in first else len(first)

    items = sorted(session.items, key=rank)
    for item, following in zip(items, [*items[1:], None], strict=True):
        for report in runtestprotocol(item, nextitem=following, log=False):
            if report.failed:
                return item.nodeid
    return None


def run_trials(
    trials: Sequence[Trial],
    root: Path,
    *,
    parallel: int,
    done: Callable[[int, Outcome], None] = lambda index, outcome: None,
    files: Sequence[str] = TEST_FILES,
    timeout: float | None = None,
) -> dict[int, Outcome]:
    """Run every trial.

    Args:
        trials: What to change.
        root: The checkout.
        parallel: Forks at once.
        done: Told of each outcome, by its index in ``trials``.
        files: Names of test files under ``tests/ec_protocol``.
        timeout: Processor seconds for one trial; None: several times what the tests
            take without any change.

    Returns:
        Outcomes by index.

    Raises:
        ECError: There is no pytest, no tests, or they fail without any change.
    """
    try:
        import pytest
    except ImportError as exc:
        raise ECError("this needs pytest: pip install ec-connector[dev]") from exc
    folder = root / "tests" / "ec_protocol"
    paths = [str(folder / name) for name in files]
    if missing := [path for path in paths if not os.path.exists(path)]:
        raise ECError(f"{missing[0]} is missing: run from a checkout")
    plugin = ForkPlugin(trials, max(1, parallel), done, timeout)
    arguments = ["-q", "-s", "-p", "no:cacheprovider", f"--rootdir={root}", *paths]
    # Pytest's own words would spoil the JSON, and there is nothing in them.
    with contextlib.redirect_stdout(io.StringIO()):
        code = pytest.main(arguments, plugins=[plugin])
    if code not in (0, 5) and not plugin.broken and not plugin.outcomes:
        plugin.broken = f"pytest ended with status {int(code)}"
    if plugin.broken:
        raise ECError(f"the tests of the core are no measure: {plugin.broken}")
    return plugin.outcomes
