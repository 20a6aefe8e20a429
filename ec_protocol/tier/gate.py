# SPDX-License-Identifier: Apache-2.0
"""Who is asked before a tier uses the memory of an entry for something else."""

from __future__ import annotations

from typing import Protocol

from ec_protocol.tier.entry import Entry


class Gate(Protocol):
    """Others who may use the memory of ready entries (EC-14.2)."""

    def changed(self, entry: Entry) -> None:
        """It is being written, has landed, or is gone; to be looked at after the action."""

    def offered(self, entry: Entry) -> bool:
        """Whether others can have it, now or when it has landed."""

    def may_evict(self, entry: Entry) -> bool:
        """Whether nobody uses the entry's memory, and nobody will from here on."""
