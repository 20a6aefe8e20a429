# SPDX-License-Identifier: Apache-2.0
"""Runs that record traces, for the tests of trace checking."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ec_protocol.trace import Trace
from ec_verify.traces.load import Run, make_run
from tests.world.core import BLOCK, PRODUCER, World
from tests.world.schedules import ConnectorMachine

Raw = dict[str, Any]


def as_read(record: Mapping[str, Any]) -> Raw:
    """A record as it comes back from a file."""
    result: Raw = json.loads(json.dumps(record))
    return result


class Recorded(World):
    """Two linked ends that record into one list."""

    def __init__(self, **options: Any) -> None:
        self.records: list[Raw] = []
        super().__init__(sink=lambda record: self.records.append(as_read(record)), **options)

    def run(self, name: str = "world") -> Run:
        """What was recorded, as a run of two processes in one file."""
        return make_run(name, [(name, self.records)])

    def streams(self) -> Run:
        """The same as a run of one file for each process."""
        nodes = sorted({record["node"] for record in self.records})
        return make_run("world", [(n, [r for r in self.records if r["node"] == n]) for n in nodes])

    def fetched(self, mm_hash: str = "a", blocks: int = 1) -> int:
        """Save at the producer and fetch up to the posted READ; returns the attempt."""
        self.producer.save(mm_hash, blocks * BLOCK)
        return self.reading(mm_hash, blocks)

    def reading(self, mm_hash: str = "a", blocks: int = 1) -> int:
        """Fetch up to the posted READ; returns the attempt."""
        attempt = self.granted(mm_hash, blocks)
        assert self.post(attempt)
        return attempt

    def granted(self, mm_hash: str = "a", blocks: int = 1) -> int:
        """Fetch up to the seen ack; returns the attempt."""
        assert self.fetch(mm_hash, blocks * BLOCK) == "pending"
        self.exchange()
        return max(self.prepared)

    def end_peer(self) -> None:
        """The consumer loses its producer."""
        self.reads.peer_lost(PRODUCER, self.now)
        self.carry_out()


class TracedMachine(ConnectorMachine):
    """The random schedules of ``tests.world.schedules``, each recorded as one run."""

    finished: Callable[[list[Raw]], None] = staticmethod(lambda records: None)

    def trace(self, node: str, rate: float) -> Trace:
        if not hasattr(self, "records"):
            self.records: list[Raw] = []
        return Trace(
            node,
            lambda: self.world.time * rate,
            lambda record: self.records.append(as_read(record)),
        )

    def teardown(self) -> None:
        super().teardown()
        if getattr(self, "records", None):
            self.finished(self.records)
