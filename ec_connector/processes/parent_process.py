# SPDX-License-Identifier: Apache-2.0
"""The parent of the data processes, as the engine has it: started, watched, started again.

The engine acts in its hooks and has no others (EC-14.10): a parent that is gone is followed
by another one in the first hook that finds it gone with all of its children, if it has
lived for a while; and after a pause, which grows, if it has not (EC-14.12). Engine thread
only, and nothing here waits but ``end``.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from ec_connector.processes.channel import Channel, channel_pair
from ec_connector.processes.environment import environment
from ec_connector.processes.memory import STATUS_BYTES, Shared, StatusPage
from ec_connector.processes.spawn import start, wait_readable
from ec_connector.processes.spec import InstanceSpec, ParentSpec, command, write_spec
from ec_connector.region.scratch import Scratch
from ec_protocol.p2p import words
from ec_protocol.tables.timing import Timing

if TYPE_CHECKING:
    from ec_connector.region.shared import SharedRegion

logger = logging.getLogger(__name__)

#: Numbers that each parent has for its processes: more than it can start.
_NUMBERS: Final = 100_000
#: Pause after a short life, twice as long after each further one, and the longest.
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 32.0
#: How often it is looked whether the parent lives, at most.
_LOOK_S: Final = 1.0


class ParentProcess:
    """One parent after the other.

    Args:
        region: The mapped region.
        table: The table of offers.
        ledger: The ledger.
        timing: ``start_s``, ``stall_s`` and ``lived_s`` are used.
        clock: Seconds of the common clock.

    Attributes:
        look_s: How often ``watch`` is to be called.
    """

    def __init__(
        self,
        region: SharedRegion,
        table: Shared,
        ledger: Shared,
        timing: Timing,
        clock: Callable[[], float],
    ) -> None:
        self._region = region
        self._table = table
        self._ledger = ledger
        self._scratch: Scratch | None = None
        self._timing = timing
        self._clock = clock
        self._environ = environment(os.environ)
        self._popen: subprocess.Popen[bytes] | None = None
        self._status: StatusPage | None = None
        self._count = 0
        self._started_at = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._again_at = 0.0
        self.look_s = min(_LOOK_S, timing.stall_s / 2)
        self._looked_at = 0.0
        self._beat_at = 0.0
        self._silent_s = 0.0

    @property
    def pid(self) -> int | None:
        """Its process id; None before the first start."""
        return None if self._popen is None else self._popen.pid

    @property
    def runs(self) -> bool:
        """Whether it is there and has not been reaped."""
        return self._popen is not None and self._popen.poll() is None

    # ------------------------------------------------------------------------ the start
    def start(self, instance: InstanceSpec) -> Channel:
        """Start one; what it was handed is closed here in the end, whatever happens.

        Args:
            instance: What it and its children are told.

        Returns:
            The engine's end of the channel to it.

        Raises:
            OSError: No memory, no processes, no descriptors.
        """
        with contextlib.ExitStack() as closing:
            ours, theirs = channel_pair()
            closing.callback(theirs.close)
            channel = Channel(ours, words.FromParent)
            unless_started = closing.enter_context(contextlib.ExitStack())
            unless_started.callback(channel.close)
            region = self._region.fileno()
            flags = os.O_RDWR if instance.writable else os.O_RDONLY
            server_region = os.open(f"/proc/self/fd/{region}", flags | os.O_CLOEXEC)
            closing.callback(os.close, server_region)
            # Whoever maps the file holds its lock (EC-10.2).
            fcntl.flock(server_region, fcntl.LOCK_SH)
            table = self._table.read_only()
            closing.callback(os.close, table)
            if self._scratch is None:
                self._scratch = Scratch(self._region.path)
            self._scratch.clear()  # what the one before had no time for
            self._close_status()
            self._status = StatusPage(Shared.create("ec-status-parent", STATUS_BYTES))
            spec = ParentSpec(
                version=words.VERSION,
                instance=msgspec.structs.replace(instance, scratch=self._scratch.path),
                engine=theirs.fileno(),
                region=region,
                region_for_server=server_region,
                table=table,
                ledger=self._ledger.fd,
                status=self._status.shared.fd,
                scratch=self._scratch.fd,
                first=self._count * _NUMBERS + 1,
            )
            self._count += 1
            fd = write_spec(spec)
            closing.callback(os.close, fd)
            argv = command("ec_connector.processes.parent", fd, [instance.engine_id])
            self._popen = start(argv, [fd, *spec.fds], self._environ)
            unless_started.pop_all()
        self._started_at = self._looked_at = self._clock()
        self._beat_at = self._silent_s = 0.0
        return channel

    # ------------------------------------------------------------------------- the hooks
    def gone(self, now: float) -> None:
        """It says nothing any more, or nothing that is understood: it is killed.

        How long it has lived its page says. An engine that took no step may learn of its
        end much later.
        """
        if self._popen is not None:
            self._popen.kill()
        beat_at = 0.0 if self._status is None else self._status.beat_at
        if beat_at - self._started_at >= self._timing.lived_s:
            self._pause_s = FIRST_PAUSE_S
            self._again_at = now
            return
        self._again_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def cannot_start(self, now: float) -> None:
        """There was no room for another one."""
        self._again_at = now + LONGEST_PAUSE_S

    def due(self, now: float) -> bool:
        """Whether another one may be started."""
        return now >= self._again_at and not self.runs

    def watch(self, now: float) -> None:
        """Kill it if it stands still; to be called every ``look_s`` or less often.

        It is judged by looks at which it had given no new sign of life. No time between
        two looks counts for more than ``look_s``: an engine that takes no steps, that was
        stopped, or that slept with its machine, has not seen it stand still (EC-14.11).
        """
        seen_s, self._looked_at = min(now - self._looked_at, self.look_s), now
        if self._popen is None or self._status is None or not self.runs:
            return
        beat_at = self._status.beat_at
        if beat_at != self._beat_at:
            self._beat_at, self._silent_s = beat_at, 0.0
            return
        self._silent_s += seen_s
        if self._silent_s >= (self._timing.stall_s if beat_at else self._timing.start_s):
            logger.error("ec-parent: it stands still and is killed")
            self._popen.kill()

    # -------------------------------------------------------------------------- the end
    def end(self, seconds: float) -> None:
        """See that it is gone: it has so long to end by itself."""
        if self._popen is None or not self.runs:
            return
        try:
            pidfd = os.pidfd_open(self._popen.pid)
        except OSError:  # no descriptor is left
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(seconds)
        else:
            wait_readable(pidfd, seconds)
            os.close(pidfd)
        if self.runs:
            logger.error("ec-parent: it did not end and is killed")
            self._popen.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(seconds)

    def close(self) -> None:
        """Let go of its page, and of the instance's folder. May be called twice."""
        self._close_status()
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    def _close_status(self) -> None:
        if self._status is not None:
            self._status.shared.close()
            self._status = None
