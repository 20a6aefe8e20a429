# SPDX-License-Identifier: Apache-2.0
"""Runs the same tests again and again, each time on a core that was changed a little.

Pytest collects once; then each trial is a fork of that process, which applies its
change to the modules in memory, runs the tests in order and stops at the first that
fails. Tests that do not come to the changed function are not asked. A trial costs the
tests that it runs and nothing else, and whatever it breaks is gone with the fork. Needs
``os.fork`` and pytest, hence a checkout.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ec_protocol.errors import ECError
from ec_protocol.mutants.callers import Watch

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
    "test_consumer_restarts.py",
    "test_extents.py",
    "test_timing.py",
    "test_actions.py",
    "test_trace.py",
    "test_schedules.py",
)

#: Processor seconds for one test: many times what the longest takes. A test that takes
#: longer does not end.
TIMEOUT: Final = 4.0
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
        function: What is changed, as ``module:Class.name``; ``""`` if it is not one
            function of the core.
    """

    name: str
    apply: Callable[[], None]
    first: tuple[str, ...] = ()
    function: str = ""


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
    pid: int
    pipe: int
    started: float
    text: bytes = b""


@dataclass(slots=True)
class ForkPlugin:
    """The pytest plugin that does it; see ``run_trials``."""

    trials: Sequence[Trial]
    parallel: int
    done: Callable[[int, Outcome], None]
    timeout: float = TIMEOUT
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    broken: str = ""
    watch: Watch | None = None
    callers: dict[str, frozenset[str]] = field(default_factory=dict)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of pytest's own loop."""
        if session.testsfailed or not session.items:
            self.broken = "the tests cannot even be collected"
            return True
        untouched = _start(0, partial(self._untouched, session))
        while part := os.read(untouched.pipe, 65536):
            untouched.text += part
        if (said := _outcome(untouched).killed_by) is not None:
            self.broken = f"without any change {said} fails"
            return True
        callers = json.loads(untouched.text)
        self.callers = {name: frozenset(tests) for name, tests in callers.items()}
        self._run_all(session)
        return True

    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Between the fixtures of a test and the test."""
        if self.watch is not None:
            self.watch.set_up(item)

    def _untouched(self, session: pytest.Session) -> tuple[int, str]:
        """Run all tests without any change and see what each calls; in a fork."""
        self.watch = watch = Watch()
        watch.start()
        failed = _first_failure(session.items, lambda item: None, watch.over)
        return (0, json.dumps(watch.stop(session.items))) if failed is None else (1, failed)

    def _trial(self, session: pytest.Session, trial: Trial) -> tuple[int, str]:
        """Run the tests that may notice the change; in a fork."""
        asked = session.items
        if trial.function:
            callers = self.callers.get(trial.function, frozenset())
            asked = [item for item in asked if item.nodeid in callers]

        def rank(item: pytest.Item) -> tuple[bool, int]:
            # Random tests come last: they look for the smallest example that fails.
            random = hasattr(getattr(item, "obj", None), "hypothesis")
            name = item.path.name
            return random, trial.first.index(name) if name in trial.first else len(trial.first)

        def patience(item: pytest.Item | None = None) -> None:
            signal.setitimer(signal.ITIMER_PROF, self.timeout)
            signal.setitimer(signal.ITIMER_REAL, self.timeout * _BUSY)

        patience()
        trial.apply()
        failed = _first_failure(sorted(asked, key=rank), patience, lambda item: None)
        return (0, "") if failed is None else (1, failed)

    def _run_all(self, session: pytest.Session) -> None:
        waiting = list(enumerate(self.trials))[::-1]
        with selectors.DefaultSelector() as selector:
            while waiting or selector.get_map():
                while waiting and len(selector.get_map()) < self.parallel:
                    index, trial = waiting.pop()
                    started = _start(index, partial(self._trial, session, trial))
                    selector.register(started.pipe, selectors.EVENT_READ, started)
                for key, _ in selector.select():
                    child: _Child = key.data
                    if part := os.read(key.fd, 65536):
                        child.text += part
                        continue
                    selector.unregister(key.fd)
                    self.outcomes[child.index] = _outcome(child)
                    self.done(child.index, self.outcomes[child.index])


def _start(index: int, work: Callable[[], tuple[int, str]]) -> _Child:
    """Do something in a fork that ends with the status and the words it returns."""
    ours, theirs = os.pipe()
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        _in_child(work, theirs)
    os.close(theirs)
    return _Child(index, pid, ours, started)


def _outcome(child: _Child) -> Outcome:
    os.close(child.pipe)
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


def _in_child(work: Callable[[], tuple[int, str]], pipe: int) -> None:
    """Do the work and leave the process; never returns."""
    code = 3
    try:
        # An endless loop ends here, whatever it does: the signals are not caught.
        for number in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
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


def _first_failure(
    items: Sequence[pytest.Item],
    before: Callable[[pytest.Item], None],
    after: Callable[[pytest.Item], None],
) -> str | None:
    from _pytest.runner import runtestprotocol

    for item, following in zip(items, [*items[1:], None], strict=True):
        before(item)
        for report in runtestprotocol(item, nextitem=following, log=False):
            if report.failed:
                return item.nodeid
        after(item)
    return None


def run_trials(
    trials: Sequence[Trial],
    root: Path,
    *,
    parallel: int,
    done: Callable[[int, Outcome], None] = lambda index, outcome: None,
    files: Sequence[str] = TEST_FILES,
    timeout: float = TIMEOUT,
) -> dict[int, Outcome]:
    """Run every trial.

    Args:
        trials: What to change.
        root: The checkout.
        parallel: Forks at once.
        done: Told of each outcome, by its index in ``trials``.
        files: Names of test files under ``tests/ec_protocol``.
        timeout: Processor seconds for one test.

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
    if not plugin.broken and len(plugin.outcomes) < len(trials):
        plugin.broken = f"pytest ended with status {int(code)}"
    if plugin.broken:
        raise ECError(f"the tests of the core are no measure: {plugin.broken}")
    return plugin.outcomes
