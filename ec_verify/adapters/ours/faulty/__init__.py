# SPDX-License-Identifier: Apache-2.0
"""Seeded faults: our own implementation with one thing wrong, to try the kit on.

A kit that cannot catch anything is worthless. Each of these breaks one clause and
nothing else that its author knows of, and ``ec-protocol conformance faults`` tells which
case notices. ``registry`` has the adapter, the other modules the parts. Each is an
adapter of its own too: ``--adapter "ec_verify.adapters.ours.faulty:accepts-late-reads"``.
"""

from __future__ import annotations

from typing import Any

from ec_verify.adapters.ours.faulty import (  # noqa: F401 - they register themselves
    asking,
    consumer,
    control,
    outcomes,
    producer,
    scheduler,
    tier,
)
from ec_verify.adapters.ours.faulty.registry import FAULTS, Fault

__all__ = ["FAULTS", "Fault"]


def __getattr__(name: str) -> Any:
    """The factory of a fault, by its name."""
    if name in FAULTS:
        return FAULTS[name].make
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
