# SPDX-License-Identifier: Apache-2.0
"""Runs benchmarks by name and shows what they found."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Final

from ec_connector.bench.rows import Row
from ec_protocol.errors import ECError

#: Name on the command line -> module, and what it needs beyond the base installation.
BENCHES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "copy": ("copies", ()),
    "core": ("core", ("msgspec",)),
    "tier": ("tier", ()),
    "ack": ("ack", ("msgspec", "nixl", "zmq")),
    "read": ("read", ("msgspec", "nixl", "zmq")),
    "startup": ("startup", ()),
    "processes": ("processes", ("msgspec", "nixl", "zmq")),
    "deaths": ("deaths", ("msgspec", "nixl", "zmq")),
}
#: Not among all: it takes as long as it is told to, and may find something wrong.
ALONE: Final = ("deaths",)


class BenchError(ECError):
    """A benchmark cannot be run here; the message says what is missing."""


def choose(names: Sequence[str]) -> list[str]:
    """The benchmarks meant by the command line; none, or ``all``, means every one.

    Raises:
        BenchError: There is none of that name, it runs alone, or a package is missing.
    """
    unknown = [name for name in names if name not in BENCHES and name != "all"]
    if unknown:
        raise BenchError(
            f"{', '.join(unknown)}: no such benchmark; choose from {', '.join(BENCHES)}, all"
        )
    together = [name for name in BENCHES if name not in ALONE]
    chosen = together if not names or "all" in names else list(dict.fromkeys(names))
    if len(chosen) > 1 and set(chosen) & set(ALONE):
        raise BenchError(f"{', '.join(ALONE)}: give it no other benchmark beside it")
    for name in chosen:
        missing = [need for need in BENCHES[name][1] if importlib.util.find_spec(need) is None]
        if missing:
            raise BenchError(
                f"the benchmark {name} needs {', '.join(missing)}: pip install 'ec-connector[nixl]'"
            )
    return chosen


def run(
    names: Sequence[str], quick: bool = False, on_start: Callable[[str], None] | None = None
) -> list[Row]:
    """Run benchmarks, one after the other.

    Args:
        names: As ``choose`` returned them.
        quick: Fewer repetitions and smaller regions.
        on_start: Told the name of each as it begins.
    """
    rows: list[Row] = []
    for name in names:
        if on_start is not None:
            on_start(name)
        module = importlib.import_module(f"ec_connector.bench.{BENCHES[name][0]}")
        rows += module.run(quick)
    return rows
