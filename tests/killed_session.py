# SPDX-License-Identifier: Apache-2.0
"""Two tests that ``test_leftovers`` runs in sessions of their own: one is killed."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from ec_connector.region.shared import SharedRegion
from tests.leftovers import SHM, Home, maker, shm_folder


def test_that_uses_everything_and_ends(tmp_path: Path) -> None:
    # Who starts it may name a dead session, whose remnants the start must have removed.
    dead = int(os.environ.get("EC_TEST_DEAD", "0"))
    assert not [p for p in SHM.iterdir() if (maker(p.name) or (None,))[0] == dead]
    assert "EC_STEPS" not in os.environ
    (tmp_path / "file").write_text("x")
    tempfile.mkdtemp(prefix="forgotten-")
    with shm_folder() as folder:
        (folder / "file").write_text("x")
        region = SharedRegion.open(f"test-{os.getpid()}-forgotten", 0, 1, 4096, guard=False)
        assert region.created


def test_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    Path(tempfile.mkdtemp(prefix="forgotten-"), "file").write_text("x")
    Home("make")
    with (
        shm_folder() as folder,
        SharedRegion.open("t", 0, 1, 4096, directory=str(folder), guard=False),
        SharedRegion.open(f"test-{os.getpid()}", 0, 1, 4096, guard=False),
    ):
        sys.stdout.write("\nready\n")
        sys.stdout.flush()
        sys.stdin.read()
