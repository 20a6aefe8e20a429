# SPDX-License-Identifier: Apache-2.0
"""Instances with real regions, real ZMQ and real NIXL between them.

``Node`` is one in this process, ``Producer`` one in a process of its own::

    python -m tests.world.instance PORT BLOCKS EXTRA

EXTRA is more of ``ec_connector_extra_config`` as JSON. It prints its port, then answers
each line on stdin: ``NAME NBYTES SEED`` saves random bytes, ``counters`` says what was
counted. It leaves when stdin closes.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import secrets
import sys
from typing import Any

from ec_connector.config.settings import ECConfig
from ec_connector.engine.facts import ModelFacts
from ec_connector.instance import SchedulerInstance
from ec_connector.region.shared import SharedRegion
from ec_protocol.tier.copies import Copy
from ec_protocol.tier.entry import Entry
from tests.recording import trace_file
from tests.world.processes import Child, until

BLOCK = 4096
#: What a process saves if nothing else is said.
NBYTES = 100 * BLOCK + 17
FACTS = ModelFacts("test", "model", "bfloat16", 2)

_seeds = itertools.count(1)


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

        until(decided, f"the fetch of {mm_hash}", 60.0)
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


class Producer(Child):
    """The other process.

    Args:
        port: Control port; 0 takes a free one.
        blocks: Blocks of its region.
        extra: More of ``ec_connector_extra_config``.
    """

    def __init__(self, port: int = 0, blocks: int = 512, **extra: Any) -> None:
        arguments = [str(port), str(blocks), json.dumps(extra)]
        super().__init__("-m", "tests.world.instance", *arguments, greets=True)
        self.address = ("127.0.0.1", self.hello)

    def save(self, nbytes: int = NBYTES) -> tuple[str, bytes]:
        """Let it save a new encoding; name and bytes."""
        seed = next(_seeds)
        self.tell(f"h{seed} {nbytes} {seed}")
        return f"h{seed}", random.Random(seed).randbytes(nbytes)


def main() -> None:
    port, blocks, extra = sys.argv[1:]
    bind = ("127.0.0.1", int(port))
    with Node("ec_producer", int(blocks), bind=bind, extra=json.loads(extra)) as node:
        sys.stdout.write(f"{node.address[1]}\n")
        sys.stdout.flush()
        for line in sys.stdin:
            words = line.split()
            if len(words) == 3:
                node.save(words[0], random.Random(int(words[2])).randbytes(int(words[1])))
            sys.stdout.write(json.dumps(node.counters()) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
