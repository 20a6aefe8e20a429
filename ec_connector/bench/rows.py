# SPDX-License-Identifier: Apache-2.0
"""What a benchmark returns, and how it is printed."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

#: Units of which more is better; of all others less is.
MORE_IS_BETTER = frozenset({"GB/s", "GiB/s", "hits", "share"})


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison.

    Attributes:
        bench: The benchmark.
        case: What was measured, and beside what.
        ours: Our figure, in ``unit``.
        baseline: The other's, taken in the same run.
        unit: ``us``, ``ms``, ``GB/s``, ``extents``, ….
    """

    bench: str
    case: str
    ours: float
    baseline: float
    unit: str

    @property
    def ratio(self) -> float:
        """Ours through baseline."""
        return self.ours / self.baseline if self.baseline else float("inf")

    @property
    def better(self) -> bool:
        """Whether ours is the better figure, or as good."""
        return self.ratio >= 1 if self.unit in MORE_IS_BETTER else self.ratio <= 1

    def document(self) -> dict[str, Any]:
        """As in the machine-readable output."""
        return {
            "bench": self.bench,
            "case": self.case,
            "ours": _digits(self.ours),
            "baseline": _digits(self.baseline),
            "unit": self.unit,
            "ratio": _digits(self.ratio),
        }


def _digits(value: float) -> float:
    return float(f"{value:.5g}")


def document(rows: Sequence[Row]) -> dict[str, Any]:
    """The machine-readable output of one run."""
    return {"machine": machine(), "rows": [row.document() for row in rows]}


def machine() -> dict[str, Any]:
    """Where the run took place."""
    import torch

    facts: dict[str, Any] = {
        "arch": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "gpu": None,
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
        facts["cuda"] = torch.version.cuda
    return facts


def in_turns(rounds: int, loops: int, *bodies: Callable[[], object]) -> list[list[float]]:
    """Seconds per call of each body, by round, measured alternately.

    Taking turns lets a change of the machine's speed hit all bodies alike.
    """
    samples: list[list[float]] = [[] for _ in bodies]
    for _ in range(rounds):
        for body, taken in zip(bodies, samples, strict=True):
            start = time.perf_counter()
            for _ in range(loops):
                body()
            taken.append((time.perf_counter() - start) / loops)
    return samples
