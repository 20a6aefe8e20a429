# SPDX-License-Identifier: Apache-2.0
"""Connectors of ``docs/build-a-connector.md``: made here, and as a producer in a process.

``python -m tests.world.plain PORT ROWS…`` saves encodings of so many rows, says in one
line what it announces, and serves until its standard input ends. To each line that it gets
it answers with how many grants are open.
"""

from __future__ import annotations

import json
import random
import sys
from itertools import count
from os import getpid
from selectors import EVENT_READ
from typing import Any

from ec_protocol import Item, Node, Peering, Timing, make_item
from ec_verify.kit.examples.connector import Connector, save
from tests.recording import recorded
from tests.world.processes import Child

WIDTH, ELEMENT, BLOCK = 512, 2, 4096
#: Times that leave room for a slow machine, but for those that a test waits out.
TIMING = Timing(
    heartbeat_interval_s=0.2, heartbeat_timeout_s=0.4, heartbeat_ttl_s=0.8, announce_hold_s=60.0
)

_starts = count(1)


def item(rows: int) -> Item:
    return make_item(f"picture-{rows}", rows, WIDTH, ELEMENT)


def content(wanted: Item) -> bytes:
    """Bytes that follow from the name, no two blocks alike."""
    return random.Random(wanted.mm_hash).randbytes(wanted.nbytes)


def connector(role: Any, blocks: int, port: int = 0, timing: Timing = TIMING) -> Connector:
    name = f"{role}-{getpid()}-{next(_starts)}"
    node = Node(
        blocks=blocks,
        block_bytes=BLOCK,
        role=role,
        timing=timing,
        peering=Peering(
            vllm_version="test",
            model="m",
            dtype="torch.bfloat16",
            incarnation=name,
            base_addr=1 << 20,
        ),
        # By the connector's own clock, which a test may put forward.
        trace=recorded(name, lambda: made.clock()),
    )
    made = Connector(node, bytearray(blocks * BLOCK), ("127.0.0.1", port))
    return made


class Producer(Child):
    """A producer in a process of its own, with encodings of so many rows."""

    def __init__(self, *rows: int, port: int = 0) -> None:
        super().__init__("-m", "tests.world.plain", *map(str, (port, *rows)), greets=True)
        self.announced: dict[str, Any] = self.hello

    def open_grants(self) -> int:
        return int(self.tell("?"))


def main() -> None:
    port, *rows = map(int, sys.argv[1:])
    items = [item(n) for n in rows]
    # Twice the room: no encoding is larger than what all grants together may pin.
    blocks = 2 * sum(-(-one.nbytes // BLOCK) for one in items)
    producer = connector("producer", blocks, port)
    announced: dict[str, Any] = {}
    for one in items:
        announced |= save(producer, one, content(one))
    running = True

    def spoken_to(_: int) -> None:
        nonlocal running
        running = bool(sys.stdin.buffer.raw.readline())  # type: ignore[union-attr]
        tell(producer.node.grants.open_grants)  # type: ignore[union-attr]

    producer.selector.register(sys.stdin, EVENT_READ, spoken_to)
    tell(announced)
    while running:
        producer.turn()
    producer.close()


def tell(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
