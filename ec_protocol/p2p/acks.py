# SPDX-License-Identifier: Apache-2.0
"""What an ack means: which attempt it is for, and what it says about it.

Nothing that a peer sends raises: an ack that is of no use is counted, and what it
granted is given back.
"""

from __future__ import annotations

from collections.abc import Iterator

from ec_protocol.errors import RemoteProtocolError
from ec_protocol.p2p import wire
from ec_protocol.p2p.attempt import Attempt
from ec_protocol.p2p.attempts import Attempts
from ec_protocol.p2p.commands import PeerKey
from ec_protocol.p2p.peers import Peer
from ec_protocol.p2p.wire import XferAck, XferStatus


class Acks:
    """Moves attempts by what producers answer. See ``Fetches``.

    Args:
        attempts: What acks are for.
    """

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._counters = attempts.counters

    def on_ack(self, peer_key: PeerKey, ack: XferAck, now: float) -> Iterator[Attempt]:
        """An XferAck came from ``peer_key`` (EC-5.2, EC-5.3).

        Yields:
            Outcomes, as ``Attempts`` does: what ends with a process that was replaced
            (EC-9.2), last the attempt that the ack names. Nothing if the ack was dropped
            (EC-5.6).
        """
        peers = self._attempts.peers
        peer = peers.current(peer_key)
        if peer is not None and ack.session_id:
            peer.unanswered.answered(ack.mm_hash, ack.session_id)
        elif peer is not None and ack.status != XferStatus.OK:
            session_id = peer.unanswered.take_oldest(ack.mm_hash)
            ack = XferAck(mm_hash=ack.mm_hash, status=ack.status, session_id=session_id)
        attempt = self._named(peer_key, ack)
        if attempt is None:
            return
        # An ack is traffic too, and may be seen before the connection's own event.
        peers.heard(attempt.peer)
        if ack.incarnation in attempt.peer.former:
            # The process that said this is gone, and what it granted with it.
            self._counters["former_incarnations"] += 1
            self._attempts.refuse(attempt, now)
        else:
            if ack.incarnation and ack.incarnation != attempt.peer.incarnation:
                yield from self._learn_incarnation(attempt.peer, ack.incarnation, now)
            self._apply(attempt, ack, now)
        yield attempt

    def _named(self, peer_key: PeerKey, ack: XferAck) -> Attempt | None:
        """The attempt that the ack names, or None after counting why it names none."""
        session, _, number = ack.session_id.rpartition(".")
        if session != self._attempts.session or not number.isascii() or not number.isdigit():
            self._counters["foreign_acks"] += 1
            return None
        attempt = self._attempts.get(int(number))
        if attempt is not None and attempt.state != "requested":
            self._counters["duplicate_acks"] += 1
            return None
        if attempt is None:
            self._counters["stale_acks"] += 1
            if ack.status == XferStatus.OK and ack.agent_metadata:
                self._attempts.release(peer_key, ack)
            return None
        wrong_attempt = ack.attempt_id is not None and ack.attempt_id != attempt.attempt_id
        wrong_name = (ack.session_id, ack.mm_hash) != (attempt.session_id, attempt.entry.encoding)
        if wrong_attempt or wrong_name or attempt.peer.key != peer_key:
            self._counters["mismatched_acks"] += 1
            return None
        return attempt

    def _learn_incarnation(self, peer: Peer, incarnation: str, now: float) -> Iterator[Attempt]:
        """The answer to a request that the peer still has says who it comes from."""
        if peer.incarnation:
            yield from self._attempts.peer_replaced(peer, incarnation, now)
        else:
            peer.incarnation = incarnation

    def _apply(self, attempt: Attempt, ack: XferAck, now: float) -> None:
        if ack.status == XferStatus.NACK_VERSION and attempt.version == wire.PREFERRED_VERSION:
            # Older than our preference: once more in the version that it may speak.
            attempt.peer.version = wire.FALLBACK_VERSION
            self._attempts.retry(attempt, now, now)
        elif ack.status in wire.RETRYABLE_NACKS:
            self._attempts.retry(attempt, now + self._attempts.timing.retry_interval_s, now)
        elif ack.status != XferStatus.OK:
            if ack.status == XferStatus.NACK_INCOMPAT:
                self._counters["incompatible"] += 1
            self._refuse(attempt, now)
        elif not self._same_encoder(ack) or not self._can_compare(ack):
            self._refuse(attempt, now, ack.agent_metadata)
        else:
            try:
                command = attempt.prepare(
                    ack,
                    self._attempts.tier.block_size_bytes,
                    compare=bool(self._attempts.terms.checksum),
                )
            except RemoteProtocolError:
                self._counters["unusable_acks"] += 1
                self._refuse(attempt, now, ack.agent_metadata)
            else:
                self._attempts.grant(attempt, ack, command, now)

    def _same_encoder(self, ack: XferAck) -> bool:
        """Whether what is granted means to us what it means there (EC-8.10)."""
        judgement = self._attempts.terms.judge(ack.encoder_hash)
        if judgement == "unproven":
            self._counters["encoders_unproven"] += 1
        elif judgement == "differs":
            self._counters["encoders_differ"] += 1
        return judgement != "differs"

    def _can_compare(self, ack: XferAck) -> bool:
        """Whether a checksum came where one is demanded (EC-8.11)."""
        terms = self._attempts.terms
        if not terms.checksum or terms.has_checksum(ack.checksum):
            return True
        self._counters["acks_without_checksum"] += 1
        return False

    def _refuse(self, attempt: Attempt, now: float, agent_metadata: bytes = b"") -> None:
        self._counters["refused"] += 1
        self._attempts.refuse(attempt, now, agent_metadata)
