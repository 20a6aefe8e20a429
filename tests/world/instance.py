# SPDX-License-Identifier: Apache-2.0
"""Instances with real regions, real ZMQ and real NIXL between them.

``Node`` is a whole one: its data processes are processes. ``inside.Inside`` turns the
same work in the test's own thread. The engines of both take steps while a test waits.
``Producer`` is one in a process of its own::

    python -m tests.world.instance PORT BLOCKS EXTRA

EXTRA is more of ``ec_connector_extra_config`` as JSON. It prints its port, then answers
each line on stdin: ``NAME NBYTES SEED`` saves random bytes, ``counters`` says what was
counted, ``pids`` which processes it has. It leaves when stdin closes.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import secrets
import select
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from ec_connector.config.settings import ECConfig
from ec_connector.engine.facts import ModelFacts
from ec_connector.instance import SchedulerInstance
from ec_connector.processes.link import Link
from ec_connector.region.shared import SharedRegion
from ec_protocol.engine import Engine
from ec_protocol.tier.copies import Copy
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.entry import Entry
from tests.recording import trace_file
from tests.world.processes import Child

BLOCK = 4096
#: What a process saves if nothing else is said.
NBYTES = 100 * BLOCK + 17
FACTS = ModelFacts("test", "model", "bfloat16", 2)

_seeds = itertools.count(1)


def wait_for(
    condition: Callable[[], bool], what: str, timeout_s: float = 60.0, every_s: float = 0.0005
) -> None:
    """Wait until something has happened that somebody else does; all engines take steps."""
    deadline = time.monotonic() + timeout_s
    while True:
        for instance in list(Instance.running):
            instance.turn()
        if condition():
            return
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(every_s)


def parse(role: str, blocks: int, bind: tuple[str, int], extra: dict[str, Any] | None) -> ECConfig:
    """Settings of an instance; None in ``extra`` leaves one out."""
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
    return config


class Instance:
    """One engine on a region of its own, and what a test does with it.

    Attributes:
        running: Those whose engines take steps.
    """

    running: ClassVar[list[Instance]] = []

    name: str
    region: SharedRegion
    node: Engine
    link: Link
    clock: Callable[[], float]

    @property
    def tier(self) -> EncodingTier:
        return self.node.tier

    @property
    def address(self) -> tuple[str, int]:
        """Where peers find it."""
        raise NotImplementedError

    def turn(self) -> None:
        """A hook of the engine."""
        raise NotImplementedError

    def counters(self) -> Counter[str]:
        """What engine and data processes have counted."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """The engine takes no step."""
        Instance.running.remove(self)
        try:
            yield
        finally:
            Instance.running.append(self)

    def begin_save(self, mm_hash: str, nbytes: int) -> Copy:
        """Plan a save and hand it to a worker, which takes its time."""
        copies = self.node.copies
        copy = copies.plan_save(mm_hash, nbytes)
        assert copy is not None
        copies.submit(copy)
        self.turn()
        return copy

    def end_save(self, copy: Copy, data: bytes) -> None:
        """The worker has copied."""
        for extent in copy.entry.extents:
            view = self.region.view(extent)
            view[: len(data[: len(view)])] = data[: len(view)]
            data = data[len(view) :]
        self.node.copies.report(copy.copy_id, 0, landed=True)
        self.turn()

    def save(self, mm_hash: str, data: bytes) -> Entry:
        """Put an encoding into the tier as a save that went well."""
        copy = self.begin_save(mm_hash, len(data))
        self.end_save(copy, data)
        return copy.entry

    def bytes_of(self, mm_hash: str) -> bytes:
        """What the region holds for an encoding; it must be servable."""
        entry = self.tier.get(mm_hash)
        assert entry is not None
        assert entry.servable
        data = b"".join(bytes(self.region.view(extent)) for extent in entry.extents)
        return data[: entry.nbytes]

    def ask(self, mm_hash: str, peer: tuple[str, int], nbytes: int, waiter: str = "request") -> str:
        """What the engine does in a step."""
        self.turn()
        waiters = self.node.waiters
        assert waiters is not None
        entry = self.tier.get(mm_hash)
        if entry is not None and entry.servable:
            return "ready"
        state = waiters.fetch(mm_hash, peer, nbytes, None, waiter, self.clock())
        self.turn()
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

    def wait_count(self, counter: str, at_least: int = 1) -> None:
        """Wait until something has been counted so often."""
        wait_for(lambda: self.counters()[counter] >= at_least, f"{counter}: {self.counters()}")

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Node(Instance):
    """One whole scheduler instance.

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
        config = parse(role, blocks, bind, extra)
        self.name = f"test-{os.getpid()}-{secrets.token_hex(4)}"
        self.region = SharedRegion.open(self.name, 0, blocks, BLOCK, create=True, guard=False)
        try:
            self.instance = SchedulerInstance(
                config, facts, self.region, items=lambda _: [], engine_id=self.name, **instance
            )
        except BaseException:
            self.region.close(unlink=True)
            raise
        self.node = self.instance.node
        assert self.instance.data is not None
        self.data = self.instance.data
        self.link = self.data.link
        self.clock = self.instance.scheduler.clock
        Instance.running.append(self)

    @property
    def address(self) -> tuple[str, int]:
        assert self.data.address is not None
        return self.data.address

    def turn(self) -> None:
        self.data.turn()

    def counters(self) -> Counter[str]:
        figures = self.data.read_figures()
        result = Counter(self.node.counters)
        for part in ("reads", "grants", "stats"):
            result.update(figures.totals(part))
        for half in (self.link.loans, self.link.offers):
            result.update(half.counters if half is not None else {})
        return result

    def close(self) -> None:
        if self in Instance.running:
            Instance.running.remove(self)
        self.instance.shutdown()
        self.region.close(unlink=True)


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


def next_line(node: Node) -> str | None:
    """What is said next; the engine takes steps meanwhile."""
    while not select.select([sys.stdin], [], [], 0.005)[0]:
        node.turn()
    line = sys.stdin.readline()
    return line or None


def main() -> None:
    port, blocks, extra = sys.argv[1:]
    bind = ("127.0.0.1", int(port))
    with Node("ec_producer", int(blocks), bind=bind, extra=json.loads(extra)) as node:
        sys.stdout.write(f"{node.address[1]}\n")
        sys.stdout.flush()
        while (line := next_line(node)) is not None:
            words = line.split()
            if len(words) == 3:
                node.save(words[0], random.Random(int(words[2])).randbytes(int(words[1])))
            said: object = node.counters()
            if words == ["pids"]:
                data = {f"{d.kind}-{d.number}": d.pid for d in node.data._data.values()}
                parent = node.data._parent
                said = {**data, "parent": parent and parent.pid, "engine": os.getpid()}
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
