# SPDX-License-Identifier: Apache-2.0
"""The tier: what an entry costs the scheduler, in how many pieces it lies, and hit rates."""

from __future__ import annotations

import importlib
import random
import statistics
from collections.abc import Callable
from typing import Any, Final, Protocol

from ec_connector.bench.baselines import BlockListCache, IdealCache, TierCache
from ec_connector.bench.rows import Row, in_turns
from ec_connector.bench.traffic import MODELS, make_trace, replay
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.entry import Entry

SIZES: Final = (256, 880, 4096)
_ENTRIES: Final = 24
_HELD: Final = 4


class _Player(Protocol):
    def play(self, name: str, blocks: int, which: int) -> None:
        """Room for one entry, its landing, a pin, and the unpin of another."""


class _Ours:
    def __init__(self, num_blocks: int) -> None:
        self.tier = EncodingTier(num_blocks, 1)
        self.held: list[tuple[Entry, int]] = []
        self.number = 0

    def play(self, name: str, blocks: int, which: int) -> None:
        tier = self.tier
        number = self.number = self.number + 1
        entry = tier.alloc(name, blocks)
        if entry is None:
            raise RuntimeError("the region is large enough")
        tier.begin_write(entry, ("save", number))
        tier.write_landed(entry, ("save", number))
        tier.pin(entry, ("load", number))
        self.held.append((entry, number))
        if len(self.held) == _HELD:
            entry, number = self.held.pop(which)
            tier.unpin(entry, ("load", number))


class _Named:
    """A cache that is called by name; the calls are given, since they differ in it."""

    def __init__(self, cache: Any, room: Callable[[str, int], object]) -> None:
        self.cache = cache
        self.room = room
        self.held: list[str] = []

    def play(self, name: str, blocks: int, which: int) -> None:
        if not self.room(name, blocks):
            raise RuntimeError("the region is large enough")
        self.cache.mark_ready(name)
        self.cache.pin(name)
        self.held.append(name)
        if len(self.held) == _HELD:
            self.cache.unpin(self.held.pop(which))


def _block_list(num_blocks: int) -> _Player:
    cache = BlockListCache(num_blocks)
    return _Named(cache, cache.alloc)


def built_in() -> Callable[[int], _Player] | None:
    """The cache of encoder outputs that comes with vLLM, if it is installed."""
    try:
        module: Any = importlib.import_module(
            "vllm.distributed.ec_transfer.ec_connector.cpu.scheduler.embedding_cache"
        )
        kind = module.EmbeddingCache
    except Exception:  # not installed, or not usable on this machine
        return None

    def make(num_blocks: int) -> _Player:
        cache = kind(num_blocks)
        return _Named(cache, lambda name, blocks: cache.alloc(name, blocks) is not None)

    return make


def run(quick: bool = False) -> list[Row]:
    """All rows.

    Args:
        quick: Fewer repetitions.
    """
    rows: list[Row] = []
    others: list[tuple[str, Callable[[int], _Player]]] = [("block lists", _block_list)]
    vllm = built_in()
    if vllm is not None:
        others.append(("vLLM's EmbeddingCache", vllm))
    for blocks in SIZES:
        rows += cost(blocks, others, rounds=8 if quick else 24)
    return rows + quality(steps=800 if quick else 3000)


def cost(blocks: int, others: list[tuple[str, Callable[[int], _Player]]], rounds: int) -> list[Row]:
    """Alloc (which evicts), ready, pin and unpin of one entry in a full region.

    Args:
        blocks: Mean size; entries have between half and one and a half times as many.
        others: Baselines by name.
        rounds: Measured rounds.
    """
    dice = random.Random(blocks)
    length = max(6, min(100, 60_000 // blocks))
    script = [
        (f"e{i}", dice.randint(blocks // 2, blocks + blocks // 2), dice.randrange(_HELD))
        for i in range(length * (rounds + 2))
    ]
    players: list[_Player] = [_Ours(_ENTRIES * blocks)]
    players += [make(_ENTRIES * blocks) for _, make in others]
    places = [0] * len(players)

    def body(index: int) -> None:
        at = places[index]
        for step in script[at : at + length]:
            players[index].play(*step)
        places[index] = at + length

    bodies = [lambda index=index: body(index) for index in range(len(players))]
    in_turns(2, 1, *bodies)  # fills the region
    # The lower quartile: what else runs on the machine only ever adds to a sample.
    ours, *theirs = (
        statistics.quantiles(samples, n=4)[0] / length * 1e6
        for samples in in_turns(rounds, 1, *bodies)
    )
    return [
        Row("tier", f"cost of an entry of {blocks} blocks, beside {name}", ours, other, "us")
        for (name, _), other in zip(others, theirs, strict=True)
    ]


def quality(steps: int, seed: int = 1) -> list[Row]:
    """Extents per entry and hit rate under a replayed trace."""
    rows: list[Row] = []
    for name, gib in (("qwen3-vl-2b", 2), ("qwen3-vl-2b", 8), ("qwen2.5-vl-7b", 2)):
        model = MODELS[name]
        trace = make_trace(seed, model, steps=steps)
        num_blocks = (gib << 30) // model.row_bytes
        ours = replay(TierCache(num_blocks), trace)
        lists = replay(BlockListCache(num_blocks), trace)
        ideal = replay(IdealCache(num_blocks), trace)
        case = f"{name}, {gib} GiB"
        rows += [
            Row(
                "tier",
                f"extents per entry, {case}, beside block lists",
                ours.mean_pieces,
                lists.mean_pieces,
                "extents",
            ),
            Row(
                "tier",
                f"entries in at most two extents, {case}, beside block lists",
                ours.part_within(2),
                lists.part_within(2),
                "share",
            ),
            Row(
                "tier",
                f"hit rate, {case}, beside ideal contiguous",
                ours.hit_rate,
                ideal.hit_rate,
                "hits",
            ),
            Row(
                "tier",
                f"hit rate, {case}, beside block lists",
                ours.hit_rate,
                lists.hit_rate,
                "hits",
            ),
        ]
    return rows
