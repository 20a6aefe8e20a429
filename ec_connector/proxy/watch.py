# SPDX-License-Identifier: Apache-2.0
"""Listens to the encoders' events, and lets ``Announced`` forget what is gone.

A thread of its own waits for messages and hands them to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Final

import zmq

from ec_connector.events.stream import Update
from ec_connector.events.subscriber import SILENCE_S, EventSubscriber
from ec_connector.proxy.announced import Address, Announced
from ec_connector.proxy.metrics import ProxyMetrics

logger = logging.getLogger(__name__)

#: After one of these the encoding cannot be read any more.
_GONE: Final = frozenset({"evicted", "lost", "quarantined", "retired"})
_POLL_MS: Final = 500


class EventWatch:
    """Subscribed to several publishers.

    Args:
        endpoints: One per encoder and data-parallel rank.
        topic: Their ``ec_events_topic``.
        announced: What is to be forgotten; used on the event loop only.
        metrics: Where to count; likewise.
        silence_s: See ``EventSubscriber``.

    Raises:
        ConfigError: An endpoint that cannot be connected to.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        topic: str,
        announced: Announced,
        metrics: ProxyMetrics,
        *,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._announced = announced
        self._metrics = metrics
        self._where: dict[str, Address] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._subscribers: list[EventSubscriber] = []
        try:
            for endpoint in endpoints:
                self._subscribers.append(
                    EventSubscriber(endpoint, None, topic, silence_s=silence_s)
                )
        except BaseException:
            self._close()
            raise

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to listen; updates are applied on ``loop``."""
        self._thread = threading.Thread(
            target=self._listen, args=(loop,), name="ec-events", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the sockets; takes up to half a second."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        else:
            self._close()

    def apply(self, endpoint: str, updates: Sequence[Update]) -> None:
        """What a publisher said. Event loop."""
        count: Counter[str] = Counter()
        for update in updates:
            if update.batch is not None and update.kind == "events":
                batch = update.batch
                if batch.host is None or batch.port is None:
                    continue  # nobody reads from it
                where = (batch.host, batch.port)
                if self._where.get(endpoint, where) != where:
                    self._forget_all(endpoint, count, watched=False)
                self._where[endpoint] = where
                self._announced.watch(where)
                for event in batch.events:
                    count["event"] += 1
                    if event.event in _GONE:
                        count["forgotten"] += self._announced.forget(where, event.mm_hash)
                    elif event.event == "dropped":
                        self._forget_all(endpoint, count, watched=True)
                    elif event.event == "stopped":
                        self._forget_all(endpoint, count, watched=False)
            elif update.kind == "missed":
                self._forget_all(endpoint, count, watched=True)
            else:  # restarted, silent
                logger.info("events of %s: %s", endpoint, update.kind)
                self._forget_all(endpoint, count, watched=False)
        self._metrics.events.inc(count["event"])
        self._metrics.announcements.labels("forgotten").inc(count["forgotten"])

    # -------------------------------------------------------------------- internals
    def _forget_all(self, endpoint: str, count: Counter[str], *, watched: bool) -> None:
        where = self._where.get(endpoint)
        if where is not None:
            count["forgotten"] += self._announced.forget_all(where, watched=watched)

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        poller = zmq.Poller()
        for subscriber in self._subscribers:
            for socket in subscriber.sockets:
                poller.register(socket, zmq.POLLIN)
        try:
            while not self._stopping.is_set():
                poller.poll(_POLL_MS)
                for subscriber in self._subscribers:
                    updates = subscriber.receive()
                    if updates and not loop.is_closed():
                        loop.call_soon_threadsafe(self.apply, subscriber.endpoint, updates)
        except Exception:
            # Without events nothing that was announced may be believed.
            logger.exception("events of encoders are not heard any more")
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._hear_no_more)
        finally:
            self._close()

    def _hear_no_more(self) -> None:
        for subscriber in self._subscribers:
            self.apply(subscriber.endpoint, [Update("silent")])

    def _close(self) -> None:
        for subscriber in self._subscribers:
            subscriber.close()
