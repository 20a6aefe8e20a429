# SPDX-License-Identifier: Apache-2.0
"""Fixtures of more than one module here."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import needs
from tests.ec_connector.region.region_driver import Child, guards_of, private_folder
from tests.world.processes import several


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as path:
        yield path


@pytest.fixture
def spawn() -> Iterator[Callable[[], Child]]:
    with several(Child, Child.kill) as start:
        yield start


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 8 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)], capture_output=True
    )
    needs.optional(done.returncode == 0, "needs the right to mount a tmpfs")
    yield path
    for pid in guards_of(path):
        os.kill(pid, signal.SIGKILL)
    subprocess.run(["umount", "-l", str(path)], check=True)
