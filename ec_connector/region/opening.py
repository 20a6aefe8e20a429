# SPDX-License-Identifier: Apache-2.0
"""Getting hold of a region file: look, then join, reap, create or wait, and look again.

Every turn of the loop starts from what lies at the path *now*, since any other
process may have changed it meanwhile:

* nothing: create it, if this process may, it is its turn, and nobody of its start has a
  file already;
* an orphan (its exclusive lock can be had): reap it;
* a live region that is ours: take the shared lock, set the mark, look again, join;
* a live region that is not ours, or is shutting down: wait until time is up;
* something foreign: an error at once.

A creator sets its mark and looks again like a joiner: its file may have lost the name
since, and another one of the same start may have it.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import time
from typing import Final

from ec_connector.region import file as region_file
from ec_connector.region.errors import (
    RegionBusyError,
    RegionError,
    RegionLostError,
    RegionMissingError,
)
from ec_connector.region.file import Directory, Reaped, reap_orphans
from ec_connector.region.header import (
    STATE_LIVE,
    Foreign,
    OtherLayout,
    RegionHeader,
    identify,
    read_state,
)
from ec_connector.region.marks import Marks
from ec_connector.region.memory import check_space

# A creator that is alive and allocating gets this much longer per byte.
_ALLOCATE_BYTES_PER_S: Final = 1 << 30
# How long memory of a region that has just gone may take to come back.
_SPACE_GRACE_S: Final = 2.0
_MIN_POLL_S: Final = 0.002
_MAX_POLL_S: Final = 0.05
# Something moved under us (an orphan was reaped, say): look again at once, but
# not for ever.
_TURNS_WITHOUT_PAUSE: Final = 100


class _BeingCreated(RegionBusyError):
    """Somebody holds the turn to create."""


class Opening:
    """One call of ``SharedRegion.open``.

    Args:
        folder: Where the file lies; open for as long as this object is used.
        name: The file's name.
        wanted: Geometry and identity; the trailer if this process creates.
        create: True insists on creating, False on joining, None does either.
        same_start: Join only a file with the nonce of ``wanted``.
        guarded: Start a guard when creating.
    """

    def __init__(
        self,
        folder: Directory,
        name: str,
        wanted: RegionHeader,
        create: bool | None,
        same_start: bool,
        guarded: bool,
    ) -> None:
        self.folder = folder
        self.name = name
        self.path = folder.join(name)
        self.wanted = wanted
        self.create = create
        self.same_start = same_start
        self.guarded = guarded
        self.marks = Marks(folder, name)
        # What stands in the way, for the message when time is up.
        self.obstacle = self._unsteady()

    def run(self, timeout_s: float) -> tuple[int, RegionHeader, Reaped | None]:
        """Create or join, until it works or time is up.

        Returns:
            The locked descriptor, which the caller owns as it does ``marks`` then; the
            header in the file; and what the sweep removed, or None if this process joined.
        """
        try:
            return self._run(timeout_s)
        except BaseException:
            self.marks.close()
            raise

    def _run(self, timeout_s: float) -> tuple[int, RegionHeader, Reaped | None]:
        began = time.monotonic()
        deadline = began + timeout_s
        pause = _MIN_POLL_S
        turns = itertools.count()
        while True:
            joined = self._join()
            if isinstance(joined, tuple):
                return (*joined, None)
            if joined == "missing" and self.create is not False:
                made = self._create()
                if made is not None:
                    return made
                if isinstance(self.obstacle, _BeingCreated):
                    deadline = max(
                        deadline, began + timeout_s + self.wanted.file_bytes / _ALLOCATE_BYTES_PER_S
                    )
            if joined == "again" and next(turns) < _TURNS_WITHOUT_PAUSE:
                continue
            if time.monotonic() >= deadline:
                raise self.obstacle
            time.sleep(pause)
            pause = min(_MAX_POLL_S, pause * 1.5)

    def _create(self) -> tuple[int, RegionHeader, Reaped] | None:
        with region_file.creation_turn(self.folder, self.name) as ours:
            if not ours:
                self.obstacle = _BeingCreated(
                    self.path,
                    "another process has been creating it for too long. Stop that process, or "
                    "start with another instance id",
                )
                return None
            # Somebody may have finished between our look and our turn.
            if self.folder.has(self.name):
                return None
            # Whoever has a mark has had the name: it is gone, or has come this moment.
            if self.marks.any_of_start(self.wanted.nonce) and not self.folder.has(self.name):
                self.obstacle = self._lost()
                return None
            reaped = reap_orphans(self.folder.path)
            check_space(self.path, self.folder.path, self.wanted.file_bytes, _SPACE_GRACE_S)
            file = region_file.new_file(self.folder, self.name)
            if not region_file.build(file, self.folder, self.name, self.wanted, self.guarded):
                return None
            try:
                if self._settle(file.fd, self.wanted):
                    return file.fd, self.wanted, reaped
            except BaseException:
                os.close(file.fd)
                raise
            os.close(file.fd)
            # Unless somebody has joined it, what we made goes with us.
            reap_orphans(self.folder.path)
            return None

    def _settle(self, fd: int, header: RegionHeader) -> bool:
        """Set the mark of a file that is ours, and look whether it still is the one.

        Before that the last user may have gone and the name with it, the instance may have
        begun to shut down, or another file of this start may be in use without a name.
        """
        self.marks.set(header)
        if not self.folder.names(self.name, fd) or read_state(fd, header) != STATE_LIVE:
            self.obstacle = self._unsteady()
        elif self.marks.any_of_other_file(header):
            self.obstacle = self._lost()
        else:
            return True
        self.marks.clear()
        return False

    def _unsteady(self) -> RegionError:
        return RegionError(self.path, "it changes faster than it can be opened")

    def _lost(self) -> RegionLostError:
        return RegionLostError(
            self.path,
            "its name is gone while other processes of this start still use the file, and a new "
            "file would be empty where they believe encodings to be. Stop all processes of the "
            "instance and start it again; if nothing of it was shut down, find out what removes "
            f"files from {self.folder.path}",
        )

    def _join(self) -> tuple[int, RegionHeader] | str:
        """Try once to join the file at the path.

        Returns:
            Descriptor and header, or ``missing``, ``again`` (something changed
            meanwhile) or ``busy`` (``obstacle`` says why).
        """
        fd = self.folder.open(self.name, os.O_RDWR)
        if fd is None:
            self.obstacle = RegionMissingError(
                self.path, "nobody created the region in time. Start the process that creates it"
            )
            return "missing"
        try:
            result = self._examine(fd)
        except BaseException:
            os.close(fd)
            raise
        if isinstance(result, str):
            os.close(fd)
            return result
        return fd, result

    def _examine(self, fd: int) -> RegionHeader | str:
        found = identify(fd)
        if isinstance(found, Foreign):
            if not self.folder.names(self.name, fd):
                return "again"
            raise region_file.foreign_error(self.path, found.reason)
        if region_file.try_lock(fd, fcntl.LOCK_EX):
            region_file.reap(fd, self.folder, self.name)
            return "again"
        mismatch = self._mismatch(fd, found)
        if mismatch:
            pids = ", ".join(map(str, region_file.holders(fd))) or "unknown"
            self.obstacle = RegionBusyError(
                self.path,
                f"{mismatch}; it is in use by live processes (pids: {pids}). Stop them, or start "
                "with another instance id",
            )
            return "busy"
        if not region_file.try_lock(fd, fcntl.LOCK_SH):
            self.obstacle = RegionBusyError(self.path, "it is being removed without end")
            return "busy"
        if isinstance(found, RegionHeader) and self._settle(fd, found):
            return found
        return "busy" if isinstance(self.obstacle, RegionLostError) else "again"

    def _mismatch(self, fd: int, found: RegionHeader | OtherLayout) -> str | None:
        """Why the live region at the path is not the one wanted; None if it is."""
        wanted = self.wanted
        owner = os.fstat(fd).st_uid
        if owner != os.geteuid():
            # Root could open it, but its owner could shrink it under our feet.
            return f"the region belongs to another user (uid {owner})"
        if isinstance(found, OtherLayout):
            return f"the region has layout version {found.version}"
        if (found.instance_id, found.dp_rank) != (wanted.instance_id, wanted.dp_rank):
            return f"the region calls itself {found.instance_id!r} dp{found.dp_rank}"
        if self.create:
            return "the region exists already, from another start of this instance"
        if found.geometry != wanted.geometry:
            return (
                f"the region has {found.num_blocks} blocks of {found.block_size_bytes} bytes, "
                f"wanted {wanted.num_blocks} of {wanted.block_size_bytes} (ec_cpu_bytes or the "
                "model differ)"
            )
        if self.same_start and found.nonce != wanted.nonce:
            return "the region belongs to another start of this instance"
        if read_state(fd, found) != STATE_LIVE:
            return "the region's instance is shutting down"
        return None
