# SPDX-License-Identifier: Apache-2.0
"""The tier under churn, beside a hand-written per-block cache, in turns in one process.

    python bench/tier.py [--json] [--seed N] [BLOCKS ...]

A full region of 24 mean-sized entries. Each new encoding has between half and one and
a half times BLOCKS blocks; it gets room (which evicts), lands, is pinned, and is
unpinned only after a few others came, not in the order of its coming. So evictions
pass over pinned entries and holes of all sizes appear.

Rows: microseconds per entry for alloc + ready + pin + unpin, and the number of
separate pieces in which an entry lies (each is a copy or a descriptor of its own).
``core.py`` measures the same calls without churn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from ec_connector.bench.baselines import BlockListCache
from ec_protocol.tier import EncodingTier

BLOCK = 16384
SIZES = (256, 880, 4096, 65536)
ENTRIES = 24
HELD = 4
#: (name, blocks, which of the held ones is unpinned)
Script = list[tuple[str, int, int]]


def script(seed: int, blocks: int, count: int) -> Script:
    """What happens, made beforehand so that making it is not measured."""
    rng = random.Random(f"{seed}:{blocks}")
    least, most = blocks // 2, blocks + blocks // 2
    return [(f"e{i}", rng.randint(least, most), rng.randrange(HELD)) for i in range(count)]


class Ours:
    """The tier of this project."""

    def __init__(self, num_blocks: int) -> None:
        self.tier = EncodingTier(num_blocks, BLOCK)
        self.held: list[tuple[Any, int]] = []
        self.number = 0
        self.pieces: list[int] = []

    def play(self, steps: Script) -> None:
        """The four calls for each entry."""
        tier, held = self.tier, self.held
        for name, blocks, which in steps:
            number = self.number = self.number + 1
            entry = tier.alloc(name, blocks * BLOCK)
            assert entry is not None
            tier.begin_write(entry, ("save", number))
            tier.write_landed(entry, ("save", number))
            tier.pin(entry, ("load", number))
            held.append((entry, number))
            if len(held) == HELD:
                entry, number = held.pop(which)
                tier.unpin(entry, ("load", number))

    def look(self) -> None:
        """Note in how many pieces the entries lie."""
        self.pieces += [len(entry.extents) for entry in self.tier.entries()]


class Theirs:
    """The hand-written cache of ``baselines``."""

    def __init__(self, num_blocks: int) -> None:
        self.cache = BlockListCache(num_blocks)
        self.held: list[str] = []
        self.pieces: list[int] = []

    def play(self, steps: Script) -> None:
        """The four calls for each entry."""
        cache, held = self.cache, self.held
        for name, blocks, which in steps:
            if not cache.alloc(name, blocks):
                raise AssertionError("the region is large enough")
            cache.mark_ready(name)
            cache.pin(name)
            held.append(name)
            if len(held) == HELD:
                cache.unpin(held.pop(which))

    def look(self) -> None:
        """Note in how many pieces the entries lie."""
        self.pieces += [self.cache.runs(name) for name in self.cache.entries]


def measure(seed: int, blocks: int) -> list[dict[str, Any]]:
    """The two rows of one entry size."""
    ours, theirs = Ours(ENTRIES * blocks), Theirs(ENTRIES * blocks)
    rounds, length = 32, max(6, min(100, 100_000 // blocks))
    steps = script(seed, blocks, length * (rounds + 2))
    taken: dict[str, list[float]] = {"ours": [], "theirs": []}
    for at in range(rounds + 2):
        part = steps[at * length : (at + 1) * length]
        turns: Sequence[tuple[str, Callable[[Script], None]]] = (
            ("ours", ours.play),
            ("theirs", theirs.play),
        )
        for name, play in turns if at % 2 else reversed(turns):
            start = time.perf_counter()
            play(part)
            seconds = time.perf_counter() - start
            if at >= 2:  # The first two rounds fill the region and warm up.
                taken[name].append(seconds / length * 1e6)
        if at >= 2:
            ours.look()
            theirs.look()
    ours.tier.check()
    case, mean = f"{blocks} blocks", statistics.mean
    return [
        row("tier churn", case, typical(taken["ours"]), typical(taken["theirs"]), "us"),
        row("pieces per entry", case, mean(ours.pieces), mean(theirs.pieces), "pieces"),
    ]


def typical(samples: list[float]) -> float:
    """The lower quartile: what else runs on the machine only ever makes a sample larger."""
    return statistics.quantiles(samples, n=4)[0]


def row(bench: str, case: str, ours: float, baseline: float, unit: str) -> dict[str, Any]:
    """One row of the machine-readable result; below 1 is better."""
    return {
        "bench": bench,
        "case": case,
        "ours": round(ours, 3),
        "baseline": round(baseline, 3),
        "unit": unit,
        "ratio": ours / baseline,
    }


def main() -> int:
    """Run for the entry sizes named on the command line, or for all."""
    parser = argparse.ArgumentParser(description="The tier under churn beside a per-block cache.")
    parser.add_argument("blocks", nargs="*", type=int, metavar="BLOCKS", default=SIZES)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--seed", type=int, default=1, help="of the sizes and the order of unpins")
    options = parser.parse_args()
    if min(options.blocks) < 2:
        parser.error(f"BLOCKS={min(options.blocks)}: an entry has at least 2 blocks here")
    rows = [made for blocks in options.blocks for made in measure(options.seed, blocks)]
    if options.json:
        machine = {
            "cpus": os.cpu_count(),
            "arch": platform.machine(),
            "python": platform.python_version(),
        }
        print(json.dumps({"machine": machine, "rows": rows}))
        return 0
    print(f"{'bench':18}{'case':16}{'ours':>10}{'baseline':>12} {'unit':8}{'ratio':>8}")
    for r in rows:
        print(
            f"{r['bench']:18}{r['case']:16}{r['ours']:>10.2f}{r['baseline']:>12.2f} "
            f"{r['unit']:8}{r['ratio']:>8.3g}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
