# SPDX-License-Identifier: Apache-2.0
"""The consumer's bookkeeping objects: a fetch, and the attempts it is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ec_protocol.p2p.commands import PeerKey
from ec_protocol.p2p.peers import Peer
from ec_protocol.tables.dispatch import READ
from ec_protocol.tier.entry import Entry


class Attempt:
    """One attempt to READ one encoding from one producer; moved by ``ConsumerReads``.

    Attributes:
        attempt_id: Unique in the process for ever; folded into ``session_id``.
        session_id: What the producer echoes and the completion notice carries.
        fetch: What the attempt is part of.
        entry: Destination; kept across the fetch's attempts.
        peer: The incarnation asked.
        state: State of the read lifecycle.
        sent_at: When the request was handed to the control plane, seconds.
        fence: From this moment on the READ's bytes are not accepted, seconds (EC-5.1).
        posted_at: When the READ was posted.
        lost_at: When its outcome became unknown.
        lease_s: Lease that the ack gave, seconds; None before.
        incarnation: The producer process that granted it, as its ack says; ``""`` before,
            and for old producers.
        source: Extents that the ack names, in blocks; empty before, and for old producers.
        agent_metadata: Metadata of the agent that granted it.
    """

    __slots__ = (
        "agent_metadata",
        "attempt_id",
        "entry",
        "fence",
        "fetch",
        "incarnation",
        "lease_s",
        "lost_at",
        "peer",
        "posted_at",
        "sent_at",
        "session_id",
        "source",
        "state",
        "version",
    )

    def __init__(
        self, attempt_id: int, session_id: str, fetch: Fetch, peer: Peer, sent_at: float
    ) -> None:
        self.attempt_id = attempt_id
        self.session_id = session_id
        self.fetch = fetch
        self.entry = fetch.entry
        self.peer = peer
        self.version = peer.version
        self.state = READ.initial
        self.sent_at = sent_at
        self.fence = sent_at
        self.posted_at = sent_at
        self.lost_at = sent_at
        self.lease_s: float | None = None
        self.incarnation = ""
        self.source: list[tuple[int, int]] = []
        self.agent_metadata = b""

    def variables(self) -> dict[str, Any]:
        """The attempt's spec variables, for traces."""
        return {
            "mm_hash": self.fetch.mm_hash,
            "session": self.session_id,
            "entry": self.entry.entry_id,
            "peer": self.peer.peer_id,
            "version": self.version,
            "state": self.state,
            "sent_at": self.sent_at,
            "fence": self.fence,
            "posted_at": self.posted_at,
            "lost_at": self.lost_at,
            "lease_s": self.lease_s,
            "incarnation": self.incarnation,
            "source": self.source,
        }


@dataclass(slots=True, eq=False)
class Fetch:
    """One encoding that requests wait for, across attempts.

    Attributes:
        mm_hash: The encoding.
        peer: Where to get it.
        nbytes: Bytes that the announcement promised.
        entry: Destination blocks, the same for every attempt.
        deadline: End of the budget, seconds.
        waiters: Request ids that wait.
        attempt: The attempt under way, or None between two.
        next_at: When the next attempt is due, if ``attempt`` is None.
        retries: How many attempts ended in another one.
    """

    mm_hash: str
    peer: PeerKey
    nbytes: int
    entry: Entry
    deadline: float
    waiters: set[str] = field(default_factory=set)
    attempt: Attempt | None = None
    next_at: float = 0.0
    retries: int = 0
