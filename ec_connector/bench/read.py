# SPDX-License-Identifier: Apache-2.0
"""A peer-to-peer READ of ours beside one of a single descriptor, of the same bytes.

Ours is a reader's: from posting the READ to seeing it done. The baselines are
the same into one extent, and NIXL alone with both sides polling without a pause, between
the same two processes in the same run. What a checksum costs is measured on whole fetches:
the producer makes it before it answers, and the consumer compares after the READ.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from typing import Any, Final

import torch

from ec_connector.bench import peers
from ec_connector.bench.rows import Row
from ec_connector.network.data.library import Agent

#: 880 rows of 16 KiB: a picture of about a megapixel.
_BLOCKS: Final = 880
_NBYTES: Final = _BLOCKS * peers.BLOCK


def run(quick: bool = False) -> list[Row]:
    """Rate of the READ itself, and of the whole fetch."""
    count = 6 if quick else 24
    reads: dict[str, list[float]] = {"one": [], "two": [], "checked": [], "plain": []}
    whole: dict[str, list[float]] = {name: [] for name in reads}
    with peers.producer("idle", 0.01, count, _NBYTES, plain=True) as (offer, busy):
        one = peers.Node("ec_consumer", count * _BLOCKS)
        two = peers.Node("ec_consumer", count * (_BLOCKS + 2))
        two.only_halves(count, _BLOCKS)
        checked = peers.Node("ec_consumer", count * (_BLOCKS + 2), settings=peers.CHECKED)
        checked.only_halves(count, _BLOCKS)
        plain = _Plain(offer, busy)

        def ours(case: str, node: peers.Node, number: int, extents: int) -> float:
            name = offer.names[number]
            seconds, places = node.fetch(name, offer.address, offer.nbytes)
            whole[case].append(seconds)
            if len(places) != extents:
                raise RuntimeError(f"{name} lies in {len(places)} extents, not {extents}")
            _compare(node, places, number % 251)
            return node.samples("read", number + 1)[-1]

        turns: list[tuple[str, Callable[[int], float]]] = [
            ("one", lambda i: ours("one", one, i, 1)),
            ("two", lambda i: ours("two", two, i, 2)),
            ("checked", lambda i: ours("checked", checked, i, 2)),
            ("plain", plain.read),
        ]
        try:
            for i in range(count):
                # Whoever comes first finds the bytes in no cache.
                for name, read in turns[i % 4 :] + turns[: i % 4]:
                    reads[name].append(read(i))
        finally:
            plain.close()
            one.close()
            two.close()
            checked.close()
    # The first of each opens connections and maps memory.
    rates = {name: _rate(samples[1:]) for name, samples in reads.items()}
    size = f"{_NBYTES / 1e6:.1f} MB"
    bare = "beside a bare READ of one descriptor, both sides spinning"
    return [
        Row(
            "read",
            f"READ of {size} in two extents, beside ours in one",
            rates["two"],
            rates["one"],
            "GB/s",
        ),
        Row("read", f"READ of {size} in one extent, {bare}", rates["one"], rates["plain"], "GB/s"),
        Row("read", f"READ of {size} in two extents, {bare}", rates["two"], rates["plain"], "GB/s"),
        Row(
            "read",
            f"whole fetch of {size} with request and ack, {bare}",
            _rate(whole["two"][1:]),
            rates["plain"],
            "GB/s",
        ),
        Row(
            "read",
            f"whole fetch of {size} with a checksum, beside the same without",
            _rate(whole["checked"][1:]),
            _rate(whole["two"][1:]),
            "GB/s",
        ),
    ]


def _rate(samples: list[float]) -> float:
    return _NBYTES / statistics.median(samples) / 1e9


def _compare(node: peers.Node, extents: tuple[tuple[int, int], ...], fill: int) -> None:
    for start, count in extents:
        part = node.region.tensor[start * peers.BLOCK : (start + count) * peers.BLOCK]
        if bool((part != fill).any()):
            raise RuntimeError("a READ brought wrong bytes")


class _Plain:
    """NIXL alone: one agent and one descriptor, the encodings side by side in its buffer."""

    def __init__(self, offer: peers.Offer, busy: Event) -> None:
        self._offer = offer
        self._busy = busy
        size = _NBYTES * len(offer.names)
        self._buffer = torch.zeros(size, dtype=torch.uint8)
        self._agent = Agent(
            f"plain-reader-{offer.baseline}", ("UCX",), self._buffer.data_ptr(), size
        )
        name: Any = self._agent.nixl.add_remote_agent(offer.agent_metadata)
        self._peer = name.decode() if isinstance(name, bytes) else str(name)

    def read(self, number: int) -> float:
        """Read one encoding; seconds from posting to done."""
        self._busy.set()
        try:
            return self._read(number)
        finally:
            self._busy.clear()

    def _read(self, number: int) -> float:
        nixl = self._agent.nixl
        target = self._buffer.data_ptr() + number * _NBYTES
        local = nixl.get_xfer_descs([(target, _NBYTES, 0)], "DRAM")
        remote = nixl.get_xfer_descs([(self._offer.places[number], _NBYTES, 0)], "DRAM")
        handle = nixl.initialize_xfer("READ", local, remote, self._peer, b"")
        began = time.perf_counter()
        state = nixl.transfer(handle)
        while state not in ("DONE", "ERR"):
            state = nixl.check_xfer_state(handle)
        seconds = time.perf_counter() - began
        nixl.release_xfer_handle(handle)
        if state != "DONE":
            raise RuntimeError("the baseline's READ failed")
        return seconds

    def close(self) -> None:
        """End the agent."""
        self._agent.destroy()
