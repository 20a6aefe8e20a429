# SPDX-License-Identifier: Apache-2.0
"""Pictures of a result: one PNG for each benchmark, ours and the baseline side by side."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ec_connector.bench.main import BenchError
from ec_connector.bench.rows import MORE_IS_BETTER, Row

_OURS: Final = "#1f6f8b"
_BASELINE: Final = "#c9c9c9"
_WRAP: Final = 58


def plot(rows: Sequence[Row], folder: Path, subtitle: str) -> list[Path]:
    """Draw every benchmark that is among the rows.

    Args:
        rows: The result.
        folder: Where to put the pictures; made if need be.
        subtitle: What machine it was.

    Returns:
        The files, named ``<bench>.png``.

    Raises:
        BenchError: matplotlib is not installed.
    """
    try:
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError as exc:
        raise BenchError(
            f"--plot needs matplotlib ({exc}): pip install 'ec-connector[bench]'"
        ) from exc
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for bench in dict.fromkeys(row.bench for row in rows):
        chosen = [row for row in rows if row.bench == bench]
        # A Figure of its own needs neither a display nor global state.
        figure = figures.Figure(figsize=(11, 1.3 + 0.62 * len(chosen)), layout="constrained")
        _draw(figure.subplots(), chosen)
        figure.suptitle(f"{bench}: {subtitle}", fontsize=10)
        files.append(folder / f"{bench}.png")
        figure.savefig(files[-1], dpi=110)
    return files


def _draw(axes: Any, rows: Sequence[Row]) -> None:
    """Bars relative to the baseline, since units differ from row to row."""
    places = list(range(len(rows)))[::-1]
    axes.barh([y + 0.2 for y in places], [row.ratio for row in rows], 0.38, color=_OURS)
    axes.barh([y - 0.2 for y in places], [1.0] * len(rows), 0.38, color=_BASELINE)
    smallest = min([row.ratio for row in rows if row.ratio > 0] + [1.0])
    largest = max(row.ratio for row in rows)
    if largest / smallest > 20:
        axes.set_xscale("log")
    for y, row in zip(places, rows, strict=True):
        better = "more" if row.unit in MORE_IS_BETTER else "less"
        axes.text(
            row.ratio,
            y + 0.2,
            f" {row.ours:.4g} {row.unit}  ({row.ratio:.3g}×)",
            va="center",
            fontsize=8,
        )
        axes.text(
            1.0,
            y - 0.2,
            f" {row.baseline:.4g} {row.unit}, {better} is better",
            va="center",
            fontsize=8,
            color="#555555",
        )
    axes.set_yticks(places, [textwrap.fill(row.case, _WRAP) for row in rows], fontsize=8)
    axes.margins(x=0.35)
    axes.set_xlabel("relative to the baseline of the same run (blue: ours, grey: baseline)")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
