# SPDX-License-Identifier: Apache-2.0
"""Encodings that are made at one instance and arrive at another."""

from __future__ import annotations

import itertools
import os

from tests.world.instance import BLOCK, Node, wait_for

#: A file that the engine holds open and that a careless start would pass on.
MARK = "ec-test-mark"

_count = itertools.count()


def fresh(producer: Node, nbytes: int = 2 * BLOCK) -> tuple[str, bytes]:
    """A new encoding at the producer."""
    encoding, data = f"e{next(_count)}", os.urandom(nbytes)
    producer.save(encoding, data)
    return encoding, data


def served(producer: Node, consumer: Node) -> None:
    """A new encoding arrives."""
    arrives(*fresh(producer), producer, consumer)


def arrives(encoding: str, data: bytes, producer: Node, consumer: Node) -> None:
    """An encoding arrives, within the tries that an address that cools down takes.

    Not too many of them: each is recorded.
    """

    def arrived() -> bool:
        asked = f"r{next(_count)}"
        return consumer.fetch(encoding, producer.address, len(data), asked) == "ready"

    wait_for(arrived, "an encoding", 120.0, every_s=0.1)
    assert consumer.bytes_of(encoding) == data
