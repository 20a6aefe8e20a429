# SPDX-License-Identifier: Apache-2.0
"""Runs the same tests again and again, each time on a core that was changed a little.

Pytest collects once; then each trial is a fork of that process, which applies its
change to the modules in memory, runs the tests in order and stops at the first that
fails. Tests that do not come to the changed function are not asked; if none does, the
change survives. A trial costs the tests that it runs and nothing else, and whatever it
breaks is gone with the fork: no traces are recorded, and files go to a folder that is
removed in the end. Needs ``os.fork`` and pytest, hence a checkout.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import selectors
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ec_protocol.errors import ECError
from ec_verify.mutants.callers import Watch
from ec_verify.mutants.trial_process import (
    READY,
    first_failure,
    give,
    run_in_child,
    uninterrupted,
    verdict,
)

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
    "test_encoder_hash.py",
    "test_integrity.py",
    "test_extents.py",
    "test_actions.py",
    "test_trace.py",
    "test_schedules.py",
    "test_node.py",
    "test_node_network.py",
    "test_items.py",
    "test_announcements.py",
)

#: Processor seconds for one test: many times what the longest takes. A test that takes
#: longer does not end.
TIMEOUT: Final = 4.0
#: The tests without any change are watched, and wait for imports: so many times the limit.
_UNTOUCHED: Final = 10

#: Read by ``tests/conftest.py`` (``tests.recording``) and by pytest.
_TRACES: Final = "EC_TEST_TRACES"
_TEMPORARY: Final = "PYTEST_DEBUG_TEMPROOT"


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
        broken: Why there is no verdict; ``""`` if there is one.
        asked: Whether any test comes to what was changed.
    """

    killed_by: str | None
    seconds: float
    cpu_s: float = 0.0
    broken: str = ""
    asked: bool = True


@dataclass(slots=True)
class _Child:
    index: int
    pid: int
    pipe: int
    asked: bool
    started: float
    said: bytes = b""

    @property
    def text(self) -> str:
        return self.said.decode("utf-8", "replace")


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
    running: dict[int, _Child] = field(default_factory=dict)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of pytest's own loop."""
        if session.testsfailed or not session.items:
            self.broken = "the tests cannot even be collected"
            return True
        try:
            untouched = self._start(0, lambda: None, partial(self._untouched, session))
            while part := os.read(untouched.pipe, 65536):
                untouched.said += part
            outcome = self._outcome(untouched)
            if outcome.broken or outcome.killed_by:
                self.broken = _without_change(outcome)
                return True
            callers = json.loads(untouched.text)
            self.callers = {name: frozenset(tests) for name, tests in callers.items()}
            self._run_all(session)
        finally:
            self._end_all()
        return True

    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Between the fixtures of a test and the test."""
        if self.watch is not None:
            self.watch.set_up(item)

    def _untouched(self, session: pytest.Session) -> tuple[int, str]:
        """Run all tests without any change and see what each calls; in a fork."""
        self.watch = watch = Watch()
        watch.start()

        def before(item: pytest.Item) -> None:
            give(self.timeout * _UNTOUCHED)

        failed = first_failure(session.items, before, watch.over)
        return (0, json.dumps(watch.stop(session.items))) if failed is None else (1, failed)

    def _asked(self, session: pytest.Session, trial: Trial) -> list[pytest.Item]:
        """The tests that may notice the change, the likeliest first."""
        asked = session.items
        if trial.function:
            callers = self.callers.get(trial.function, frozenset())
            asked = [item for item in asked if item.nodeid in callers]

        def rank(item: pytest.Item) -> tuple[bool, int]:
            # Random tests come last: they look for the smallest example that fails.
            random = hasattr(getattr(item, "obj", None), "hypothesis")
            name = item.path.name
            return random, trial.first.index(name) if name in trial.first else len(trial.first)

        return sorted(asked, key=rank)

    def _apply(self, trial: Trial) -> None:
        """Make the change; in a fork."""
        give(self.timeout)
        trial.apply()

    def _trial(self, asked: Sequence[pytest.Item]) -> tuple[int, str]:
        """Ask the tests; in a fork."""
        failed = first_failure(asked, lambda item: give(self.timeout), lambda item: None)
        return (0, "") if failed is None else (1, failed)

    def _run_all(self, session: pytest.Session) -> None:
        waiting = list(enumerate(self.trials))[::-1]
        with selectors.DefaultSelector() as selector:
            while waiting or selector.get_map():
                while waiting and len(selector.get_map()) < self.parallel:
                    index, trial = waiting.pop()
                    asked = self._asked(session, trial)
                    started = self._start(
                        index, partial(self._apply, trial), partial(self._trial, asked), bool(asked)
                    )
                    selector.register(started.pipe, selectors.EVENT_READ, started)
                for key, _ in selector.select():
                    child: _Child = key.data
                    if part := os.read(key.fd, 65536):
                        child.said += part
                        continue
                    selector.unregister(key.fd)
                    self.outcomes[child.index] = self._outcome(child)
                    self.done(child.index, self.outcomes[child.index])

    def _start(
        self,
        index: int,
        prepare: Callable[[], None],
        work: Callable[[], tuple[int, str]],
        asked: bool = True,
    ) -> _Child:
        """Do something in a fork that ends with the status and the words it returns."""
        ours, theirs = os.pipe()
        with uninterrupted():
            child = _Child(index, os.fork(), ours, asked, time.monotonic())
            if child.pid == 0:
                os.close(ours)
                run_in_child(prepare, work, theirs)
            self.running[child.pid] = child
        os.close(theirs)
        return child

    def _outcome(self, child: _Child) -> Outcome:
        """What became of a fork that has closed its pipe."""
        os.close(child.pipe)
        with uninterrupted():
            _, status, usage = os.wait4(child.pid, 0)
            del self.running[child.pid]
        ready, child.said = child.text.startswith(READY), child.said.removeprefix(b"\n")
        killed_by, broken = verdict(os.waitstatus_to_exitcode(status), ready, child.text)
        seconds = time.monotonic() - child.started
        cpu_s = usage.ru_utime + usage.ru_stime
        return Outcome(killed_by, seconds, cpu_s, broken, child.asked)

    def _end_all(self) -> None:
        """End the forks that are still there: the run was interrupted."""
        with uninterrupted():
            for pid in self.running:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            self.running.clear()


def _without_change(outcome: Outcome) -> str:
    if outcome.killed_by == "timeout":
        return "without any change a test does not end"
    return f"without any change {outcome.broken or f'{outcome.killed_by} fails'}"


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Tests record nothing, and their files are gone in the end: a fork cleans up nothing."""
    before = {name: os.environ.get(name) for name in (_TRACES, _TEMPORARY)}
    with tempfile.TemporaryDirectory(prefix="ec-mutants-", ignore_cleanup_errors=True) as folder:
        os.environ.update({_TRACES: "off", _TEMPORARY: folder})
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


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
        KeyboardInterrupt: It was interrupted; every fork was ended.
    """
    try:
        import pytest
    except ImportError as exc:
        raise ECError("this needs pytest: pip install ec-connector[dev]") from exc
    folder = root / "tests" / "ec_protocol"
    places = {path.name: str(path) for path in folder.rglob("test_*.py")}
    paths = [places.get(name, str(folder / name)) for name in files]
    if missing := [path for path in paths if not os.path.exists(path)]:
        raise ECError(f"{missing[0]} is missing: run from a checkout")
    plugin = ForkPlugin(trials, max(1, parallel), done, timeout)
    arguments = ["-q", "-s", "-p", "no:cacheprovider", f"--rootdir={root}", *paths]
    # Pytest's own words would spoil the JSON, and there is nothing in them.
    with contextlib.redirect_stdout(io.StringIO()), _alone():
        code = pytest.main(arguments, plugins=[plugin])
    if not plugin.broken and code == pytest.ExitCode.INTERRUPTED:
        # Pytest makes a status of it.
        raise KeyboardInterrupt
    if not plugin.broken and len(plugin.outcomes) < len(trials):
        plugin.broken = f"pytest ended with status {int(code)}"
    if plugin.broken:
        raise ECError(f"the tests of the core are no measure: {plugin.broken}")
    return plugin.outcomes
