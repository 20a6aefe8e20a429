# SPDX-License-Identifier: Apache-2.0
"""The pump: one thread that owns every socket and the NIXL agents of its process.

The engine thread never touches the network: it changes the core under the lock and
wakes the pump. The pump takes the same lock for one short core call at a time and
does all I/O outside of it (``turn``).

It sleeps in ``zmq.Poller`` until something comes, a core timer is due, or it is woken.
Only while a grant is open or a READ is under way does it spin, gently: NIXL moves
nothing unless both sides progress their agents.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable

from ec_connector.engine.stats import PumpStats
from ec_connector.network.planes import Planes
from ec_connector.network.switching import prompt_switching
from ec_connector.network.turn import PumpError, PumpIO
from ec_protocol.node import Node

__all__ = ["Pump", "PumpError"]

logger = logging.getLogger(__name__)


class Pump:
    """The thread and what it owns.

    Args:
        node: The protocol's state.
        planes: What the thread is to make.
        lock: The node's lock.
        clock: Monotonic seconds.
        stats: Where to count; None makes one.
        on_failure: Called once, from the pump thread, if it had to give up.
        memory: What the data plane touches; kept alive until the thread has ended, also
            when that takes longer than anybody waits.
    """

    def __init__(
        self,
        node: Node,
        planes: Planes,
        *,
        lock: threading.Lock,
        clock: Callable[[], float] = time.monotonic,
        stats: PumpStats | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
        memory: object = None,
    ) -> None:
        self.stats = stats or PumpStats()
        self.address: tuple[str, int] | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._start_error: BaseException | None = None
        self._stopping = False
        self._running = False
        self._wake_fd = -1
        self._fd_lock = threading.Lock()
        self._on_failure = on_failure
        self._memory = memory
        self._make_io = functools.partial(
            PumpIO, node, planes, lock=lock, clock=clock, stats=self.stats
        )

    # ---------------------------------------------------------------- any thread
    @property
    def healthy(self) -> bool:
        """Whether the pump runs. False before ``start``, after ``stop``, and on failure."""
        return self._running and not self._stopping

    def start(self) -> None:
        """Start the thread; returns once its sockets and agents are ready.

        Raises:
            ECError: What went wrong on the pump thread; nothing is left running.
            PumpError: Started before.
        """
        if self._thread is not None:
            raise PumpError("the pump was started already")
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(
            target=prompt_switching()(self._main), name="ec-pump", daemon=True
        )
        self._thread.start()
        self._started.wait()
        if self._start_error is not None:
            self._thread.join()
            self._memory = None
            self._close_fd()
            raise self._start_error
        # A daemon thread inside a native library when the interpreter goes away can
        # abort the process; whoever forgets ``stop`` gets it here.
        _running.add(self)

    def wake(self) -> None:
        """There may be something to do. Cheap; never blocks; after ``stop`` nothing."""
        with self._fd_lock:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def stop(self, timeout_s: float = 10.0) -> bool:
        """End the thread: fetches fail, grants end, sockets and agents close.

        Returns:
            Whether it ended in time; if not it is left behind, as a daemon.
        """
        thread = self._thread
        if thread is None:
            return True
        self._stopping = True
        self.wake()
        if thread is not threading.current_thread():
            thread.join(timeout_s)
        if thread.is_alive():
            logger.error("the pump did not end within %g s", timeout_s)
            return False
        _running.discard(self)
        self._memory = None
        self._close_fd()
        return True

    def _close_fd(self) -> None:
        with self._fd_lock:
            if self._wake_fd >= 0:
                os.close(self._wake_fd)
                self._wake_fd = -1

    # --------------------------------------------------------------- pump thread
    def _main(self) -> None:
        io: PumpIO | None = None
        try:
            io = self._make_io(wake_fd=self._wake_fd)
            io.open()
        except BaseException as exc:
            self._start_error = exc
            if io is not None:
                io.close()
            return
        finally:
            if self._start_error is None and io is not None:
                self.address = io.address
                self._running = True
            self._started.set()
        try:
            while not self._stopping:
                io.sleep(io.turn())
            io.shut_down()
        except BaseException as exc:
            # Never a thread that died in silence: nobody waits for it any more,
            # nothing that it had posted is reused, and somebody is told (EC-5.9).
            self._running = False
            self.stats.count("pump_failures")
            logger.exception("the pump failed; peer-to-peer reads are off from here on")
            io.fail_closed()
            if self._on_failure is not None:
                self._on_failure(exc)
        finally:
            self._running = False
            io.close()


_running: weakref.WeakSet[Pump] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for pump in list(_running):
        pump.stop()
