# SPDX-License-Identifier: Apache-2.0
"""Requests as a multimodal server sees them, and their replay against a cache.

Pictures have the sizes that people send, cut into tokens as the Qwen-VL family does: a
token is a square of 28 or 32 pixels, a picture with too many of them is scaled down.
How often a picture comes back follows Zipf's law. An encoding is written for one step
after it was allocated, and whoever uses it pins it for a few steps, not in the order
of coming: so eviction has to pass over entries and leaves holes of all sizes.

Everything follows from the seed.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol


@dataclass(frozen=True, slots=True)
class Vision:
    """How a model turns pictures into rows.

    Attributes:
        side: Pixels along the side of a token.
        row_bytes: Bytes of one encoder output row, which is one block.
        max_tokens: Larger pictures are scaled down to this.
    """

    side: int
    row_bytes: int
    max_tokens: int

    def tokens(self, width: int, height: int) -> int:
        """Rows of a picture's encoding."""
        columns, rows = max(1, round(width / self.side)), max(1, round(height / self.side))
        if columns * rows > self.max_tokens:
            scale = math.sqrt(self.max_tokens / (columns * rows))
            columns, rows = max(1, int(columns * scale)), max(1, int(rows * scale))
        return columns * rows


#: Widths of published models, bf16; Qwen3-VL packs four layers side by side.
MODELS: Final = {
    "qwen2.5-vl-7b": Vision(side=28, row_bytes=3584 * 2, max_tokens=16384),
    "qwen3-vl-2b": Vision(side=32, row_bytes=2048 * 4 * 2, max_tokens=16384),
    "qwen3-vl-8b": Vision(side=32, row_bytes=4096 * 4 * 2, max_tokens=16384),
}

#: Pixels, and how often they come: thumbnails, screens, photographs, scanned pages.
PICTURES: Final = (
    ((224, 224), 6),
    ((336, 336), 4),
    ((448, 448), 6),
    ((640, 480), 8),
    ((800, 600), 6),
    ((1024, 768), 10),
    ((1024, 1024), 10),
    ((1280, 720), 8),
    ((1080, 1920), 8),
    ((1920, 1080), 10),
    ((1240, 1754), 8),
    ((1654, 2339), 4),
    ((2560, 1440), 5),
    ((3024, 4032), 5),
    ((3840, 2160), 2),
)


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a picture: its name, its blocks, and for how many steps it is pinned."""

    name: str
    blocks: int
    steps: int


Trace = list[list[Use]]


def make_trace(
    seed: int,
    model: Vision,
    *,
    steps: int = 3000,
    pictures: int = 4000,
    zipf: float = 0.9,
    per_step: int = 4,
    longest_use: int = 8,
) -> Trace:
    """Uses by engine step.

    Args:
        seed: Decides everything.
        model: Turns pictures into blocks.
        steps: Engine steps.
        pictures: Different pictures.
        zipf: Exponent of the law: the picture of rank r comes with r ** -zipf.
        per_step: Most uses in one step.
        longest_use: Most steps that a use lasts.
    """
    dice = random.Random(seed)
    sizes, frequencies = zip(*PICTURES, strict=True)
    blocks = [model.tokens(*size) for size in dice.choices(sizes, frequencies, k=pictures)]
    weights = list(itertools.accumulate((rank + 1) ** -zipf for rank in range(pictures)))
    trace: Trace = []
    for _ in range(steps):
        chosen = dice.choices(range(pictures), cum_weights=weights, k=dice.randint(1, per_step))
        trace.append(
            [Use(f"p{i}", blocks[i], dice.randint(1, longest_use)) for i in dict.fromkeys(chosen)]
        )
    return trace


class Cache(Protocol):
    """What a replay needs of a cache."""

    def has(self, name: str) -> bool:
        """Whether the encoding is there, complete or not."""

    def usable(self, name: str) -> bool:
        """Whether it is complete."""

    def alloc(self, name: str, blocks: int) -> bool:
        """Make room, evicting if need be; False when that is impossible."""

    def mark_ready(self, name: str) -> None:
        """Its bytes are there."""

    def pin(self, name: str) -> None:
        """Somebody depends on it."""

    def unpin(self, name: str) -> None:
        """Somebody no longer does."""

    def layout(self, name: str) -> Sequence[tuple[int, int]]:
        """Its extents: first block and number of blocks."""


@dataclass(slots=True)
class Outcome:
    """What a replay came to.

    Attributes:
        uses: How many.
        hits: Uses whose encoding was there.
        refused: Uses for which there was no room.
        pieces: Extents of every encoding when it was allocated, after the warm-up.
        kept: Encodings that are there at the end, with their extents.
    """

    uses: int = 0
    hits: int = 0
    refused: int = 0
    pieces: list[int] = field(default_factory=list)
    kept: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    @property
    def hit_rate(self) -> float:
        """Part of the uses that need no encoder."""
        return self.hits / self.uses

    @property
    def mean_pieces(self) -> float:
        """Extents per entry."""
        return sum(self.pieces) / len(self.pieces)

    def part_within(self, extents: int) -> float:
        """Part of the entries that have at most so many extents."""
        return sum(count <= extents for count in self.pieces) / len(self.pieces)


def replay(cache: Cache, trace: Trace, warm_up: float = 0.3) -> Outcome:
    """Play a trace; its first part fills the cache and does not count."""
    outcome = Outcome()
    ends: defaultdict[int, list[str]] = defaultdict(list)
    landing: list[str] = []
    names: dict[str, None] = {}
    counted_from = int(len(trace) * warm_up)
    for step, uses in enumerate(trace):
        counts = step >= counted_from
        for name in landing:
            cache.mark_ready(name)
        landing = []
        for name in ends.pop(step, ()):
            cache.unpin(name)
        for use in uses:
            hit = cache.has(use.name)
            outcome.uses += counts
            outcome.hits += counts and hit
            if hit:
                if cache.usable(use.name):
                    cache.pin(use.name)
                    ends[step + use.steps].append(use.name)
            elif cache.alloc(use.name, use.blocks):
                names[use.name] = None
                landing.append(use.name)
                if counts:
                    outcome.pieces.append(len(cache.layout(use.name)))
            else:
                outcome.refused += counts
    for name in landing:
        cache.mark_ready(name)
    for waiting in ends.values():
        for name in waiting:
            cache.unpin(name)
    outcome.kept = {name: list(cache.layout(name)) for name in names if cache.has(name)}
    return outcome
