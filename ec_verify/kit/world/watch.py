# SPDX-License-Identifier: Apache-2.0
"""The fence of every attempt, worked out from the wire alone (EC-5.1).

The kit sees each request leave and each ack arrive, so it knows when a READ may still be
posted and when its bytes still count, by the consumer's own clock, whatever the
implementation believes.

Who misses only the margins, while the lease itself still runs, has broken a MUST and done
no harm yet. The case then goes on, so that it tells what comes of it: whatever breaks later
is its failure, and this is if nothing does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ec_verify.kit.world import frames
from ec_verify.kit.world.checks import CheckFailed, violated

#: For sums that an implementation adds in another order.
_ROUNDING = 1e-9


@dataclass
class Watch:
    """What is known of the attempts of all nodes.

    Attributes:
        timers: The case's timers.
        asked: Node and notice of an attempt -> when its request left, node's clock.
        leases: The same -> lease of its OK ack.
        writers: Node and encoding -> how many saves and READs it was given to.
        void: Node and encoding -> clause by which its last READ does not count.
        near: What broke the margins of a lease that still ran, first to last.
    """

    timers: Mapping[str, float]
    asked: dict[tuple[str, bytes], float] = field(default_factory=dict)
    leases: dict[tuple[str, bytes], float] = field(default_factory=dict)
    writers: Counter[tuple[str, str]] = field(default_factory=Counter)
    void: dict[tuple[str, str], str] = field(default_factory=dict)
    near: list[CheckFailed] = field(default_factory=list)
    _early: set[tuple[str, str]] = field(default_factory=set)

    def request(self, node: str, raw: list[str], now: float) -> None:
        """A request left a node."""
        try:
            message = frames.decode(raw)
        except frames.FrameError:
            return
        if notice := _notice(message):
            self.asked[node, notice] = now
            self.leases.pop((node, notice), None)

    def answer(self, node: str, raw: list[str]) -> None:
        """An ack reaches a node."""
        try:
            message = frames.decode(raw)
        except frames.FrameError:
            return
        notice = _notice(message)
        lease = message.get("lease_s", self.timers["lease_s"])
        if notice and message.get("status") == 0 and isinstance(lease, int | float):
            self.leases.setdefault((node, notice), float(lease))

    def fence(self, node: str, notice: bytes) -> float | None:
        """The fence of an attempt, or None if it is not known."""
        asked, lease = self.asked.get((node, notice)), self.leases.get((node, notice))
        if asked is None or lease is None:
            return None
        return asked + lease - self.timers["lease_margin_s"]

    def _breach(self, breach: CheckFailed, *, leased: bool) -> None:
        """Something breaks the fence; while the lease runs it is noted only."""
        if not leased:
            raise breach
        breach.level = "SHOULD"
        self.near.append(breach)

    def posted(self, node: str, name: str, notice: bytes, now: float) -> None:
        """A node posts a READ.

        Raises:
            CheckFailed: Too little of its lease is left.
        """
        fence = self.fence(node, notice)
        if fence is not None and now + self.timers["min_read_s"] >= fence + _ROUNDING:
            breach = violated(
                "FencedAccept",
                "EC-5.2",
                f"READ {name} not to be posted {fence - now:g} s before its fence",
                "it is posted",
            )
            self._breach(breach, leased=now < fence + self.timers["lease_margin_s"])

    def done(
        self, node: str, mm_hash: str, notice: bytes, now: float, *, writer: int, lost: bool
    ) -> None:
        """A node is told that a READ, the ``writer``-th of its encoding, is done."""
        if writer != self.writers[node, mm_hash]:
            return  # somebody else has been given the encoding since
        fence = self.fence(node, notice)
        self.void.pop((node, mm_hash), None)
        self._early.discard((node, mm_hash))
        if lost:
            self.void[node, mm_hash] = "EC-6.5"
        elif fence is not None and now >= fence + _ROUNDING:
            self.void[node, mm_hash] = "EC-5.3"
            if now < fence + self.timers["lease_margin_s"]:
                self._early.add((node, mm_hash))

    def written(self, node: str, mm_hash: str) -> int:
        """A node hands an encoding to a writer: what is there later is his.

        Returns:
            Which writer of the encoding this is.
        """
        self.void.pop((node, mm_hash), None)
        self.writers[node, mm_hash] += 1
        return self.writers[node, mm_hash]

    def promised(self, node: str, mm_hash: str) -> None:
        """A node promises an encoding.

        Raises:
            CheckFailed: It has it from a READ whose bytes do not count.
        """
        clause = self.void.get((node, mm_hash))
        if clause is not None:
            late = "after its fence" if clause == "EC-5.3" else "in quarantine"
            breach = violated(
                "FencedAccept",
                clause,
                f"the bytes of a READ of {mm_hash} that was seen done {late} not to count",
                f"{node} promises {mm_hash}",
            )
            self._breach(breach, leased=clause == "EC-5.3" and (node, mm_hash) in self._early)

    def restarted(self, node: str) -> None:
        """A new process of a node knows nothing of what the old one read."""
        for key in [key for key in self.void if key[0] == node]:
            del self.void[key]


def _notice(message: Mapping[str, object]) -> bytes | None:
    session, mm_hash = message.get("session_id"), message.get("mm_hash")
    if isinstance(session, str) and isinstance(mm_hash, str):
        return frames.notice(session, mm_hash)
    return None
