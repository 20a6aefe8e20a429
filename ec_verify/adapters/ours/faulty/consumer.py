# SPDX-License-Identifier: Apache-2.0
"""Consumers with one fault each: fence, attempt identity, quarantine."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from ec_protocol.p2p.attempt import Attempt
from ec_protocol.p2p.commands import ForgetRead, PeerKey
from ec_protocol.p2p.consumer import ConsumerReads
from ec_protocol.p2p.peers import Peer
from ec_protocol.p2p.wire import XferAck, XferStatus
from ec_protocol.tier.encodings import EncodingTier
from ec_verify.adapters.ours.faulty.registry import fault, with_timers


# ------------------------------------------------------------------------ the fence
@fault("no-fence-before-posting", "EC-5.2", "F1", part="consumer")
class NoFenceBeforePosting(ConsumerReads):
    """A READ is posted however little of the lease is left, or when it is over."""

    def _fence_open(self, attempt: Attempt, now: float) -> bool:
        return True


@fault("fence-asked-at-the-ack-only", "EC-5.2", "F1", part="consumer")
class FenceAskedAtTheAckOnly(ConsumerReads):
    """The fence is not asked again at the moment of posting."""

    _posting = False

    def post_read(self, attempt_id: int, now: float) -> bool:
        self._posting = True
        try:
            return super().post_read(attempt_id, now)
        finally:
            self._posting = False

    def _fence_open(self, attempt: Attempt, now: float) -> bool:
        return self._posting or super()._fence_open(attempt, now)


@fault("fence-from-the-ack", "EC-5.1", "F1", part="consumer")
class FenceFromTheAck(ConsumerReads):
    """The lease is counted from the moment the ack is handled, not from sending."""

    def _apply_ack(self, attempt: Attempt, ack: XferAck, now: float) -> None:
        attempt.sent_at = now
        super()._apply_ack(attempt, ack, now)


@fault("no-margin", "EC-5.1", part="consumer")
class NoMargin(ConsumerReads):
    """The fence lies at the very end of the lease: nothing is left for drift."""

    def __init__(self, tier: EncodingTier, **args: Any) -> None:
        args["timing"] = with_timers(args["timing"], lease_margin_s=0.0)
        super().__init__(tier, **args)


@fault("least-read-time-ignored", "EC-5.2", part="consumer")
class LeastReadTimeIgnored(ConsumerReads):
    """A READ is posted when less than ``min_read_s`` is left."""

    def __init__(self, tier: EncodingTier, **args: Any) -> None:
        args["timing"] = with_timers(args["timing"], min_read_s=0.0)
        super().__init__(tier, **args)


@fault("accepts-late-reads", "EC-5.3", "F3", part="consumer")
class AcceptsLateReads(ConsumerReads):
    """The bytes of a READ that is seen done after its fence are accepted."""

    def read_done(self, attempt_id: int, now: float) -> None:
        attempt = self._attempts.get(attempt_id)
        if attempt is not None:
            attempt.fence = math.inf
        super().read_done(attempt_id, now)


@fault("own-lease-assumed", "EC-5.1", part="consumer")
class OwnLeaseAssumed(ConsumerReads):
    """The lease that an ack names is ignored for the configured one."""

    def _apply_ack(self, attempt: Attempt, ack: XferAck, now: float) -> None:
        super()._apply_ack(attempt, msgspec.structs.replace(ack, lease_s=None), now)


# ------------------------------------------------------------------ attempt identity
@fault("any-ack-of-the-encoding", "EC-5.6", "F2", part="consumer")
class AnyAckOfTheEncoding(ConsumerReads):
    """An ack is taken for the attempt under way for its encoding, whatever it names."""

    def on_ack(self, peer_key: PeerKey, ack: XferAck, now: float) -> None:
        fetch = self._fetches.get(ack.mm_hash)
        if fetch is not None and fetch.attempt is not None:
            ack = msgspec.structs.replace(ack, session_id=fetch.attempt.session_id, attempt_id=None)
        super().on_ack(peer_key, ack, now)


@fault("acks-count-twice", "EC-5.6", part="consumer")
class AcksCountTwice(ConsumerReads):
    """The second copy of an ack starts a second READ of the attempt."""

    def on_ack(self, peer_key: PeerKey, ack: XferAck, now: float) -> None:
        for attempt in self._attempts.values():
            if attempt.session_id == ack.session_id and attempt.state == "reading":
                attempt.state = "requested"
                attempt.entry.state = "allocated"
                self.active_reads -= 1
        super().on_ack(peer_key, ack, now)


@fault("descriptors-of-the-first-ack", "EC-9.3", "F8", part="consumer")
class DescriptorsOfTheFirstAck(ConsumerReads):
    """What the first ack of an address said about the peer's memory is used for ever."""

    def __init__(self, tier: EncodingTier, **args: Any) -> None:
        super().__init__(tier, **args)
        self._first: dict[PeerKey, XferAck] = {}

    def on_ack(self, peer_key: PeerKey, ack: XferAck, now: float) -> None:
        if ack.status == XferStatus.OK:
            first = self._first.setdefault(peer_key, ack)
            ack = msgspec.structs.replace(
                ack, agent_metadata=first.agent_metadata, base_addr=first.base_addr
            )
        super().on_ack(peer_key, ack, now)


@fault("incarnation-ignored", "EC-9.2", "F8", part="consumer")
class IncarnationIgnored(ConsumerReads):
    """READs of a process that was replaced at its address go on as if nothing were."""

    def _learn_incarnation(self, peer: Peer, incarnation: str, now: float) -> None:
        peer.incarnation = incarnation


@fault("former-incarnation-believed", "EC-9.2", "F8", part="consumer")
class FormerIncarnationBelieved(ConsumerReads):
    """A late ack of a process that was replaced is taken for its successor's."""

    def on_ack(self, peer_key: PeerKey, ack: XferAck, now: float) -> None:
        peer = self.peers.current(peer_key)
        if peer is not None:
            peer.former = ()
        super().on_ack(peer_key, ack, now)


# ------------------------------------------------------------------------ quarantine
@fault("no-quarantine", "EC-6.1", "F5", part="consumer")
class NoQuarantine(ConsumerReads):
    """The blocks of a READ that was lost are free at once."""

    def _lose(self, attempt: Attempt, event: str, now: float) -> None:
        super()._lose(attempt, event, now)
        self.dma_ended(attempt.attempt_id, "aborted", now)


@fault("time-is-a-proof", "EC-6.3", "F5", part="consumer")
class TimeIsAProof(ConsumerReads):
    """The blocks of a READ without an end are free again after ``quarantine_s``."""

    def _retire(self, attempt: Attempt, now: float) -> None:
        self.dma_ended(attempt.attempt_id, "aborted", now)


@fault("lost-peer-is-a-proof", "EC-6.2", "F5", part="consumer")
class LostPeerIsAProof(ConsumerReads):
    """A READ counts as over when its peer is lost."""

    def _peer_down(self, peer: Peer, event: str, now: float) -> None:
        reading = [a for a in peer.attempts if self._attempts[a].state == "reading"]
        super()._peer_down(peer, event, now)
        for attempt_id in reading:
            self.dma_ended(attempt_id, "aborted", now)


@fault("handles-go-with-the-peer", "EC-6.4", "F4", part="consumer")
class HandlesGoWithThePeer(ConsumerReads):
    """With a lost peer the handles of its READs are dropped: nobody ends their quarantine."""

    def _peer_down(self, peer: Peer, event: str, now: float) -> None:
        reading = [a for a in peer.attempts if self._attempts[a].state == "reading"]
        super()._peer_down(peer, event, now)
        for attempt_id in reading:
            self._commands.append(ForgetRead(attempt_id))
            attempt = self._attempts.pop(attempt_id)
            attempt.peer.attempts.discard(attempt_id)


@fault("quarantine-promotes", "EC-6.5", "F3", part="consumer")
class QuarantinePromotes(ConsumerReads):
    """A completion that is seen in quarantine makes the bytes servable."""

    def read_done(self, attempt_id: int, now: float) -> None:
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.state != "quarantined":
            super().read_done(attempt_id, now)
            return
        entry = attempt.entry
        if self.tier.get(entry.mm_hash) is None:
            attempt.state = "settled"
            self._forget(attempt)
            del self.tier._quarantined[entry.entry_id]
            self.tier._live[entry.mm_hash] = entry
            entry.state = "saving"
            self.tier.write_landed(entry, ("read", attempt_id))
            self._commands.append(ForgetRead(attempt_id))


@fault("quarantine-for-ever", "EC-6.3", part="consumer")
class QuarantineForEver(ConsumerReads):
    """A quarantine without a proof never ends, and its blocks are not counted."""

    def __init__(self, tier: EncodingTier, **args: Any) -> None:
        args["timing"] = with_timers(args["timing"], quarantine_s=1e12)
        super().__init__(tier, **args)


@fault("proof-too-late-is-lost", "EC-6.3", part="consumer")
class ProofTooLateIsLost(ConsumerReads):
    """Retired blocks stay retired although the READ has ended."""

    def dma_ended(self, attempt_id: int, proof: Any, now: float) -> None:
        if attempt_id not in self._retired:
            super().dma_ended(attempt_id, proof, now)
