# SPDX-License-Identifier: Apache-2.0
"""A worked example: a whole connector of one class, and its adapter, over JSON lines.

``TinyTier`` is a cache without peer-to-peer reads, written in the obvious way. The
adapter below it is what an afternoon's work looks like: a loop that reads a line, calls
the implementation, and writes a line. It imports nothing of the kit, so it could as well
be written in another language. Run the kit against it::

    ec-protocol conformance run --adapter-cmd "python -m ec_verify.kit.examples.tiny"

Cases that need what it has not got come out UNSUPPORTED.
"""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from typing import Any


class TinyTier:
    """The implementation under test: encodings in blocks, oldest out first."""

    def __init__(self, blocks: int, block_size: int, ranks: int) -> None:
        self.memory = bytearray(blocks * block_size)
        self.block_size = block_size
        self.ranks = ranks
        self.free = list(range(blocks))
        # Name -> its blocks; in the order in which they landed.
        self.ready: OrderedDict[str, list[int]] = OrderedDict()
        self.sizes: dict[str, int] = {}
        self.copies: dict[int, dict[str, Any]] = {}
        self.promised: set[str] = set()
        self.planned: list[int] = []
        self.next_copy = 1

    def has(self, name: str, nbytes: int) -> bool:
        """A promise for this step, so ``_evict`` leaves it alone until ``build``."""
        if name in self.ready and self.sizes[name] == nbytes:
            self.promised.add(name)
            return True
        return False

    def alloc(self, name: str, nbytes: int) -> None:
        """The step loads what was promised, and saves what is new if there is room."""
        under_way = [self.copies[c] for c in self.copies]
        if name in self.promised:
            if not any(self.copies[c]["hash"] == name for c in self.planned):
                self._plan("load", name, self.ready[name], nbytes, set(range(self.ranks)))
        elif name not in self.ready and all(c["hash"] != name for c in under_way):
            wanted = -(-nbytes // self.block_size)
            if self._evict(wanted):
                taken = [self.free.pop() for _ in range(wanted)]
                self._plan("save", name, taken, nbytes, {0})

    def build(self) -> list[dict[str, Any]]:
        """What the ranks copy in this step; its promises end."""
        rows = [self.copies[number] for number in self.planned]
        self.planned, self.promised = [], set()
        return rows

    def report(self, number: int, rank: int, landed: bool) -> bool:
        """A rank is done with a copy; False if there is nothing for it to report."""
        copy = self.copies.get(number)
        if copy is None or rank not in copy["waiting"]:
            return False
        copy["waiting"].discard(rank)
        copy["landed"] = copy["landed"] and landed
        if not copy["waiting"]:
            del self.copies[number]
            if copy["kind"] == "save" and copy["landed"]:
                self.ready[copy["hash"]] = copy["blocks"]
                self.sizes[copy["hash"]] = copy["bytes"]
            elif copy["kind"] == "save":
                self.free += copy["blocks"]
        return True

    def _plan(self, kind: str, name: str, blocks: list[int], nbytes: int, ranks: set[int]) -> None:
        self.copies[self.next_copy] = {
            "copy": self.next_copy,
            "kind": kind,
            "hash": name,
            "blocks": blocks,
            "bytes": nbytes,
            "waiting": ranks,
            "landed": True,
        }
        self.planned.append(self.next_copy)
        self.next_copy += 1

    def _evict(self, wanted: int) -> bool:
        loading = {c["hash"] for c in self.copies.values() if c["kind"] == "load"}
        victims = [n for n in self.ready if n not in loading and n not in self.promised]
        if len(self.free) + sum(len(self.ready[n]) for n in victims) < wanted:
            return False
        for name in victims:
            if len(self.free) >= wanted:
                break
            self.free += self.ready.pop(name)
            del self.sizes[name]
        return True


class Refused(NotImplementedError):
    """The operation, or what it asks for, is not supported."""


class TinyAdapter:
    """One method per operation; a missing one is unsupported."""

    def __init__(self) -> None:
        self.tier: TinyTier

    def start(self, now: float, settings: dict[str, Any]) -> dict[str, Any]:
        """Start the instance."""
        if settings["p2p"]:
            raise Refused("peer-to-peer reads")
        self.tier = TinyTier(settings["blocks"], settings["block_size_bytes"], settings["ranks"])
        return {}

    def tick(self, now: float) -> None:
        """There are no timers."""

    def peek(self, now: float, offset: int, size: int) -> dict[str, Any]:
        """Read the region."""
        return {"data": self.tier.memory[offset : offset + size].hex()}

    def poke(self, now: float, offset: int, data: str) -> None:
        """Write the region."""
        raw = bytes.fromhex(data)
        self.tier.memory[offset : offset + len(raw)] = raw

    def available(self, now: float, request: dict[str, Any]) -> dict[str, Any]:
        """Nothing is ever fetched, so nothing has to wait."""
        return {"ready": True}

    def has(self, now: float, request: dict[str, Any], item: int) -> dict[str, Any]:
        """Can the item be loaded?"""
        row = request["items"][item]
        return {"has": self.tier.has(row["hash"], row["bytes"])}

    def alloc(self, now: float, request: dict[str, Any], item: int) -> None:
        """The item is part of the step."""
        row = request["items"][item]
        self.tier.alloc(row["hash"], row["bytes"])

    def build(self, now: float) -> dict[str, Any]:
        """What the step copies, block by block."""
        size = self.tier.block_size
        copies = []
        for row in self.tier.build():
            left = row["bytes"]
            spans = []
            for block in row["blocks"]:
                spans.append([block * size, min(size, left)])
                left -= size
            copies.append(
                {
                    "copy": row["copy"],
                    "kind": row["kind"],
                    "hash": row["hash"],
                    "spans": spans,
                    "ranks": sorted(row["waiting"]),
                }
            )
        return {"copies": copies}

    def report(self, now: float, copy: int, rank: int, landed: bool) -> dict[str, Any]:
        """A rank reports."""
        return {"accepted": self.tier.report(copy, rank, landed)}

    def finish(self, now: float, request: dict[str, Any], aborted: bool) -> dict[str, Any]:
        """Nothing is announced."""
        return {"params": None}

    def pending(self, now: float) -> dict[str, Any]:
        """Reports are outstanding as long as copies are."""
        return {"pending": bool(self.tier.copies)}

    def blocks(self, now: float) -> dict[str, Any]:
        """The tier's account."""
        total = len(self.tier.memory) // self.tier.block_size
        return {"free": len(self.tier.free), "retired": 0, "quarantined": 0, "total": total}


def main() -> None:
    """One line in, one line out."""
    adapter = TinyAdapter()
    for line in sys.stdin:
        request = json.loads(line)
        method = getattr(adapter, request["op"], None)
        reply: dict[str, Any]
        try:
            if method is None:
                raise Refused(request["op"])
            reply = {"result": method(**request["args"]) or {}, "out": []}
        except Refused as exc:
            reply = {"unsupported": str(exc)}
        except Exception as exc:
            reply = {"error": repr(exc)}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
