# SPDX-License-Identifier: Apache-2.0
"""Starts, commands and kills the processes of the region tests (``region_child.py``)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ec_connector.region.shared import SharedRegion
from tests.leftovers import shm_folder
from tests.world import processes
from tests.world.processes import eventually

BLOCKS = 16
BLOCK_BYTES = 5120
GEOMETRY: dict[str, Any] = {
    "instance_id": "t",
    "dp_rank": 0,
    "num_blocks": BLOCKS,
    "block_size_bytes": BLOCK_BYTES,
}


NAME = "vllm_ec_t_dp0.mmap"


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A folder on the tmpfs that regions are made for; its guards end with it."""
    with shm_folder() as path:
        try:
            yield path
        finally:
            for pid in guards_of(path):
                os.kill(pid, signal.SIGKILL)


def open_region(folder: Path, **more: Any) -> SharedRegion:
    """Open a region of 7 blocks of 5120 bytes in this process, without waiting."""
    arguments: dict[str, Any] = {
        **GEOMETRY,
        "num_blocks": 7,
        "directory": str(folder),
        "guard": False,
        "timeout_s": 0.0,
    }
    return SharedRegion.open(**(arguments | more))


class Child(processes.Child):
    """One process that opens regions."""

    def __init__(self) -> None:
        super().__init__("-m", "tests.ec_connector.region.region_child", start_new_session=True)

    def send(self, do: str, **command: Any) -> None:
        self.say(json.dumps({"do": do, **command}))

    def call(self, do: str, **command: Any) -> dict[str, Any]:
        self.send(do, **command)
        return self.answer()

    def open(self, directory: Path, **more: Any) -> dict[str, Any]:
        return self.call("open", directory=str(directory), **{**GEOMETRY, **more})

    def open_until(self, moment: str, directory: Path, **more: Any) -> None:
        """Begin ``open`` and return when the process waits at ``moment``."""
        assert self.call("pause", at=moment) == {"ok": True}
        self.send("open", directory=str(directory), **{**GEOMETRY, **more})
        assert self.answer() == {"paused": moment}

    def go_on(self) -> None:
        self.say("")


def guards_of(directory: Path) -> list[int]:
    """Pids of the guards that watch files in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            argv = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(a.endswith(b"guard.py") for a in argv) and any(
            a.startswith(os.fsencode(directory) + b"/") for a in argv
        ):
            found.append(int(entry.name))
    return found


def no_guard(directory: Path) -> bool:
    return not guards_of(directory)


def names_in(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def gone(directory: Path) -> bool:
    return not names_in(directory)


def nothing_left(directory: Path) -> bool:
    """Whether file and guard are gone soon."""
    return eventually(lambda: gone(directory)) and eventually(lambda: no_guard(directory))
