# SPDX-License-Identifier: Apache-2.0
"""Attempts and fetches: what ``ConsumerReads`` is built on.

This half moves attempts along the read lifecycle, lets timers run out and applies
outcomes to the tier; ``consumer`` adds what the engine thread and the pump call.
All of it runs under the tier's lock.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Final

from ec_protocol.errors import LocalProtocolError
from ec_protocol.p2p import wire
from ec_protocol.p2p.attempt import Attempt, Fetch
from ec_protocol.p2p.commands import (
    AbandonRead,
    ClosePeer,
    Command,
    OpenPeer,
    PeerKey,
    ReleaseGrant,
    SendReq,
)
from ec_protocol.p2p.peers import Peer, PeerTable
from ec_protocol.p2p.wire import XferReq
from ec_protocol.tables.dispatch import READ
from ec_protocol.tables.timing import Timing
from ec_protocol.tier.deferral import Deferrals
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.holds import HoldTable

#: How many replaced incarnations of an address are told from a new one.
MAX_FORMER: Final = 4
#: Producers that are connected to at once. Requests name them, and each connection takes
#: descriptors of the process.
MAX_PEERS: Final = 256
#: A peer without attempts for this many heartbeat TTLs is disconnected.
IDLE_TTLS: Final = 8

_RETRY_LEFT: Final = READ.mask("retry_left")


class AttemptTable:
    """Every fetch and attempt of one consumer process.

    Args:
        tier: Where fetched encodings go.
        holds: Keeps a landed encoding for the requests that wait for it.
        timing: All timers.
        compat_hash: ``wire.compatibility_hash`` of this process.
        session: Unique per process incarnation; no ``:``.
    """

    def __init__(
        self,
        tier: EncodingTier,
        *,
        holds: HoldTable,
        timing: Timing,
        compat_hash: str,
        session: str,
    ) -> None:
        if not session or ":" in session or len(session) > 64:
            raise LocalProtocolError(f"session={session!r}: 1 to 64 characters, no colon")
        self.tier = tier
        self.holds = holds
        self.timing = timing
        self.compat_hash = compat_hash
        self.session = session
        self.peers = PeerTable(timing.heartbeat_timeout_s, tier.trace)
        self.counters: Counter[str] = Counter()
        self.active_reads = 0
        self._fetches: dict[str, Fetch] = {}
        self._attempts: dict[int, Attempt] = {}
        self._retired: dict[int, int] = {}
        self._failed: dict[str, set[str]] = {}
        self.deferrals = Deferrals()
        self._commands: list[Command] = []
        self._ids = itertools.count(1)
        if tier.trace is not None:
            tier.trace.facts(
                "reads",
                session=session,
                ack_timeout_s=timing.ack_timeout_s,
                read_timeout_s=timing.read_timeout_s,
                quarantine_s=timing.quarantine_s,
                lease_s=timing.lease_s,
                lease_margin_s=timing.lease_margin_s,
                min_read_s=timing.min_read_s,
            )

    # ------------------------------------------------------------------ pump: time
    def tick(self, now: float) -> None:
        """Let every timer run out that has."""
        timing = self.timing
        for attempt in list(self._attempts.values()):
            if attempt.state == "requested" and now >= attempt.sent_at + timing.ack_timeout_s:
                self._move(attempt, "ack_timeout")
                self.counters["ack_timeouts"] += 1
                self._record(attempt, "AckTimeout", now)
                self._settle(attempt, now)
            elif attempt.state == "reading" and now >= attempt.posted_at + timing.read_timeout_s:
                self.counters["read_timeouts"] += 1
                self._lose(attempt, "read_timeout", now)
            elif attempt.state == "quarantined" and now >= attempt.lost_at + timing.quarantine_s:
                self._retire(attempt, now)
        for fetch in list(self._fetches.values()):
            if fetch.attempt is None and now >= min(fetch.next_at, fetch.deadline):
                if now < fetch.deadline:
                    self._request(fetch, now)
                else:
                    self._fail_fetch(fetch)
        for peer in self._idle_peers():
            if now >= peer.last_used + IDLE_TTLS * timing.heartbeat_ttl_s:
                self._peer_down(peer, "close", now)
        self.peers.forget_losses(now)

    def next_deadline(self) -> float | None:
        """When ``tick`` has something to do next; None when nothing is pending."""
        timing = self.timing
        due: list[float] = []
        for attempt in self._attempts.values():
            if attempt.state == "requested":
                due.append(attempt.sent_at + timing.ack_timeout_s)
            elif attempt.state == "reading":
                due.append(attempt.posted_at + timing.read_timeout_s)
            elif attempt.state == "quarantined":
                due.append(attempt.lost_at + timing.quarantine_s)
        due += [
            min(fetch.next_at, fetch.deadline)
            for fetch in self._fetches.values()
            if fetch.attempt is None
        ]
        due += [peer.last_used + IDLE_TTLS * timing.heartbeat_ttl_s for peer in self._idle_peers()]
        return min(due, default=None)

    def shutdown(self, now: float) -> None:
        """Fail what has not been posted, quarantine what has, close every peer.

        Also the answer to a pump that can no longer run: waiting requests fall
        back and no block under a READ is reused.
        """
        for fetch in list(self._fetches.values()):
            if fetch.attempt is None:
                self._fail_fetch(fetch)
        for peer in self.peers.usable():
            self._peer_down(peer, "close", now)

    @property
    def has_commands(self) -> bool:
        """Whether ``drain`` would return something."""
        return bool(self._commands)

    @property
    def idle(self) -> bool:
        """Whether no request waits and no READ is unsettled."""
        return not self._fetches and not self._attempts

    @property
    def quarantined(self) -> int:
        """Attempts whose outcome is unknown."""
        return sum(a.state == "quarantined" for a in self._attempts.values())

    def _idle_peers(self) -> list[Peer]:
        """Peers that are connected for nothing."""
        return [peer for peer in self.peers.usable() if not peer.attempts]

    def _can_reach(self, key: PeerKey, now: float) -> bool:
        """Whether a producer is connected or may be; the longest idle one gives way."""
        if self.peers.current(key) is not None or self.peers.connected < MAX_PEERS:
            return True
        idle = min(self._idle_peers(), key=lambda peer: peer.last_used, default=None)
        if idle is None:
            return False
        self._peer_down(idle, "close", now)
        return True

    def _request(self, fetch: Fetch, now: float) -> None:
        """Action ``RequestRead``."""
        peer = self.peers.current(fetch.peer)
        if peer is None:
            if self.peers.cooling(fetch.peer, now):
                self.counters["peer_cooling"] += 1
                self._fail_fetch(fetch)
                return
            peer = self.peers.open(fetch.peer, now)
            self._commands.append(OpenPeer(fetch.peer))
        attempt_id = next(self._ids)
        attempt = Attempt(attempt_id, f"{self.session}.{attempt_id}", fetch, peer, now)
        self._attempts[attempt_id] = attempt
        fetch.attempt = attempt
        peer.attempts.add(attempt_id)
        peer.unanswered.sent(fetch.mm_hash, attempt.session_id)
        peer.last_used = now
        self._record(attempt, "RequestRead", now)
        request = XferReq(
            mm_hash=fetch.mm_hash,
            compatibility_hash=self.compat_hash,
            session_id=attempt.session_id,
            connector_version=peer.version,
            attempt_id=attempt_id,
            incarnation=self.session,
        )
        self._commands.append(SendReq(fetch.peer, request))

    def _retry(self, attempt: Attempt, now: float, delay: float) -> None:
        self._move(attempt, "ack_retry")
        self.counters["retries"] += 1
        self._record(attempt, "AckRetry", now)
        attempt.fetch.next_at = now + delay
        self._settle(attempt, now)

    def _fence_open(self, attempt: Attempt, now: float) -> bool:
        return now + self.timing.min_read_s < attempt.fence

    def _release_grant(self, attempt: Attempt) -> None:
        notice = wire.notice(attempt.session_id, attempt.fetch.mm_hash)
        self._commands.append(ReleaseGrant(attempt.peer.key, attempt.agent_metadata, notice))

    def _lose(self, attempt: Attempt, event: str, now: float) -> None:
        """Action ``ReadLost``: quarantine, and let the waiting requests fall back."""
        self._move(attempt, event)
        attempt.lost_at = now
        self.active_reads -= 1
        self.tier.write_lost(attempt.entry, ("read", attempt.attempt_id))
        self.counters["quarantined"] += 1
        self._record(attempt, "ReadLost", now)
        self._drop_fetch(attempt.fetch)
        self._commands.append(AbandonRead(attempt.attempt_id))

    def _retire(self, attempt: Attempt, now: float) -> None:
        """Action ``Retire``."""
        self._move(attempt, "retire")
        self.tier.retire(attempt.entry)
        self._retired[attempt.attempt_id] = attempt.entry.entry_id
        self.counters["retired"] += 1
        self._record(attempt, "Retire", now)
        self._forget(attempt)

    def _settle(self, attempt: Attempt, now: float) -> None:
        """Action ``Settle``: apply the outcome of an attempt to its fetch."""
        fetch = attempt.fetch
        timing = self.timing
        # However the attempt ended: a producer whose grants have no lease left to
        # use must not make us ask without a pause.
        soonest = max(fetch.next_at, now, attempt.sent_at + timing.retry_interval_s)
        latest = fetch.deadline - timing.ack_timeout_s
        retry = bool(fetch.waiters) and soonest <= latest and attempt.state == "retryable"
        was = attempt.state
        effect = self._move(attempt, "settle", _RETRY_LEFT if retry else 0)
        fetch.attempt = None
        if effect == "free_blocks":
            self.tier.drop_allocated(attempt.entry)
        self._record(attempt, "Settle", now)
        self._forget(attempt)
        if effect == "keep_blocks":
            more = timing.retry_pause(fetch.retries, attempt.session_id) - timing.retry_interval_s
            fetch.next_at = min(soonest + more, latest)
            fetch.retries += 1
        elif was == "done":
            del self._fetches[fetch.mm_hash]
        else:
            self._drop_fetch(fetch)

    def _forget(self, attempt: Attempt) -> None:
        del self._attempts[attempt.attempt_id]
        attempt.peer.attempts.discard(attempt.attempt_id)
        self.peers.drain(attempt.peer)

    def _abort(self, fetch: Fetch, now: float) -> None:
        """Action ``Abort``: nobody waits; a READ that is posted goes on and may land."""
        attempt = fetch.attempt
        if attempt is None:
            self._fail_fetch(fetch)
        elif attempt.state in ("requested", "granted"):
            effect = self._move(attempt, "abort")
            self._record(attempt, "Abort", now)
            if effect == "release_grant":
                self._release_grant(attempt)
            self._settle(attempt, now)

    def _fail_fetch(self, fetch: Fetch) -> None:
        """Action ``Cancel`` of a fetch between two attempts."""
        self.tier.cancel(fetch.entry)
        self._drop_fetch(fetch)

    def _drop_fetch(self, fetch: Fetch) -> None:
        del self._fetches[fetch.mm_hash]
        self.counters["fallbacks"] += len(fetch.waiters)
        for waiter in fetch.waiters:
            self._failed.setdefault(waiter, set()).add(fetch.mm_hash)

    def _give_up(self, fetch: Fetch, waiter: str, now: float) -> None:
        self._fail_waiter(waiter, fetch.mm_hash)
        self._unwait(fetch, waiter, now)

    def _unwait(self, fetch: Fetch, waiter: str, now: float) -> None:
        """One waits no more; what the last one waited for is not asked for any more."""
        if waiter in fetch.waiters:
            fetch.waiters.remove(waiter)
            if not fetch.waiters:
                self._abort(fetch, now)

    def _fail_waiter(self, waiter: str, mm_hash: str) -> None:
        self.counters["fallbacks"] += 1
        self._failed.setdefault(waiter, set()).add(mm_hash)

    def _learn_incarnation(self, peer: Peer, incarnation: str, now: float) -> None:
        """The answer to a request that the peer still has says who it comes from."""
        if not peer.incarnation:
            peer.incarnation = incarnation
            return
        # Another process answers at the address: what the old one granted is void.
        self.counters["peers_replaced"] += 1
        fresh = self.peers.open(peer.key, now)
        fresh.incarnation = incarnation
        fresh.former = (*peer.former, peer.incarnation)[-MAX_FORMER:]
        # It has answered one request, and those that nobody has answered yet may just as
        # well reach it.
        for attempt_id in list(peer.attempts):
            attempt = self._attempts[attempt_id]
            if attempt.state == "requested":
                peer.attempts.discard(attempt_id)
                fresh.attempts.add(attempt_id)
                attempt.peer = fresh
                self._touch(attempt)
        self._peer_down(peer, "replaced", now)

    def _peer_down(self, peer: Peer, event: str, now: float) -> None:
        self.peers.down(peer, event, now)
        if event != "replaced":
            self._commands.append(ClosePeer(peer.key))
        for attempt_id in list(peer.attempts):
            attempt = self._attempts[attempt_id]
            if attempt.state == "reading":
                self._lose(attempt, "peer_lost", now)
            elif attempt.state in ("requested", "granted"):
                self._move(attempt, "peer_lost")
                self._record(attempt, "PeerLost", now)
                self._settle(attempt, now)
        self.peers.drain(peer)

    def _move(self, attempt: Attempt, event: str, guards: int = 0) -> str:
        before = attempt.state
        step = READ.fire(before, event, guards)
        attempt.state = step.state
        if self.tier.trace is not None:
            self.tier.trace.fired("read", attempt.attempt_id, event, guards, before, attempt.state)
        return step.effect

    def _touch(self, attempt: Attempt) -> None:
        if self.tier.trace is not None:
            peer = attempt.peer
            self.tier.trace.touch(f"read:{attempt.attempt_id}", attempt.variables())
            self.tier.trace.touch(f"peer:{peer.peer_id}", peer.variables())

    def _record(self, attempt: Attempt, action: str, now: float) -> None:
        """Close an action that was decided at ``now``, a little before it is recorded."""
        if self.tier.trace is not None:
            self._touch(attempt)
            self.tier.trace.action(
                action, attempt=attempt.attempt_id, mm_hash=attempt.fetch.mm_hash, now=now
            )
