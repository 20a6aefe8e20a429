# SPDX-License-Identifier: Apache-2.0
"""Shared by all tests: how hypothesis runs, that nodes leave traces and nothing else stays.

A failing example prints the blob that reproduces it. ``HYPOTHESIS_PROFILE=thorough``
looks longer; ``pytest --hypothesis-seed=N`` repeats a run. Traces: see ``recording``;
temporary files: ``leftovers``; what may be missing: ``needs``.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from multiprocessing.util import Finalize
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import leftovers, needs, recording

settings.register_profile(
    "ec",
    print_blob=True,
    # One slow example on a busy machine is no fault of the code under test.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", parent=settings.get_profile("ec"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ec"))


#: File and name of the step of make that this session is; see ``tools/steps.sh``.
_step: tuple[str | None, str | None] = None, None


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Temporary files, pytest's own too, go where they are found again."""
    global _step
    # Sessions that tests start are no steps, and have traces of their own.
    _step = os.environ.pop("EC_STEPS", None), os.environ.pop("EC_STEP", None)
    # With -n the tests run in workers, which inherit what this process leaves alone.
    worker = hasattr(config, "workerinput")
    if worker or not config.getoption("numprocesses", None):
        recording.take_part()
    leftovers.reap()
    config.add_cleanup(leftovers.remove_own)
    home = leftovers.Home()
    if worker:
        # In the controller's folder the paths would be too long for sockets.
        config.option.basetemp = str(home.path / "tests")
    # After what multiprocessing itself does at the exit of this process, not of its forks.
    Finalize(None, home.remove, exitpriority=-200)


def pytest_sessionfinish() -> None:
    """Other sessions may check the traces."""
    recording.tell()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A word for the table of steps."""
    file, step = _step
    counts = {key: len(found) for key, found in terminalreporter.stats.items()}
    shown = ("passed", "failed", "error", "skipped")
    said = ", ".join(f"{counts[key]} {key}" for key in shown if counts.get(key))
    if file is not None and said:
        with open(file, "a", encoding="utf-8") as lines:
            lines.write(f"note\t{step}\t{time.time():.0f}\t{said}\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: marks that say what a test needs."""
    needs.check(item)


@pytest.fixture(scope="session")
def session_traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the traces of this session, one folder in it for each module."""
    return recording.shared or tmp_path_factory.mktemp("session-traces")


@pytest.fixture(scope="module", autouse=True)
def _recorded(request: pytest.FixtureRequest) -> Iterator[None]:
    if not recording.wanted():
        yield
        return
    session_traces: Path = request.getfixturevalue("session_traces")
    end = recording.begin(request.path.stem, session_traces, random.Random())
    yield
    end()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What checks the traces of a session comes last."""
    items.sort(key=lambda item: item.path.name == "test_traces_of_this_run.py")


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Modules of which only some tests run need not leave traces."""
    for item in items:
        recording.deselected[item.path.stem] += 1


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Which modules had a test that ran: those may have left traces."""
    if report.when == "call" and not report.skipped:
        recording.ran[Path(report.nodeid.partition("::")[0]).stem] += 1
