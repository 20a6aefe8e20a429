# SPDX-License-Identifier: Apache-2.0
"""Costs of the core beside a baseline, measured in turns in one process.

    python bench/core.py [--json] [dispatch|tier|ack ...]

* `dispatch`: one event through the compiled dispatcher, against the same event
  through the `transitions` machine that it was compiled from.
* `tier`: alloc + ready + pin + unpin of one entry, against a cache that
  keeps a list of block numbers per entry, as hand-written connectors do.
* `ack`: bytes of a producer's answer without the agent's metadata, against one
  that describes every block of the region.

Only the ratios mean anything on a busy machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from ec_protocol import wire
from ec_protocol.dispatch import ENTRY
from ec_protocol.entry import Entry
from ec_protocol.lifecycle import load_lifecycles
from ec_protocol.machines import GuardedModel, build_machine
from ec_protocol.producer import ProducerGrants
from ec_protocol.tier import EncodingTier
from ec_protocol.timing import Timing

BLOCK = 8192
REPEATS = 15


@dataclass(frozen=True)
class Row:
    """One comparison; `ratio` is ours / baseline."""

    bench: str
    case: str
    ours: float
    baseline: float
    unit: str

    @property
    def ratio(self) -> float:
        """Below 1 is better than the baseline, for every unit used here."""
        return self.ours / self.baseline


def in_turns(loops: int, *bodies: Callable[[], object]) -> list[float]:
    """Microseconds per call of each body, measured alternately; the best round counts.

    Taking turns lets a change of the machine's speed hit all bodies alike, and
    other processes can only add to a round, never take from it.
    """
    samples: list[list[float]] = [[] for _ in bodies]
    for _ in range(REPEATS):
        for body, taken in zip(bodies, samples, strict=True):
            start = time.perf_counter()
            for _ in range(loops):
                body()
            taken.append((time.perf_counter() - start) / loops * 1e6)
    return [min(taken) for taken in samples]


def bench_dispatch() -> list[Row]:
    """Events `pin` and `unpin` of an entry: one edge without guards, one with."""
    lifecycle = load_lifecycles()["entry"]
    machine = build_machine(lifecycle)
    model = GuardedModel(lifecycle, frozenset({"last_holder"}))
    machine.add_model(model, initial="ready")
    last_holder = ENTRY.mask("last_holder")

    def ours() -> None:
        step = ENTRY.fire("ready", "pin")
        ENTRY.fire(step.state, "unpin", last_holder)

    def theirs() -> None:
        model.pin()  # type: ignore[attr-defined]
        model.unpin()  # type: ignore[attr-defined]
        model.effects.clear()

    mine, reference = in_turns(1000, ours, theirs)
    return [Row("dispatch", "one event (mean of pin, unpin)", mine / 2, reference / 2, "us")]


class BlockListCache:
    """The baseline: a LIFO free list of block numbers and a sorted list per entry."""

    def __init__(self, blocks: int) -> None:
        self.free = list(range(blocks))
        self.ready: OrderedDict[str, list[int]] = OrderedDict()
        self.pinned: dict[str, list[int]] = {}

    def cycle(self, name: str, count: int) -> None:
        """Allocate, evicting the oldest; make ready; pin; unpin."""
        while len(self.free) < count:
            self.free.extend(self.ready.popitem(last=False)[1])
        self.ready[name] = sorted(self.free.pop() for _ in range(count))
        self.pinned[name] = self.ready.pop(name)
        self.ready[name] = self.pinned.pop(name)


def bench_tier() -> list[Row]:
    """One entry gets room, lands, is pinned and unpinned; in a full region each evicts one."""
    rows = []
    for count in (256, 880, 4096):
        tier = EncodingTier(8 * count, BLOCK)
        cache = BlockListCache(8 * count)
        ours_numbers, their_numbers = itertools.count(), itertools.count()

        def ours(
            tier: EncodingTier = tier, count: int = count, numbers: Iterator[int] = ours_numbers
        ) -> None:
            number = next(numbers)
            entry = _landed(tier, str(number), count, number)
            tier.pin(entry, ("load", number))
            tier.unpin(entry, ("load", number))

        def theirs(
            cache: BlockListCache = cache,
            count: int = count,
            numbers: Iterator[int] = their_numbers,
        ) -> None:
            cache.cycle(str(next(numbers)), count)

        mine, reference = in_turns(200, ours, theirs)
        rows.append(Row("tier", f"entry of {count} blocks", mine, reference, "us"))
    return rows


def _landed(tier: EncodingTier, name: str, blocks: int, number: int) -> Entry:
    entry = tier.alloc(name, blocks * BLOCK)
    assert entry is not None
    tier.begin_write(entry, ("save", number))
    tier.write_landed(entry, ("save", number))
    return entry


def bench_ack() -> list[Row]:
    """The answer for an entry of 880 blocks in two extents. The regions are not mapped."""
    rows = []
    for gib in (1, 64):
        tier = EncodingTier((gib << 30) // BLOCK, BLOCK)
        _landed(tier, "first", 440, 1)
        wall = _landed(tier, "wall", tier.num_blocks - 880, 2)
        tier.pin(wall, ("hold", 1))
        entry = _landed(tier, "wanted", 880, 3)  # evicts "first": one extent on each side
        assert len(entry.extents) == 2, entry.extents

        base = 0x7F00_0000_0000
        grants = ProducerGrants(
            tier,
            timing=Timing(),
            compat_hash="c" * 64,
            incarnation="i" * 32,
            base_addr=base,
            agent_metadata=b"m",
        )
        request = wire.XferReq(
            mm_hash="wanted",
            compatibility_hash="c" * 64,
            session_id="s" * 40,
            connector_version=wire.PREFERRED_VERSION,
            attempt_id=1,
        )
        ack = grants.on_request(b"peer", request, 0.0)
        assert ack.status == wire.XferStatus.OK, ack
        # Addresses of one region all take the same number of bytes, so the whole
        # descriptor's size follows from two of them.
        one, two = (len(wire.mem_descriptor(base, n, BLOCK)) for n in (1, 2))
        described = (two - one) * tier.num_blocks
        rows.append(
            Row("ack", f"region of {gib} GiB", len(wire.encode(ack)) - 1, described, "bytes")
        )
    return rows


BENCHES: dict[str, Callable[[], list[Row]]] = {
    "dispatch": bench_dispatch,
    "tier": bench_tier,
    "ack": bench_ack,
}


def main() -> int:
    """Run the benchmarks named on the command line, all without names."""
    parser = argparse.ArgumentParser(description="Costs of the core beside a baseline.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BENCHES]
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such benchmark; choose from {', '.join(BENCHES)}")

    rows: list[Row] = []
    for name in options.names or BENCHES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows += BENCHES[name]()
    if options.json:
        machine = {
            "cpus": os.cpu_count(),
            "arch": platform.machine(),
            "python": platform.python_version(),
        }
        documents = [asdict(row) | {"ratio": row.ratio} for row in rows]
        print(json.dumps({"machine": machine, "rows": documents}))
        return 0
    print(f"{'bench':10}{'case':34}{'ours':>12}{'baseline':>14} {'unit':6}{'ratio':>10}")
    for row in rows:
        print(
            f"{row.bench:10}{row.case:34}{row.ours:>12.2f}{row.baseline:>14.2f} "
            f"{row.unit:6}{row.ratio:>10.2g}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
