# SPDX-License-Identifier: Apache-2.0
"""Finds out which traces belong to one run: those of processes that spoke with each other.

A grant names the session that asked for it, and an ack the incarnation that gave it
(EC-8.6, EC-9.2); both are drawn at random by each process. The processes of an instance
tell its name. So a heap of traces falls
apart into runs by itself, and each run is whole: whoever had a part in an attempt is
in it, if it left a trace among these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ec_protocol.errors import TraceError
from ec_verify.traces.read import read_trace


def by_run(files: Sequence[Path]) -> list[tuple[Path, ...]]:
    """The files of each run, in their order; one that cannot be read stands alone."""
    leader = list(range(len(files)))

    def lead(index: int) -> int:
        while leader[index] != index:
            leader[index] = leader[leader[index]]
            index = leader[index]
        return index

    known: dict[str, int] = {}
    for index, file in enumerate(files):
        try:
            names = _names(read_trace(file))
        except TraceError:
            continue
        for name in names:
            other = known.setdefault(name, index)
            low, high = sorted((lead(index), lead(other)))
            leader[high] = low
    runs: dict[int, list[Path]] = {}
    for index, file in enumerate(files):
        runs.setdefault(lead(index), []).append(file)
    return [tuple(run) for run in runs.values()]


def _names(records: Iterable[Mapping[str, Any]]) -> set[str]:
    """Sessions and incarnations that a trace tells: its own, and those that it met."""
    found = set()
    for record in records:
        try:
            facts, objects = record.get("facts", {}), record["vars"]
            found.add(facts.get("reads", {}).get("session"))
            found.add(facts.get("grants", {}).get("incarnation"))
            found.add(facts.get("instance", {}).get("name"))
            for key, variables in objects.items():
                if key.startswith("grant:"):
                    # `session.attempt:mm_hash`, see EC-8.6.
                    found.add(variables["notice"].partition(":")[0].rpartition(".")[0])
                elif key.startswith("read:"):
                    found.add(variables["incarnation"])
        except (AttributeError, KeyError, TypeError) as exc:
            raise TraceError(f"not a record: {exc}") from exc
    return {name for name in found if name}
