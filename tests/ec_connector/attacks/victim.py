# SPDX-License-Identifier: Apache-2.0
"""One instance whose engine is the process that runs the tests."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ec_connector.clock import boottime
from ec_connector.config.settings import ECConfig
from ec_connector.engine.facts import ModelFacts
from ec_connector.instance import SchedulerInstance
from ec_connector.region.shared import SharedRegion
from ec_protocol.items import make_item
from ec_protocol.p2p import wire

BLOCK = 4096
FACTS = ModelFacts("test", "model", "bfloat16", 2)
COMPAT = wire.compatibility_hash("test", "model", "torch.bfloat16", BLOCK)


class Victim:
    """An instance with its data processes."""

    def __init__(self, role: str, blocks: int = 64, **extra: Any) -> None:
        settings = {"ec_cpu_bytes": blocks * BLOCK, "ec_enable_nixl": True, **extra}
        config = ECConfig.parse(settings, role)
        if config.side_channel is not None:
            config = replace(config, side_channel=("127.0.0.1", 0))
        name = f"victim-{secrets.token_hex(4)}"
        self.region = SharedRegion.open(name, 0, blocks, BLOCK, create=True, guard=False)
        try:
            self.instance = SchedulerInstance(
                config, FACTS, self.region, items=lambda request: [], engine_id=name
            )
        except BaseException:
            self.region.close(unlink=True)
            raise
        assert self.instance.data is not None
        self.data = self.instance.data
        self.node = self.instance.node
        self._waiters = 0

    @property
    def address(self) -> tuple[str, int]:
        assert self.data.address is not None
        return self.data.address

    def save(self, name: str, content: bytes) -> None:
        tier = self.node.tier
        entry = tier.alloc(name, len(content))
        assert entry is not None
        tier.begin_write(entry, ("save", 0))
        rest = content
        for extent in entry.extents:
            room = extent[1] * BLOCK
            self.region.view(extent)[: len(rest[:room])] = rest[:room]
            rest = rest[room:]
        tier.write_landed(entry, ("save", 0))
        self.data.turn()

    def content(self, name: str) -> bytes:
        tier = self.node.tier
        # Saved here, kept under that very name, or fetched from whichever peer.
        entry = tier.get(name) or next((e for e in tier.entries() if e.encoding == name), None)
        assert entry is not None, f"{name} is not there"
        return b"".join(bytes(self.region.view(e)) for e in entry.extents)[: entry.nbytes]

    def fetch(self, name: str, peer: tuple[str, int], nbytes: int, within_s: float = 30.0) -> str:
        """``ready``, or ``failed``; asks as a request does, once per step."""
        self._waiters += 1
        waiter = f"w{self._waiters}"
        item = make_item(name, 1, nbytes, 1)
        announced = {name: {"peer_host": peer[0], "peer_port": peer[1], "size_bytes": nbytes}}
        states: list[str] = []

        def asked() -> bool:
            states.append(self.node.want(item, announced, waiter, boottime()))
            return states[-1] != "pending"

        self.until(asked, within_s)
        self.node.leave(waiter, boottime())
        self.data.turn()
        return states[-1]

    def until(self, condition: Callable[[], bool], within_s: float = 30.0) -> None:
        """Step until it holds."""
        deadline = time.monotonic() + within_s
        while True:
            self.data.turn()
            if condition():
                return
            assert time.monotonic() < deadline, f"not within {within_s} s"
            time.sleep(0.001)

    def now(self) -> float:
        """Seconds of the common clock."""
        return boottime()

    def processes(self, kind: str) -> list[int]:
        """Pids of those that work."""
        return [d.pid for d in self.data._data.values() if d.kind == kind]

    def close(self) -> None:
        self.instance.shutdown()
        self.region.close(unlink=True)

    def __enter__(self) -> Victim:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
