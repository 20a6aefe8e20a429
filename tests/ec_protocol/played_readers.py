# SPDX-License-Identifier: Apache-2.0
"""Readers that a test plays, and READs that may write at any time."""

from __future__ import annotations

from dataclasses import dataclass, field

from ec_protocol.loans import Command, Loan
from ec_protocol.tier.entry import Entry


@dataclass
class Read:
    """A READ that may write at any time."""

    loan: Loan
    blocks: list[int]


@dataclass
class Reader:
    """A process: what it was told, what it has under way, and what it said."""

    number: int
    inbox: list[Command] = field(default_factory=list)
    work: dict[int, Loan] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    alive: bool = True
    drains: bool = False
    stands_still: bool = False


def blocks_of(entry: Entry) -> list[int]:
    return [block for start, count in entry.extents for block in range(start, start + count)]
