# SPDX-License-Identifier: Apache-2.0
"""The READ attempts of one consumer process, and the connections that they need.

An attempt asks one producer for one encoding, may be granted it for one lease, READs it
in that time, and is over. Why it was made and who waits is not known here, and what its
end means is not decided: every method *returns the outcome*, which is the attempt that
it moved, as its ``state`` then says, or None if it moved none. ``fetches`` applies it.

Where one event moves several attempts they come one by one: each outcome is applied
before the next one is asked for, so that no two are open at once.

* *Fence.* A READ is posted, and its bytes are accepted, only while the lease
  provably still runs, judged by our own clock from *sending* the request.
* *Attempt identity.* An ack acts only on the attempt that its session names.
* *Held quarantine.* Blocks under a READ whose end is unknown are not reused until
  a proof comes; without one they are retired.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Final

from ec_protocol.errors import LocalProtocolError
from ec_protocol.p2p import wire
from ec_protocol.p2p.attempt import Attempt, Proof
from ec_protocol.p2p.blocks import Blocks
from ec_protocol.p2p.commands import (
    AbandonRead,
    Command,
    ForgetRead,
    PeerKey,
    PrepareRead,
    ReleaseGrant,
)
from ec_protocol.p2p.peers import Peer, PeerTable
from ec_protocol.p2p.wire import XferAck
from ec_protocol.tables.dispatch import READ
from ec_protocol.tables.timing import Timing
from ec_protocol.terms import Terms
from ec_protocol.tier.entry import Entry

#: Attempts that may be unsettled at once; beyond it requests encode locally.
MAX_ATTEMPTS: Final = 1024
_FENCE_OPEN: Final = READ.mask("fence_open")
_IN_LEASE: Final = READ.mask("in_lease")
_RETRY_LEFT: Final = READ.mask("retry_left")
_NO_TERMS: Final = Terms()


class Attempts:
    """Every attempt that is not settled. One call at a time; what peers send never raises.

    Args:
        tier: Where the encodings go.
        timing: All timers.
        compat_hash: ``wire.compatibility_hash`` of this process.
        session: Unique per process incarnation; no ``:``.
        terms: What is said and demanded beyond ``compat_hash``.

    Attributes:
        peers: Producers that are asked.
        counters: What became of attempts, by name.
        active_reads: READs that are posted and neither seen finished nor given up.

    Raises:
        LocalProtocolError: ``session`` is none.
    """

    def __init__(
        self,
        tier: Blocks,
        *,
        timing: Timing,
        compat_hash: str,
        session: str,
        terms: Terms = _NO_TERMS,
    ) -> None:
        if not session or ":" in session or len(session) > 64:
            raise LocalProtocolError(f"session={session!r}: 1 to 64 characters, no colon")
        self.tier = tier
        self.timing = timing
        self.compat_hash = compat_hash
        self.terms = terms
        self.session = session
        self._commands: list[Command] = []
        self.peers = PeerTable(timing, tier.recorder, self._commands)
        self.counters: Counter[str] = Counter()
        self.active_reads = 0
        self._attempts: dict[int, Attempt] = {}
        self._retired: dict[int, int] = {}
        self._ids = itertools.count(1)
        tier.recorder.facts(
            "reads",
            session=session,
            ack_timeout_s=timing.ack_timeout_s,
            read_timeout_s=timing.read_timeout_s,
            quarantine_s=timing.quarantine_s,
            lease_s=timing.lease_s,
            lease_margin_s=timing.lease_margin_s,
            min_read_s=timing.min_read_s,
        )

    def __len__(self) -> int:
        return len(self._attempts)

    @property
    def quarantined(self) -> int:
        """Attempts whose outcome is unknown."""
        return sum(a.state == "quarantined" for a in self._attempts.values())

    @property
    def has_commands(self) -> bool:
        """Whether ``drain`` would return something."""
        return bool(self._commands)

    def drain(self) -> list[Command]:
        """Take the commands that are to be carried out, in order."""
        commands = list(self._commands)
        self._commands.clear()
        return commands

    def get(self, attempt_id: int) -> Attempt | None:
        """The attempt with that id while it is not settled."""
        return self._attempts.get(attempt_id)

    # ------------------------------------------------------------ begin and settle
    def may_begin(self, key: PeerKey, now: float) -> bool:
        """Whether a producer may be asked now; counts why not."""
        if len(self._attempts) >= MAX_ATTEMPTS:
            self.counters["too_many_attempts"] += 1
        elif self.peers.rests.resting(key, now):
            self.counters["peer_cooling"] += 1
        elif not self.peers.reach(key, now):
            self.counters["too_many_peers"] += 1
        else:
            return True
        return False

    def begin(self, entry: Entry, key: PeerKey, now: float) -> Attempt | None:
        """Action ``RequestRead``; None if the producer was lost too recently."""
        peer = self.peers.current(key)
        if peer is None:
            if self.peers.rests.resting(key, now):
                self.counters["peer_cooling"] += 1
                return None
            peer = self.peers.connect(key, now)
        attempt_id = next(self._ids)
        session_id = f"{self.session}.{attempt_id}"
        attempt = Attempt(attempt_id, session_id, entry, peer, peer.version, now)
        self._attempts[attempt_id] = attempt
        peer.attempts.add(attempt_id)
        peer.unanswered.sent(entry.encoding, session_id)
        peer.last_used = now
        self._record(attempt, "RequestRead", now)
        self._commands.append(attempt.request(self.compat_hash, self.session, self.terms))
        return attempt

    def abort(self, attempt: Attempt, now: float) -> Attempt | None:
        """Action ``Abort``: nobody waits; a READ that is posted goes on and may land."""
        if attempt.state not in ("requested", "granted"):
            return None
        if self._act(attempt, "abort", "Abort", now) == "release_grant":
            self._release_grant(attempt)
        return attempt

    def settle(self, attempt: Attempt, again: bool, now: float) -> bool:
        """Action ``Settle``: the outcome is applied, and the attempt is over.

        Args:
            attempt: ``done``, ``retryable`` or ``failed``.
            again: Whether another one is to follow.
            now: Seconds.

        Returns:
            Whether the blocks are kept for that.
        """
        effect = self.tier.recorder.move(attempt, "settle", _RETRY_LEFT if again else 0).effect
        if effect == "free_blocks":
            self.tier.drop_allocated(attempt.entry)
        self._record(attempt, "Settle", now)
        self._remove(attempt)
        return effect == "keep_blocks"

    # --------------------------------------------------------------------- timers
    def tick(self, now: float) -> Iterator[Attempt]:
        """Let every timer of an attempt run out that has."""
        timing = self.timing
        for attempt in list(self._attempts.values()):
            if attempt.state == "requested" and now >= attempt.sent_at + timing.ack_timeout_s:
                self.counters["ack_timeouts"] += 1
                self._act(attempt, "ack_timeout", "AckTimeout", now)
                yield attempt
            elif attempt.state == "reading" and now >= attempt.posted_at + timing.read_timeout_s:
                self.counters["read_timeouts"] += 1
                yield self._quarantine(attempt, "read_timeout", now)
            elif attempt.state == "quarantined" and now >= attempt.lost_at + timing.quarantine_s:
                self._retire(attempt, now)

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
        return min(due, default=None)

    # ------------------------------------------------------------------------ peers
    def peer_lost(self, peer_key: PeerKey, now: float) -> Iterator[Attempt]:
        """The control plane lost the peer: its attempts fail or are quarantined."""
        peer = self.peers.current(peer_key)
        if peer is not None:
            self.counters["peers_lost"] += 1
            self.peers.disconnect(peer, "lost", now)
            yield from self._peer_down(peer, now)

    def shutdown(self, now: float) -> Iterator[Attempt]:
        """Close every peer, which ends its attempts likewise."""
        for peer in self.peers.usable():
            self.peers.disconnect(peer, "close", now)
            yield from self._peer_down(peer, now)

    def peer_replaced(self, peer: Peer, incarnation: str, now: float) -> Iterator[Attempt]:
        """Another process answers at the address: what the old one granted is void (EC-9.2)."""
        self.counters["peers_replaced"] += 1
        fresh = self.peers.replace(peer, incarnation, now)
        # It has answered one request, and those that nobody has answered yet may just as
        # well reach it.
        for attempt_id in list(peer.attempts):
            attempt = self._attempts[attempt_id]
            if attempt.state == "requested":
                peer.attempts.discard(attempt_id)
                fresh.attempts.add(attempt_id)
                attempt.peer = fresh
                self.tier.recorder.touch(attempt, fresh)
        self.peers.down(peer, "replaced", now)
        self.peers.drain(peer)
        yield from self._peer_down(peer, now)

    def _peer_down(self, peer: Peer, now: float) -> Iterator[Attempt]:
        """Action ``PeerLost`` or ``ReadLost`` for whatever was under way with the peer."""
        for attempt_id in list(peer.attempts):
            attempt = self._attempts[attempt_id]
            if attempt.state == "reading":
                yield self._quarantine(attempt, "peer_lost", now)
            elif attempt.state in ("requested", "granted"):
                self._act(attempt, "peer_lost", "PeerLost", now)
                yield attempt

    # ------------------------------------------------------------------------- acks
    def grant(self, attempt: Attempt, ack: XferAck, command: PrepareRead, now: float) -> None:
        """Action ``AckOk``: READ by ``command``, if the lease leaves time for it (EC-5.2)."""
        lease_s = self.timing.lease_s if ack.lease_s is None else ack.lease_s
        attempt.fence = self.timing.fence(attempt.sent_at, lease_s)
        attempt.lease_s, attempt.incarnation = lease_s, ack.incarnation
        attempt.source = ack.extents
        attempt.agent_metadata = ack.agent_metadata
        guards = _FENCE_OPEN if self._fence_open(attempt, now) else 0
        if self._act(attempt, "ack_ok", "AckOk", now, guards) == "release_grant":
            self.counters["fence_closed"] += 1
            self._release_grant(attempt)
        else:
            self._commands.append(command)

    def retry(self, attempt: Attempt, again_at: float, now: float) -> None:
        """Action ``AckRetry``: another one may follow at ``again_at``."""
        self.counters["retries"] += 1
        attempt.again_at = again_at
        self._act(attempt, "ack_retry", "AckRetry", now)

    def refuse(self, attempt: Attempt, now: float, agent_metadata: bytes = b"") -> None:
        """Action ``AckRefused``; what was granted nevertheless is given back."""
        self._act(attempt, "ack_refused", "AckRefused", now)
        if agent_metadata:
            attempt.agent_metadata = agent_metadata
            self._release_grant(attempt)

    def release(self, peer: PeerKey, ack: XferAck) -> None:
        """A grant that helps nobody must not pin its producer for a lease (EC-5.6)."""
        notice = wire.notice(ack.session_id, ack.mm_hash)
        self._commands.append(ReleaseGrant(peer, ack.agent_metadata, notice))

    # ----------------------------------------------------------------- data plane
    def post_read(self, attempt_id: int, now: float) -> Attempt | None:
        """Action ``PostRead``, asked at the moment of posting.

        Returns:
            The attempt, which is ``reading``, or ``retryable`` if the fence has closed.
        """
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.state != "granted":
            return None
        guards = _FENCE_OPEN if self._fence_open(attempt, now) else 0
        closed = self.tier.recorder.move(attempt, "post_read", guards).effect == "release_grant"
        if not closed:
            attempt.posted_at = now
            self.active_reads += 1
            self.tier.begin_write(attempt.entry, ("read", attempt_id))
        self._record(attempt, "PostRead", now)
        if closed:
            self.counters["fence_closed"] += 1
            self._release_grant(attempt)
        return attempt

    def post_failed(self, attempt_id: int, now: float) -> Attempt | None:
        """Action ``PostFailed``: the READ could not even be prepared."""
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.state != "granted":
            return None
        self.counters["post_failed"] += 1
        self._act(attempt, "post_failed", "PostFailed", now)
        self._release_grant(attempt)
        return attempt

    def read_done(self, attempt_id: int, now: float) -> Attempt | None:
        """The data plane reports the READ complete: action ``ReadDone`` or ``DmaEnded``."""
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.state != "reading":
            self.dma_ended(attempt_id, "completed", now)
            return None
        # At the fence the margin is used up: a timer has run out at its bound (EC-7.3).
        in_lease = now < attempt.fence
        self.tier.recorder.move(attempt, "read_done", _IN_LEASE if in_lease else 0)
        self.active_reads -= 1
        if in_lease:
            self.tier.write_landed(attempt.entry, ("read", attempt_id))
            self.counters["reads_done"] += 1
            self.counters["bytes_read"] += attempt.entry.nbytes
        else:
            self.tier.write_ended(attempt.entry, ("read", attempt_id))
            self.counters["late_reads"] += 1
        self._record(attempt, "ReadDone", now)
        self._commands.append(ForgetRead(attempt_id))
        return attempt

    def read_corrupt(self, attempt_id: int, now: float) -> Attempt | None:
        """Action ``ReadCorrupt``: the READ was complete at ``now``, with other bytes (EC-8.11).

        One that was complete too late is just that, whatever it brought: its source may
        have been reused.
        """
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.state != "reading" or now >= attempt.fence:
            return self.read_done(attempt_id, now)
        self.counters["checksum_mismatches"] += 1
        self.tier.recorder.move(attempt, "read_corrupt")
        self.active_reads -= 1
        self.tier.write_ended(attempt.entry, ("read", attempt_id))
        self._record(attempt, "ReadCorrupt", now)
        self._commands.append(ForgetRead(attempt_id))
        return attempt

    def read_error(self, attempt_id: int, now: float) -> Attempt | None:
        """The data plane reports an error for a posted READ: quarantine (EC-6.1)."""
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.state != "reading":
            return None
        self.counters["read_errors"] += 1
        return self._quarantine(attempt, "read_error", now)

    def dma_ended(self, attempt_id: int, proof: Proof, now: float) -> None:
        """Proof that a quarantined or retired READ is over: ``DmaEnded`` or ``Reclaim``."""
        attempt = self._attempts.get(attempt_id)
        if attempt is not None and attempt.state == "quarantined":
            self.tier.recorder.move(attempt, "dma_ended")
            self.tier.dma_ended(attempt.entry)
            self.counters[f"quarantine_ended_{proof}"] += 1
            self._record(attempt, "DmaEnded", now)
            self._commands.append(ForgetRead(attempt_id))
            self._remove(attempt)
        elif (entry_id := self._retired.pop(attempt_id, None)) is not None:
            self.tier.reclaim(entry_id)
            self.counters["reclaimed"] += 1
            self._commands.append(ForgetRead(attempt_id))

    def _fence_open(self, attempt: Attempt, now: float) -> bool:
        return now + self.timing.min_read_s < attempt.fence

    def _release_grant(self, attempt: Attempt) -> None:
        command = ReleaseGrant(attempt.peer.key, attempt.agent_metadata, attempt.notice)
        self._commands.append(command)

    # ----------------------------------------------------------- ends, and records
    def _quarantine(self, attempt: Attempt, event: str, now: float) -> Attempt:
        """Action ``ReadLost``."""
        self.tier.recorder.move(attempt, event)
        attempt.lost_at = now
        self.active_reads -= 1
        self.tier.write_lost(attempt.entry, ("read", attempt.attempt_id))
        self.counters["quarantined"] += 1
        self._record(attempt, "ReadLost", now)
        self._commands.append(AbandonRead(attempt.attempt_id))
        return attempt

    def _retire(self, attempt: Attempt, now: float) -> None:
        """Action ``Retire``."""
        self.tier.recorder.move(attempt, "retire")
        self.tier.retire(attempt.entry)
        self._retired[attempt.attempt_id] = attempt.entry.entry_id
        self.counters["retired"] += 1
        self._record(attempt, "Retire", now)
        self._remove(attempt)

    def _remove(self, attempt: Attempt) -> None:
        """Nothing refers to the attempt any more."""
        del self._attempts[attempt.attempt_id]
        attempt.peer.attempts.discard(attempt.attempt_id)
        self.peers.drain(attempt.peer)

    def _act(self, attempt: Attempt, event: str, action: str, now: float, guards: int = 0) -> str:
        """An action that moves nothing but the attempt; its effect."""
        effect = self.tier.recorder.move(attempt, event, guards).effect
        self._record(attempt, action, now)
        return effect

    def _record(self, attempt: Attempt, action: str, now: float) -> None:
        """Close an action that was decided at ``now``, a little before it is recorded."""
        what = {"attempt": attempt.attempt_id, "mm_hash": attempt.entry.mm_hash, "now": now}
        self.tier.recorder.action(action, attempt, attempt.peer, **what)
