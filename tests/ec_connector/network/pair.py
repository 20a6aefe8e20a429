# SPDX-License-Identifier: Apache-2.0
"""Two instances in one process, with real regions, real ZMQ and real NIXL between them."""

from __future__ import annotations

import dataclasses
import os
import secrets
import time
from collections.abc import Callable
from typing import Any

from ec_connector.config.settings import ECConfig
from ec_connector.engine.facts import ModelFacts
from ec_connector.instance import SchedulerInstance
from ec_connector.region.shared import SharedRegion
from ec_protocol.tier.copies import Copy
from ec_protocol.tier.entry import Entry
from tests.recording import trace_file

BLOCK = 4096
FACTS = ModelFacts("test", "model", "bfloat16", 2)


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    """Wait until something that another thread does has happened."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.0005)


class Node:
    """One scheduler instance on a region of its own.

    Args:
        role: ``ec_producer``, ``ec_consumer`` or ``ec_both``.
        blocks: Blocks of the region.
        bind: Control address; port 0 takes a free one.
        facts: What the compatibility hash is made of.
        extra: More of ``ec_connector_extra_config``; None leaves a setting out.
        instance: Further arguments of ``SchedulerInstance``.
    """

    def __init__(
        self,
        role: str,
        blocks: int = 64,
        *,
        bind: tuple[str, int] = ("127.0.0.1", 0),
        facts: ModelFacts = FACTS,
        extra: dict[str, Any] | None = None,
        **instance: Any,
    ) -> None:
        settings = {
            "ec_cpu_bytes": blocks * BLOCK,
            "ec_enable_nixl": True,
            "ec_trace_file": trace_file(role),
            **(extra or {}),
        }
        settings = {name: value for name, value in settings.items() if value is not None}
        config = ECConfig.parse(settings, role)
        if config.side_channel is not None:
            config = dataclasses.replace(config, side_channel=bind)
        name = f"test-{os.getpid()}-{secrets.token_hex(4)}"
        self.region = SharedRegion.open(name, 0, blocks, BLOCK, create=True, guard=False)
        try:
            self.instance = SchedulerInstance(
                config, facts, self.region, items=lambda request: [], engine_id=name, **instance
            )
        except BaseException:
            self.region.close(unlink=True)
            raise
        self.node = self.instance.node
        self.tier = self.node.tier
        self.lock = self.instance.lock
        assert self.instance.p2p is not None
        self.p2p = self.instance.p2p

    @property
    def address(self) -> tuple[str, int]:
        assert self.p2p.address is not None
        return self.p2p.address

    def begin_save(self, mm_hash: str, nbytes: int) -> Copy:
        """Plan a save and hand it to a worker, which takes its time; under the lock."""
        copies = self.node.copies
        copy = copies.plan_save(mm_hash, nbytes)
        assert copy is not None
        copies.submit(copy)
        return copy

    def end_save(self, copy: Copy, data: bytes) -> None:
        """The worker has copied; under the lock."""
        for extent in copy.entry.extents:
            view = self.region.view(extent)
            view[: len(data[: len(view)])] = data[: len(view)]
            data = data[len(view) :]
        self.node.copies.report(copy.copy_id, 0, landed=True)

    def save(self, mm_hash: str, data: bytes) -> Entry:
        """Put an encoding into the tier as a save that went well."""
        with self.lock:
            copy = self.begin_save(mm_hash, len(data))
            self.end_save(copy, data)
        self.p2p.wake()
        return copy.entry

    def bytes_of(self, mm_hash: str) -> bytes:
        """What the region holds for an encoding; it must be servable."""
        with self.lock:
            entry = self.tier.get(mm_hash)
            assert entry is not None
            assert entry.servable
            data = b"".join(bytes(self.region.view(extent)) for extent in entry.extents)
            return data[: entry.nbytes]

    def ask(self, mm_hash: str, peer: tuple[str, int], nbytes: int, waiter: str = "request") -> str:
        """What the engine thread does in a step: ask, and wake the pump."""
        consumer = self.node.reads
        assert consumer is not None
        with self.lock:
            entry = self.tier.get(mm_hash)
            if entry is not None and entry.servable:
                return "ready"
            state = consumer.fetch(mm_hash, peer, nbytes, None, waiter, self.p2p.clock())
        self.p2p.wake()
        return state

    def fetch(
        self, mm_hash: str, peer: tuple[str, int], nbytes: int, waiter: str = "request"
    ) -> str:
        """Ask until it is decided: ``ready`` or ``failed``."""
        answer = "pending"

        def decided() -> bool:
            nonlocal answer
            answer = self.ask(mm_hash, peer, nbytes, waiter)
            return answer != "pending"

        wait_for(decided, f"the fetch of {mm_hash}", 60.0)
        return answer

    def counters(self) -> dict[str, int]:
        """Counters of consumer and producer."""
        result: dict[str, int] = {}
        with self.lock:
            for half in (self.node.reads, self.node.grants):
                if half is not None:
                    result.update(half.counters)
        return result

    def close(self) -> None:
        self.instance.shutdown()
        self.region.close(unlink=True)

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
