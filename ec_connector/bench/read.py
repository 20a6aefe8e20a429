# SPDX-License-Identifier: Apache-2.0
"""A peer-to-peer READ of ours beside one of a single descriptor, of the same bytes.

Ours goes through the pump: from posting the READ to seeing it done, into an entry in
two extents. The baseline is NIXL alone, with both sides polling, between the same two
processes in the same run.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

import torch

from ec_connector.bench import peers
from ec_connector.bench.rows import Row
from ec_connector.data.library import Agent

#: 880 rows of 16 KiB: a picture of about a megapixel.
_BLOCKS: Final = 880
_NBYTES: Final = _BLOCKS * peers.BLOCK


def run(quick: bool = False) -> list[Row]:
    """Rate of the READ itself, and of the whole fetch."""
    count = 6 if quick else 24
    with peers.producer("idle", 0.01, count, _NBYTES) as offer:
        node = peers.Node("ec_consumer", count * (_BLOCKS + 2))
        node.only_halves(count, _BLOCKS)
        plain = _Plain(offer)
        try:
            whole: list[float] = []
            single: list[float] = []
            pieces: list[int] = []
            for i, name in enumerate(offer.names):
                if i % 2:  # whoever is second finds the bytes in a cache
                    single.append(plain.read(i))
                seconds, extents = node.fetch(name, offer.address, offer.nbytes)
                if not i % 2:
                    single.append(plain.read(i))
                _compare(node, extents, i % 251)
                whole.append(seconds)
                pieces.append(len(extents))
            reads = node.p2p.pump.stats.samples("read")
        finally:
            plain.close()
            node.close()
    # The first of each opens connections and maps memory.
    ours, entire, theirs = (_rate(samples[1:]) for samples in (reads, whole, single))
    beside = f"{_NBYTES / 1e6:.1f} MB, beside one descriptor"
    extents_each = statistics.fmean(pieces)
    return [
        Row("read", f"READ in {extents_each:.1f} extents, {beside}", ours, theirs, "GB/s"),
        Row("read", f"whole fetch with request and ack, {beside}", entire, theirs, "GB/s"),
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

    def __init__(self, offer: peers.Offer) -> None:
        self._offer = offer
        size = _NBYTES * len(offer.names)
        self._buffer = torch.zeros(size, dtype=torch.uint8)
        self._agent = Agent(
            f"plain-reader-{offer.baseline}", ("UCX",), self._buffer.data_ptr(), size
        )
        name: Any = self._agent.nixl.add_remote_agent(offer.agent_metadata)
        self._peer = name.decode() if isinstance(name, bytes) else str(name)

    def read(self, number: int) -> float:
        """Read one encoding; seconds from posting to done."""
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
