# SPDX-License-Identifier: Apache-2.0
"""The engine's end: it starts the parent, lends, offers and hears; and never waits.

Everything happens in ``turn``, which the host's hooks call: one look at what has come,
which costs a microsecond when nothing has. There is no thread, lock or socket to a peer
in the engine's process (EC-14.4). ``parent_process`` has what concerns the parent itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import select
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from ec_connector.clock import boottime
from ec_connector.config.settings import ECConfig
from ec_connector.engine.facts import ModelFacts
from ec_connector.processes.channel import Channel
from ec_connector.processes.figures import Figures
from ec_connector.processes.instance import instance_spec
from ec_connector.processes.link import Link
from ec_connector.processes.locks import KernelSlotLocks
from ec_connector.processes.memory import Shared, StatusPage
from ec_connector.processes.parent_process import ParentProcess
from ec_connector.processes.spawn import wait_readable
from ec_protocol.announcements import Address, Source
from ec_protocol.engine import Engine
from ec_protocol.errors import ConfigError, ECError
from ec_protocol.offers.table import (
    Ledger,
    OfferTable,
    format_ledger,
    format_table,
    ledger_bytes,
    slots_for,
    table_bytes,
)
from ec_protocol.p2p import words

if TYPE_CHECKING:
    from ec_connector.region.shared import SharedRegion

logger = logging.getLogger(__name__)

#: How long a start may take beside ``start_s``, which is each process's own.
_START_SLACK_S: Final = 5.0
#: How long the parent, and then its children, may take to end with the instance.
_END_S: Final = 5.0
#: What is remembered of the troubles of a start.
_TROUBLES: Final = 8


class DataProcessError(ECError):
    """The data processes cannot be started; the message says why."""


class _Data:
    """One data process that works."""

    def __init__(self, up: words.Up, channel: Channel, pidfd: int, status: StatusPage) -> None:
        self.number = up.process
        self.kind = up.kind
        self.pid = up.pid
        self.channel = channel
        self.pidfd = pidfd
        self.status = status
        self.suspected = False
        self.killed_at = float("inf")

    def close(self) -> None:
        self.channel.close()
        os.close(self.pidfd)
        self.status.shared.close()


class DataProcesses:
    """The data processes of one engine, as it has them. Engine thread only.

    Args:
        engine: The protocol's state.
        config: Settings; ``enable_nixl`` is on.
        facts: The model's.
        region: The mapped region.
        engine_id: Names the instance to others.
        clock: Seconds of the common clock.

    Attributes:
        link: What is said to them and heard of them.
        figures: What operators see.
    """

    def __init__(
        self,
        engine: Engine,
        config: ECConfig,
        facts: ModelFacts,
        region: SharedRegion,
        *,
        engine_id: str,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self.figures = Figures()
        self._clock = clock
        self._timing = config.timing
        self._spec = instance_spec(config, facts, region, engine_id)
        engine.tier.recorder.facts("instance", name=self._spec.incarnation, process=0)
        self._data: dict[int, _Data] = {}
        self._by_fd: dict[int, _Data] = {}
        self._poll = select.poll()
        self._channel: Channel | None = None
        self._address: Address | None = None
        self._starting = False
        self._fatal = False
        self._troubles: deque[str] = deque(maxlen=_TROUBLES)
        self._watch_at = 0.0
        self._stopped = False
        slots = slots_for(region.num_blocks)
        self._table = Shared.create("ec-offers", table_bytes(slots))
        self._ledger = Shared.create("ec-ledger", ledger_bytes(slots))
        format_table(self._table.view, slots, secrets.token_bytes(16))
        format_ledger(self._ledger.view, slots)
        self._locks = KernelSlotLocks(self._ledger.fd)
        self._parent = ParentProcess(region, self._table, self._ledger, config.timing, clock)
        self.link = Link(engine, config.timing, fetches=self._spec.readers > 0)
        if self._spec.bind is not None:
            table, ledger = OfferTable(self._table.view), Ledger(self._ledger.view)
            self.link.offer_in(table, ledger, self._locks, config.grant_quota, clock)
        if config.events is not None:
            self.link.publish(config.events.queue)

    # ------------------------------------------------------------------------ the start
    def start(self) -> None:
        """Start them; returns when those work that are needed.

        Raises:
            DataProcessError: A port in use, an unknown backend, a region that cannot be
                registered, no memory; nothing is left running.
        """
        self._starting = True
        try:
            self._start_parent()
            deadline = time.monotonic() + self._timing.start_s + _START_SLACK_S
            while not self._complete:
                self._poll.poll(100)
                self.turn()
                if self._fatal or self._channel is None or time.monotonic() > deadline:
                    why = "; ".join(self._troubles) or "they were not ready in time"
                    raise DataProcessError(f"the data processes cannot be started: {why}")
        except BaseException:
            self.shutdown()
            raise
        finally:
            self._starting = False

    @property
    def _complete(self) -> bool:
        kinds = Counter(data.kind for data in self._data.values())
        return kinds["server"] >= int(self._spec.serves) and kinds["reader"] >= self._spec.readers

    def _start_parent(self) -> None:
        try:
            self._channel = self._parent.start(self._spec)
        except OSError as exc:
            text = f"the data processes' parent cannot be started: {exc}"
            raise DataProcessError(text) from exc
        self._poll.register(self._channel.fileno(), select.POLLIN)

    # ------------------------------------------------------------------------- the hooks
    @property
    def address(self) -> Address | None:
        """Where consumers reach this producer; None while nobody serves."""
        return None if self._stuck("server") else self._address

    def pids(self, kind: str) -> list[int]:
        """Process ids of those that work: ``server`` or ``reader``; or of the ``parent``."""
        if kind == "parent":
            return [] if self._parent.pid is None else [self._parent.pid]
        return [data.pid for data in self._data.values() if data.kind == kind]

    def turn(self) -> None:
        """Look at what has come, and say what there is to say; never waits."""
        if self._stopped:
            return
        now = self._clock()
        # Whose they are is looked up first: a descriptor that is closed here may come again
        # as another one's, and a pidfd that is taken for another one's would prove too much.
        found = [(fd, self._by_fd.get(fd)) for fd, _ in self._poll.poll(0)]
        # Whose parent is gone goes with it: that is to be known before their exits.
        found.sort(key=lambda one: one[1] is not None)
        for fd, data in found:
            if data is None:
                self._hear_parent(now)
            elif self._data.get(data.number) is not data:
                continue  # it has exited
            elif fd == data.pidfd:
                self._exited(data, now)
            else:
                self._hear(data, now)
        self.link.turn(now)
        for process, why in self.link.to_end(now):
            self._replace(process, why)
        if now >= self._watch_at:
            self._watch_at = now + self._parent.look_s
            self._parent.watch(now)
            self._watch_data()
        if self._channel is None:
            self._again(now)

    def _hear_parent(self, now: float) -> None:
        channel = self._channel
        if channel is None:
            return
        for message, fds in channel.hear_with_fds():
            if isinstance(message, words.Up):
                self._up(message, fds)
            elif isinstance(message, words.Leaving):
                self._leaves(message, now)
            else:
                logger.log(message.level, "%s: %s", message.who, message.text)
                if self._starting and message.level >= logging.ERROR:
                    self._troubles.append(message.text)
                    self._fatal = self._fatal or message.fatal
            if not isinstance(message, words.Up):
                for fd in fds:
                    os.close(fd)
        if channel.garbage:
            # Another version of it, or descriptors that did not come for want of room:
            # whom it has told us of nobody knows any more.
            logger.error("ec-parent: it is not understood, and is replaced")
            self._forget_parent(now)
        elif not channel.open:
            # Its children die with it; each is seen to exit by itself.
            logger.error("ec-parent: it is gone; another one is started")
            self._forget_parent(now)

    def _up(self, up: words.Up, fds: list[int]) -> None:
        if len(fds) != 3 or up.process in self._data:
            for fd in fds:
                os.close(fd)
            return
        channel = Channel.from_fd(fds[0], words.FromReader)
        data = _Data(up, channel, fds[1], StatusPage(Shared(fds[2], writable=False)))
        self._data[up.process] = data
        for fd in (channel.fileno(), data.pidfd):
            self._by_fd[fd] = data
            self._poll.register(fd, select.POLLIN)
        if up.kind == "reader":
            self.link.reader_works(up.process, channel)
            return
        self.link.server_works(up.process, channel)
        self._address = Source(up.host, up.port, up.key).address if up.port else None
        if up.bound and self._spec.bind is not None:
            # Whoever serves after it is to be found where it was.
            bind = (self._spec.bind[0], up.bound)
            self._spec = msgspec.structs.replace(self._spec, bind=bind)

    def _leaves(self, leaving: words.Leaving, now: float, *, excused: bool = False) -> None:
        data = self._data.get(leaving.process)
        if data is None:
            return
        self.link.reader_leaves(data.number)
        if leaving.killed:
            data.killed_at = min(data.killed_at, now)
            self.link.reader_killed(data.number, now, excused=excused)

    @property
    def stuck(self) -> int:
        """Data processes that were killed and do not exit (EC-14.13)."""
        return self._stuck("server") + self._stuck("reader")

    def _stuck(self, kind: str) -> int:
        bound = self._clock() - self._timing.stall_s
        return sum(d.killed_at <= bound for d in self._data.values() if d.kind == kind)

    def _hear(self, data: _Data, now: float) -> None:
        if data.kind == "reader":
            self.link.hear(data.number, now)
        else:
            data.channel.hear()  # it has nothing to say
        if not data.channel.open:
            # Its exit follows; until then there is nothing more to hear.
            self._unregister(data.channel.fileno())

    def _watch_data(self) -> None:
        """One that says garbage, or nothing for ever, and lives on is none of ours any more.

        One that has died says nothing either: its exit comes before the second look.
        """
        for data in self._data.values():
            if data.channel.open and not data.channel.garbage:
                continue
            if data.suspected:
                self._replace(data.number, f"{data.kind} {data.number} is not understood")
            data.suspected = True

    def _replace(self, process: int, why: str) -> None:
        """Have it killed."""
        if self._channel is not None:
            self._channel.say(words.Replace(process, why))

    def _exited(self, data: _Data, now: float) -> None:
        self._unregister(data.channel.fileno())
        self._unregister(data.pidfd)
        del self._data[data.number]
        self.link.exited(data.number, now)
        self.figures.gone(data.number, data.kind, data.status.read())
        data.close()
        if data.kind == "server" and not any(d.kind == "server" for d in self._data.values()):
            self._address = None

    def _unregister(self, fd: int) -> None:
        if self._by_fd.pop(fd, None) is not None:
            self._poll.unregister(fd)

    # ------------------------------------------------------------------ a parent that died
    def _forget_parent(self, now: float) -> None:
        if self._channel is not None:
            self._poll.unregister(self._channel.fileno())
            self._channel.close()
            self._channel = None
        self._parent.gone(now)
        for data in self._data.values():  # it takes them along, which is no peer's doing
            self._leaves(words.Leaving(data.number, killed=True), now, excused=True)

    def _again(self, now: float) -> None:
        """Another parent, when the children of the old one are gone, or are stuck.

        A server of the old one that is stuck keeps the ledger, and with it every other
        server away (EC-14.6); readers go on.
        """
        if len(self._data) > self.stuck or not self._parent.due(now):
            return
        try:
            self._start_parent()
        except DataProcessError as exc:
            logger.error("%s", exc)
            self._parent.cannot_start(now)

    # -------------------------------------------------------------------------- the end
    def read_figures(self) -> Figures:
        """What operators see, by now."""
        for data in self._data.values():
            self.figures.update(data.number, data.kind, data.status.read())
        return self.figures

    def shutdown(self) -> None:
        """End them; returns when they are gone, within a few seconds. May be called twice."""
        if self._stopped:
            return
        self._stopped = True
        channel = self._channel
        self.link.turn(self._clock())
        if channel is not None and not channel.say(words.Stop()):
            channel.close()  # which says the same, without a goodbye
        self._parent.end(_END_S)
        self._last_exits()
        if channel is not None:
            channel.close()
        self._parent.close()
        self._locks.close()
        self._table.close()
        self._ledger.close()

    def _last_exits(self) -> None:
        """What they said last, and the proof that they are gone."""
        deadline = time.monotonic() + _END_S
        for data in list(self._data.values()):
            if wait_readable(data.pidfd, deadline - time.monotonic()):
                self._exited(data, self._clock())
        for data in list(self._data.values()):
            logger.error("%s %d (pid %d) does not end", data.kind, data.number, data.pid)
            with contextlib.suppress(OSError):
                data.close()


__all__ = ["ConfigError", "DataProcessError", "DataProcesses"]
