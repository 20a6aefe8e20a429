# SPDX-License-Identifier: Apache-2.0
"""Consumers with one fault each: fence, attempt identity, quarantine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from ec_protocol.p2p.acks import Acks
from ec_protocol.p2p.attempt import Attempt
from ec_protocol.p2p.attempts import Attempts
from ec_protocol.p2p.commands import ForgetRead, PeerKey
from ec_protocol.p2p.fetches import Fetches
from ec_protocol.p2p.peers import Peer
from ec_protocol.p2p.wire import XferAck, XferStatus
from ec_protocol.tier.encodings import EncodingTier
from ec_verify.adapters.ours.faulty.registry import fault, with_timers


# ------------------------------------------------------------------------ the fence
@fault("no-fence-before-posting", "EC-5.2", "F1", part="attempts")
class NoFenceBeforePosting(Attempts):
    """A READ is posted however little of the lease is left, or when it is over."""

    def _fence_open(self, attempt: Attempt, now: float) -> bool:
        return True


@fault("fence-asked-at-the-ack-only", "EC-5.2", "F1", part="attempts")
class FenceAskedAtTheAckOnly(Attempts):
    """The fence is not asked again at the moment of posting."""

    _posting = False

    def post_read(self, attempt_id: int, now: float) -> Attempt | None:
        self._posting = True
        try:
            return super().post_read(attempt_id, now)
        finally:
            self._posting = False

    def _fence_open(self, attempt: Attempt, now: float) -> bool:
        return self._posting or super()._fence_open(attempt, now)


@fault("fence-from-the-ack", "EC-5.1", "F1", part="acks")
class FenceFromTheAck(Acks):
    """The lease is counted from the moment the ack is handled, not from sending."""

    def _apply(self, attempt: Attempt, ack: XferAck, now: float) -> None:
        attempt.sent_at = now
        super()._apply(attempt, ack, now)


@fault("no-margin", "EC-5.1", part="attempts")
class NoMargin(Attempts):
    """The fence lies at the very end of the lease: nothing is left for drift."""

    def __init__(self, tier: EncodingTier, **args: Any) -> None:
        args["timing"] = with_timers(args["timing"], lease_margin_s=0.0)
        super().__init__(tier, **args)


@fault("least-read-time-ignored", "EC-5.2", part="attempts")
class LeastReadTimeIgnored(Attempts):
    """A READ is posted when less than ``min_read_s`` is left."""

    def __init__(self, tier: EncodingTier, **args: Any) -> None:
        args["timing"] = with_timers(args["timing"], min_read_s=0.0)
        super().__init__(tier, **args)


@fault("accepts-late-reads", "EC-5.3", "F3", part="attempts")
class AcceptsLateReads(Attempts):
    """The bytes of a READ that is seen done after its fence are accepted."""

    def read_done(self, attempt_id: int, now: float) -> Attempt | None:
        attempt = self._attempts.get(attempt_id)
        if attempt is not None:
            attempt.fence = math.inf
        return super().read_done(attempt_id, now)


@fault("own-lease-assumed", "EC-5.1", part="acks")
class OwnLeaseAssumed(Acks):
    """The lease that an ack names is ignored for the configured one."""

    def _apply(self, attempt: Attempt, ack: XferAck, now: float) -> None:
        super()._apply(attempt, msgspec.structs.replace(ack, lease_s=None), now)


# ------------------------------------------------------------------ attempt identity
@fault("any-ack-of-the-encoding", "EC-5.6", "F2", part="fetches")
class AnyAckOfTheEncoding(Fetches):
    """An ack is taken for the attempt under way for its encoding, whatever it names."""

    def on_ack(self, peer_key: PeerKey, ack: XferAck, now: float) -> int | None:
        fetch = self._fetches.get(ack.mm_hash)
        if fetch is not None and fetch.attempt is not None:
            ack = msgspec.structs.replace(ack, session_id=fetch.attempt.session_id, attempt_id=None)
        return super().on_ack(peer_key, ack, now)


@fault("acks-count-twice", "EC-5.6", part="fetches")
class AcksCountTwice(Fetches):
    """The second copy of an ack starts a second READ of the attempt."""

    def on_ack(self, peer_key: PeerKey, ack: XferAck, now: float) -> int | None:
        for attempt in self.attempts._attempts.values():
            if attempt.session_id == ack.session_id and attempt.state == "reading":
                attempt.state = "requested"
                attempt.entry.state = "allocated"
                self.attempts.active_reads -= 1
        return super().on_ack(peer_key, ack, now)


@fault("descriptors-of-the-first-ack", "EC-9.3", "F8", part="fetches")
class DescriptorsOfTheFirstAck(Fetches):
    """What the first ack of an address said about the peer's memory is used for ever."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._first: dict[PeerKey, XferAck] = {}

    def on_ack(self, peer_key: PeerKey, ack: XferAck, now: float) -> int | None:
        if ack.status == XferStatus.OK:
            first = self._first.setdefault(peer_key, ack)
            ack = msgspec.structs.replace(
                ack, agent_metadata=first.agent_metadata, base_addr=first.base_addr
            )
        return super().on_ack(peer_key, ack, now)


@fault("incarnation-ignored", "EC-9.2", "F8", part="acks")
class IncarnationIgnored(Acks):
    """READs of a process that was replaced at its address go on as if nothing were."""

    def _learn_incarnation(self, peer: Peer, incarnation: str, now: float) -> Iterator[Attempt]:
        peer.incarnation = incarnation
        return iter(())


@fault("former-incarnation-believed", "EC-9.2", "F8", part="fetches")
class FormerIncarnationBelieved(Fetches):
    """A late ack of a process that was replaced is taken for its successor's."""

    def on_ack(self, peer_key: PeerKey, ack: XferAck, now: float) -> int | None:
        peer = self.attempts.peers.current(peer_key)
        if peer is not None:
            peer.former = ()
        return super().on_ack(peer_key, ack, now)


# ------------------------------------------------------------------------ quarantine
@fault("no-quarantine", "EC-6.1", "F5", part="fetches")
class NoQuarantine(Fetches):
    """The blocks of a READ that was lost are free at once."""

    def _apply(self, outcome: Attempt | None, now: float) -> None:
        lost = outcome is not None and outcome.state == "quarantined"
        super()._apply(outcome, now)
        if outcome is not None and lost:
            self.attempts.dma_ended(outcome.attempt_id, "aborted", now)


@fault("time-is-a-proof", "EC-6.3", "F5", part="attempts")
class TimeIsAProof(Attempts):
    """The blocks of a READ without an end are free again after ``quarantine_s``."""

    def _retire(self, attempt: Attempt, now: float) -> None:
        self.dma_ended(attempt.attempt_id, "aborted", now)


@fault("lost-peer-is-a-proof", "EC-6.2", "F5", part="attempts")
class LostPeerIsAProof(Attempts):
    """A READ counts as over when its peer is lost."""

    def _peer_down(self, peer: Peer, now: float) -> Iterator[Attempt]:
        reading = [a for a in peer.attempts if self._attempts[a].state == "reading"]
        yield from super()._peer_down(peer, now)
        for attempt_id in reading:
            self.dma_ended(attempt_id, "aborted", now)


@fault("handles-go-with-the-peer", "EC-6.4", "F4", part="attempts")
class HandlesGoWithThePeer(Attempts):
    """With a lost peer the handles of its READs are dropped: nobody ends their quarantine."""

    def _peer_down(self, peer: Peer, now: float) -> Iterator[Attempt]:
        reading = [a for a in peer.attempts if self._attempts[a].state == "reading"]
        yield from super()._peer_down(peer, now)
        for attempt_id in reading:
            self._commands.append(ForgetRead(attempt_id))
            attempt = self._attempts.pop(attempt_id)
            attempt.peer.attempts.discard(attempt_id)


@fault("quarantine-promotes", "EC-6.5", "F3", part="attempts")
class QuarantinePromotes(Attempts):
    """A completion that is seen in quarantine makes the bytes servable."""

    def read_done(self, attempt_id: int, now: float) -> Attempt | None:
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.state != "quarantined":
            return super().read_done(attempt_id, now)
        entry = attempt.entry
        if self.tier.get(entry.mm_hash) is None:
            attempt.state = "settled"
            self._remove(attempt)
            del self.tier._quarantined[entry.entry_id]
            self.tier._live[entry.mm_hash] = entry
            entry.state = "saving"
            self.tier.write_landed(entry, ("read", attempt_id))
            self._commands.append(ForgetRead(attempt_id))
        return None


@fault("quarantine-for-ever", "EC-6.3", part="attempts")
class QuarantineForEver(Attempts):
    """A quarantine without a proof never ends, and its blocks are not counted."""

    def __init__(self, tier: EncodingTier, **args: Any) -> None:
        args["timing"] = with_timers(args["timing"], quarantine_s=1e12)
        super().__init__(tier, **args)


@fault("proof-too-late-is-lost", "EC-6.3", part="attempts")
class ProofTooLateIsLost(Attempts):
    """Retired blocks stay retired although the READ has ended."""

    def dma_ended(self, attempt_id: int, proof: Any, now: float) -> None:
        if attempt_id not in self._retired:
            super().dma_ended(attempt_id, proof, now)
