# SPDX-License-Identifier: Apache-2.0
"""Drives ``data_child`` from a test, and waits for what a reader has to say."""

from __future__ import annotations

import base64
import ctypes
import mmap
import random

from ec_connector.network.data import NixlReader, ReadEvent
from tests.world.processes import Child, until

#: UCX_TLS for sockets alone. Where there is a GPU, NIXL wants a transport for it named too.
TCP = "tcp,cuda_copy"


class Producer(Child):
    """One producer process.

    Args:
        nbytes: Size of its region.
        seed: Decides its content.
        name: Of its agent; the same name after a restart is a case of its own.
        env: Added to the environment.
    """

    def __init__(
        self,
        nbytes: int = 1 << 20,
        *,
        seed: int = 1,
        name: str = "producer",
        env: dict[str, str] | None = None,
    ) -> None:
        self.nbytes = nbytes
        self.content = random.Random(seed).randbytes(nbytes)
        arguments = [name, str(nbytes), str(seed)]
        super().__init__(
            "-m", "tests.ec_connector.network.data_child", *arguments, env=env, greets=True
        )
        self.metadata = base64.b64decode(self.hello["metadata"])
        self.address = self.hello["address"]

    def tell(self, line: str) -> list[str]:
        """Give a command; the notices that came so far."""
        return super().tell(line)["notices"]


class Region:
    """Memory of the consumer, filled with a pattern that no producer sends."""

    def __init__(self, nbytes: int = 1 << 20) -> None:
        self.nbytes = nbytes
        self.memory = mmap.mmap(-1, nbytes)
        self.clear()
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def clear(self) -> None:
        self.memory[:] = b"\xa5" * self.nbytes

    def bytes(self, offset: int, nbytes: int) -> bytes:
        return self.memory[offset : offset + nbytes]


def events_until(reader: NixlReader, count: int = 1) -> list[ReadEvent]:
    """Poll until there were ``count`` events."""
    events: list[ReadEvent] = []

    def poll() -> bool:
        events.extend(reader.poll())
        return len(events) >= count

    until(poll, f"{count} READ events")
    return events


def poll_for(reader: NixlReader, rounds: int = 2000) -> list[ReadEvent]:
    """Poll a number of times: long enough for anything that is going to move."""
    return [event for _ in range(rounds) for event in reader.poll()]


def prepare(reader: NixlReader, attempt: int, producer: Producer, nbytes: int = 4096) -> None:
    reader.prepare(
        attempt,
        producer.metadata,
        [(0, nbytes)],
        [(producer.address, nbytes)],
        0,
        f"s.{attempt}:h".encode(),
    )


def read(reader: NixlReader, attempt: int, producer: Producer, nbytes: int = 4096) -> None:
    prepare(reader, attempt, producer, nbytes)
    reader.post(attempt)


def connected(reader: NixlReader, producer: Producer) -> None:
    """A READ that completes, so that later ones do not wait for a connection."""
    read(reader, 0, producer)
    assert events_until(reader)[0].outcome == "done"
    reader.release(0)
