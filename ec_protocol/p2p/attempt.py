# SPDX-License-Identifier: Apache-2.0
"""One attempt to READ: the object that the read lifecycle moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ec_protocol.errors import RemoteProtocolError
from ec_protocol.p2p import wire
from ec_protocol.p2p.commands import PrepareRead, SendReq
from ec_protocol.p2p.peers import Peer
from ec_protocol.p2p.wire import XferAck, XferReq
from ec_protocol.tables.dispatch import READ, Dispatcher
from ec_protocol.terms import Terms
from ec_protocol.tier.entry import Entry

#: How it is known that a READ is over whose end nobody saw (EC-6.2).
Proof = Literal["completed", "endpoint_closed"]


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt to READ one encoding from one producer; moved by ``Attempts``.

    Attributes:
        attempt_id: Unique in the process for ever; folded into ``session_id``.
        session_id: What the producer echoes and the completion notice carries.
        entry: Destination.
        peer: The incarnation asked.
        version: Wire version asked with.
        sent_at: When the request was handed to the control plane, seconds.
        state: State of the read lifecycle.
        fence: From this moment on the READ's bytes are not accepted, seconds (EC-5.1).
        posted_at: When the READ was posted.
        lost_at: When its outcome became unknown.
        lease_s: Lease that the ack gave, seconds; None before.
        incarnation: The producer process that granted it, as its ack says; ``""`` before,
            and for old producers.
        source: Extents that the ack names, in blocks; empty before, and for old producers.
        agent_metadata: Metadata of the agent that granted it; ``b""`` before.
        again_at: When another one may follow it, if it is retryable, seconds.
    """

    lifecycle: ClassVar[Dispatcher] = READ

    attempt_id: int
    session_id: str
    entry: Entry
    peer: Peer
    version: int
    sent_at: float
    state: str = READ.initial
    fence: float = field(init=False)
    posted_at: float = field(init=False)
    lost_at: float = field(init=False)
    lease_s: float | None = None
    incarnation: str = ""
    source: list[tuple[int, int]] = field(default_factory=list)
    agent_metadata: bytes = b""
    again_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.fence = self.posted_at = self.lost_at = self.again_at = self.sent_at

    @property
    def label(self) -> str:
        """Its name in traces."""
        return f"read:{self.attempt_id}"

    @property
    def notice(self) -> bytes:
        """What tells the producer that the attempt is over."""
        return wire.notice(self.session_id, self.entry.encoding)

    def request(self, compat_hash: str, incarnation: str, terms: Terms) -> SendReq:
        """What asks the producer for the encoding; see ``XferReq``."""
        request = XferReq(
            mm_hash=self.entry.encoding,
            compatibility_hash=compat_hash,
            session_id=self.session_id,
            connector_version=self.version,
            attempt_id=self.attempt_id,
            incarnation=incarnation,
            encoder_hash=terms.encoder_hash,
            checksum=terms.checksum,
        )
        return SendReq(self.peer.key, request)

    def variables(self) -> dict[str, Any]:
        """The attempt's spec variables, for traces."""
        return {
            "mm_hash": self.entry.mm_hash,
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

    def prepare(self, ack: XferAck, block_size: int, *, compare: bool = False) -> PrepareRead:
        """What to READ where, as an OK ack grants it.

        Args:
            ack: The ack.
            block_size: Bytes of a block.
            compare: Whether the bytes are compared with the ack's checksum.

        Raises:
            RemoteProtocolError: The grant is of no use (EC-8.3).
        """
        if not ack.agent_metadata:
            raise RemoteProtocolError("XferAck: OK without agent metadata", clause="EC-8.3")
        entry = self.entry
        source, device = wire.source_pieces(ack, entry.nbytes, block_size)
        destination = wire.local_pieces(entry.extents, entry.nbytes, block_size)
        local, remote = wire.pair_pieces(destination, source)
        return PrepareRead(
            attempt_id=self.attempt_id,
            peer=self.peer.key,
            agent_metadata=ack.agent_metadata,
            incarnation=ack.incarnation,
            local=local,
            remote=remote,
            device_id=device,
            notice=self.notice,
            checksum=ack.checksum if compare else "",
        )
