# SPDX-License-Identifier: Apache-2.0
"""Consumers with one fault each: what an attempt's outcome means, and that it stands."""

from __future__ import annotations

from typing import Any

from ec_protocol.p2p.attempt import Attempt
from ec_protocol.p2p.attempts import Attempts
from ec_protocol.p2p.commands import PeerKey, PrepareRead
from ec_protocol.p2p.fetches import Fetch, Fetches
from ec_protocol.p2p.peers import Peer
from ec_protocol.p2p.wire import RETRYABLE_NACKS, XferAck, XferStatus
from ec_protocol.tier.encodings import EncodingTier
from ec_verify.adapters.ours.faulty.registry import fault


@fault("gives-back-what-was-not-granted", "EC-5.11", part="attempts")
class GivesBackWhatWasNotGranted(Attempts):
    """Each attempt that fails is told to its producer, if that has granted any before."""

    def __init__(self, tier: EncodingTier, **args: Any) -> None:
        super().__init__(tier, **args)
        self.agents: dict[PeerKey, bytes] = {}

    def grant(self, attempt: Attempt, ack: XferAck, command: PrepareRead, now: float) -> None:
        super().grant(attempt, ack, command, now)
        self.agents[attempt.peer.key] = attempt.agent_metadata

    def settle(self, attempt: Attempt, again: bool, now: float) -> bool:
        if attempt.state == "failed" and not attempt.agent_metadata:
            attempt.agent_metadata = self.agents.get(attempt.peer.key, b"")
            if attempt.agent_metadata:
                self._release_grant(attempt)
        return super().settle(attempt, again, now)


@fault("short-lease-is-a-refusal", "EC-5.12", "F1", part="fetches")
class ShortLeaseIsARefusal(Fetches):
    """An attempt whose grant has too little of its lease left fails, and is not made again."""

    def _settle(self, fetch: Fetch, ended: Attempt, now: float) -> None:
        if ended.state == "retryable" and ended.agent_metadata:
            ended.state = "failed"
        super()._settle(fetch, ended, now)


class _Remembers(Fetches):
    """Keeps the attempts that are over, with the outcome of each."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.over: dict[str, tuple[str, Attempt]] = {}
        self.what_for: dict[str, Fetch] = {}

    def _settle(self, fetch: Fetch, ended: Attempt, now: float) -> None:
        self.over[ended.session_id] = (ended.state, ended)
        super()._settle(fetch, ended, now)

    def _attempt(self, fetch: Fetch, now: float) -> None:
        super()._attempt(fetch, now)
        if fetch.attempt is not None:
            self.what_for[fetch.attempt.session_id] = fetch

    def outcome(self, ack: XferAck) -> tuple[str, Attempt | None]:
        """How the attempt ended that the ack names."""
        return self.over.get(ack.session_id, ("", None))


@fault("late-ack-revives", "EC-5.12", "F2", part="fetches")
class LateAckRevives(_Remembers):
    """An OK ack is acted on although its attempt has failed, is to be made again, or is lost."""

    def on_ack(self, peer_key: PeerKey, ack: XferAck, now: float) -> int | None:
        for lost in [a for a in self.attempts._attempts.values() if a.session_id == ack.session_id]:
            if ack.status == XferStatus.OK and lost.state == "quarantined":
                self.attempts.dma_ended(lost.attempt_id, "aborted", now)
                self.over[ack.session_id] = ("failed", lost)
        outcome, attempt = self.outcome(ack)
        if attempt is not None and ack.status == XferStatus.OK:
            if outcome == "failed":
                self._begin_again(attempt, now)
            fetch = self._fetches.get(ack.mm_hash)
            if outcome in ("failed", "retryable") and fetch is not None and fetch.attempt is None:
                attempt.state, attempt.entry = "requested", fetch.entry
                self.what_for[attempt.session_id] = fetch
                fetch.attempt = attempt
                self.attempts._attempts[attempt.attempt_id] = attempt
                attempt.peer.attempts.add(attempt.attempt_id)
        return super().on_ack(peer_key, ack, now)

    def _begin_again(self, attempt: Attempt, now: float) -> None:
        old = self.what_for[attempt.session_id]
        if self.tier.get(old.mm_hash) is not None:
            return
        entry = self.tier.alloc(old.mm_hash, old.nbytes, None)
        if entry is not None:
            deadline = now + self.timing.fetch_budget_s
            self._fetches[old.mm_hash] = Fetch(
                old.mm_hash, old.peer, old.nbytes, entry, deadline, {"nobody"}
            )


@fault("late-retry-asks-again", "EC-5.12", part="fetches")
class LateRetryAsksAgain(_Remembers):
    """NACK_NOT_READY is acted on although its attempt has failed."""

    def on_ack(self, peer_key: PeerKey, ack: XferAck, now: float) -> int | None:
        outcome, attempt = self.outcome(ack)
        if attempt is not None and outcome == "failed" and ack.status in RETRYABLE_NACKS:
            fetch = self.what_for[attempt.session_id]
            waiters = {w for w, names in self._failed.items() if fetch.mm_hash in names}
            for waiter in waiters:
                self._failed[waiter].discard(fetch.mm_hash)
                self.fetch(fetch.mm_hash, fetch.peer, fetch.nbytes, None, waiter, now)
        return super().on_ack(peer_key, ack, now)


@fault("refusal-ends-what-is-retried", "EC-5.12", part="fetches")
class RefusalEndsWhatIsRetried(_Remembers):
    """A refusal ends the fetch although its attempt was answered before, to try again."""

    def on_ack(self, peer_key: PeerKey, ack: XferAck, now: float) -> int | None:
        outcome, _ = self.outcome(ack)
        fetch = self._fetches.get(ack.mm_hash)
        refused = ack.status != XferStatus.OK and ack.status not in RETRYABLE_NACKS
        if outcome == "retryable" and refused and fetch is not None and fetch.attempt is None:
            self._cancel(fetch)
        return super().on_ack(peer_key, ack, now)


@fault("refusal-ends-a-read", "EC-5.12", "F5", part="fetches")
class RefusalEndsARead(Fetches):
    """A NACK is believed after the OK too: the READ counts as over, in quarantine as well."""

    def on_ack(self, peer_key: PeerKey, ack: XferAck, now: float) -> int | None:
        named = [a for a in self.attempts._attempts.values() if a.session_id == ack.session_id]
        for attempt in named:
            if ack.status != XferStatus.OK and attempt.state in ("reading", "quarantined"):
                if attempt.state == "reading":
                    self._apply(self.attempts._quarantine(attempt, "read_error", now), now)
                self.attempts.dma_ended(attempt.attempt_id, "aborted", now)
        return super().on_ack(peer_key, ack, now)


class _TakesBack(_Remembers):
    """May drop what a READ has brought."""

    def take_back(self, attempt: Attempt) -> None:
        """The entry of an attempt that is done is gone, if nothing is loading it."""
        entry = attempt.entry
        self.holds.release_where(lambda key: key[:2] == ("fetched", entry.mm_hash))
        if self.tier.get(entry.mm_hash) is entry and entry.state == "ready":
            self.tier.recorder.move(entry, "evict")
            self.tier._evictable_blocks -= entry.num_blocks
            self.tier._release(entry, self.tier._live)

    def done_by(self, peer: Peer) -> list[Attempt]:
        """What is done of this incarnation of a peer."""
        return [a for state, a in self.over.values() if state == "done" and a.peer is peer]


@fault("lost-peer-takes-what-it-sent", "EC-5.12", "F4", part="fetches")
class LostPeerTakesWhatItSent(_TakesBack):
    """What a READ has brought is dropped when its peer is lost."""

    def peer_lost(self, peer_key: PeerKey, now: float) -> None:
        peer = self.attempts.peers.current(peer_key)
        super().peer_lost(peer_key, now)
        for attempt in self.done_by(peer) if peer is not None else ():
            self.take_back(attempt)


@fault("late-answer-takes-what-was-sent", "EC-5.12", "F8", part="fetches")
class LateAnswerTakesWhatWasSent(_TakesBack):
    """What a READ has brought is dropped when a refusal or another process's ack comes."""

    def differs(self, ack: XferAck, attempt: Attempt) -> bool:
        """Whether the ack says something else than the one that was acted on."""
        return ack.status != XferStatus.OK or ack.incarnation != attempt.incarnation

    def on_ack(self, peer_key: PeerKey, ack: XferAck, now: float) -> int | None:
        outcome, attempt = self.outcome(ack)
        if attempt is not None and outcome == "done" and self.differs(ack, attempt):
            self.take_back(attempt)
        return super().on_ack(peer_key, ack, now)


@fault("abort-takes-what-was-sent", "EC-5.12", part="fetches")
class AbortTakesWhatWasSent(_TakesBack):
    """What a READ has brought is dropped when the request that waited is aborted."""

    def leave(self, waiter: str, now: float) -> None:
        done = [a for state, a in self.over.values() if state == "done"]
        super().leave(waiter, now)
        for attempt in done:
            if waiter in self.what_for[attempt.session_id].waiters:
                self.take_back(attempt)
