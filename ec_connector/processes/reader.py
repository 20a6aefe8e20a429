# SPDX-License-Identifier: Apache-2.0
"""The work of a reader: fetches into what the engine lends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import zmq

from ec_connector.clock import boottime
from ec_connector.config.keyfiles import read_key_pair
from ec_connector.config.peers import AllowedPeers
from ec_connector.network.data.base import DataPlaneReader
from ec_connector.network.names import Names
from ec_connector.network.stats import NetworkStats
from ec_connector.processes.channel import Channel
from ec_connector.processes.reading import TICK_S, Reading
from ec_connector.processes.spec import DataSpec
from ec_protocol.announcements import Source
from ec_protocol.p2p import words
from ec_protocol.p2p.reader import Reader
from ec_protocol.trace import Trace

#: Words in one message.
_WORDS: Final = 512
#: It says again what could not be said.
_AGAIN_S: Final = 0.05


class ReaderWork:
    """The work of a reader.

    Args:
        spec: What it was started with.
        engine: Channel to the engine, which lends.
        parent: Channel to the parent, which is told when a READ is lost.
        plane: The data plane's reader.
        clock: Seconds of the common clock.
        trace: Where actions are recorded.
        context: Makes the sockets; None makes one of ZMQ's own.
        names: Looks host names up; None asks the system.
        tick_s: Timers are looked at no more often.
        memory: The region, for checksums; None where there are none.
    """

    def __init__(
        self,
        spec: DataSpec,
        engine: Channel,
        parent: Channel,
        plane: DataPlaneReader,
        *,
        clock: Callable[[], float] = boottime,
        trace: Trace | None = None,
        context: zmq.Context[Any] | None = None,
        names: Names | None = None,
        tick_s: float = TICK_S,
        memory: memoryview | None = None,
    ) -> None:
        self._names = Names() if names is None else names
        instance = spec.instance
        self._engine = engine
        self._parent = parent
        self._clock = clock
        self._stats = NetworkStats()
        self._context: zmq.Context[Any] = zmq.Context() if context is None else context
        self._unsaid: list[tuple[str, int]] = []
        self._draining = False
        self.reader = Reader(
            instance.num_blocks,
            instance.block_size_bytes,
            timing=instance.timers(),
            compat_hash=instance.compat_hash,
            session=f"{instance.incarnation}-{spec.process}",
            trace=trace,
            terms=instance.terms(),
        )
        self._reading = Reading(
            self._context,
            self.reader,
            plane,
            self._names,
            clock=clock,
            stats=self._stats,
            tick_s=tick_s,
            pair=None if instance.key_file is None else read_key_pair(instance.key_file),
            allowed=AllowedPeers(instance.allowed_peers),
            memory=memory if instance.checksum else None,
        )

    @property
    def sockets(self) -> list[Any]:
        """What to poll for input."""
        return self._reading.sockets

    def turn(self) -> bool:
        """Take loans, fetch, and say how it ended."""
        heard = self._engine.hear()
        now = self._clock()
        for message in heard:
            if isinstance(message, words.Lend):
                self.reader.lend(
                    message.loan,
                    message.mm_hash,
                    Source(message.host, message.port, message.key).address,
                    message.nbytes,
                    message.extents,
                    message.deadline,
                    now,
                )
            else:
                self.reader.take_back(message.loan, now)
        worked = self._reading.turn()
        self._unsaid += self.reader.words()
        while self._unsaid and self._engine.say(words.Words(self._unsaid[:_WORDS])):
            del self._unsaid[:_WORDS]
        if self.reader.lost and not self._draining:
            self._draining = self._parent.say(words.Drain("a READ is lost"))
        return worked or bool(heard)

    def transferring(self, now: float) -> bool:
        """Whether READs are under way."""
        return self._reading.transferring(now)

    def next_deadline(self) -> float | None:
        """When there is something to do next."""
        if self._unsaid:
            return self._clock() + _AGAIN_S
        return self._reading.next_deadline()

    def figures(self) -> dict[str, Any]:
        """Counters, gauges and the latencies since they were last told."""
        reader = self.reader
        return {
            "stats": dict(self._stats.counts),
            "reads": dict(reader.counters),
            "active_reads": reader.fetches.attempts.active_reads,
            "lost": reader.lost,
            "peers": len(reader.fetches.attempts.peers.usable()),
            "ack": self._stats.samples("ack"),
            "read": self._stats.samples("read"),
            "noted": dict(self._stats.noted),
        }

    def goodbye(self) -> None:
        """What is not posted fails; what is ends with the process."""
        self.reader.fetches.shutdown(self._clock())
        self.reader.commands()
        self._engine.say(words.Words(self.reader.words()[:_WORDS]))

    def close(self) -> None:
        """Close everything, where the process goes on."""
        self._reading.close()
        self._names.close()
        self._context.destroy(linger=0)
