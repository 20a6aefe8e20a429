# SPDX-License-Identifier: Apache-2.0
"""The consumer: fetches encodings from producers without ever trusting luck.

The engine thread asks with ``fetch`` and goes on with its step; the pump feeds
acks, data-plane outcomes and the time in, takes the commands out with ``drain``,
and carries them out. Between the two stand the read lifecycle's guards:

* *Fence.* A READ is posted, and its bytes are accepted, only while the lease
  provably still runs, judged by our own clock from *sending* the request.
* *Attempt identity.* An ack acts only on the attempt that its session names.
* *Held quarantine.* Blocks under a READ whose end is unknown are not reused until
  a proof comes; without one they are retired.

Both threads call under the tier's lock. Nothing that a peer sends raises.
"""

from __future__ import annotations

from typing import Final, Literal

from ec_protocol.errors import RemoteProtocolError
from ec_protocol.p2p import wire
from ec_protocol.p2p.attempt import Attempt, Fetch
from ec_protocol.p2p.attempts import AttemptTable
from ec_protocol.p2p.commands import Command, ForgetRead, PeerKey, PrepareRead, ReleaseGrant
from ec_protocol.p2p.wire import XferAck, XferStatus
from ec_protocol.tables.dispatch import READ

FetchState = Literal["pending", "failed"]
Proof = Literal["completed", "aborted", "endpoint_closed"]

#: Attempts that may be unsettled at once; beyond it requests encode locally.
MAX_ATTEMPTS: Final = 1024
_FENCE_OPEN: Final = READ.mask("fence_open")
_IN_LEASE: Final = READ.mask("in_lease")


class ConsumerReads(AttemptTable):
    """Fetches for the engine thread, acks and READs for the pump."""

    # ------------------------------------------------------------- engine thread
    def fetch(
        self,
        mm_hash: str,
        peer: PeerKey,
        nbytes: int,
        shape: tuple[int, ...] | None,
        waiter: str,
        now: float,
    ) -> FetchState:
        """Ask for an encoding that is not in the tier, or how that is going.

        Called once per engine step by every request that waits. Engine thread.

        Args:
            mm_hash: The encoding.
            peer: Its producer.
            nbytes: Bytes announced.
            shape: Rows × width announced, if known.
            waiter: The request's id.
            now: Seconds.

        Returns:
            ``pending``: wait. ``failed``: encode locally; the same answer is given
            to this waiter until it leaves.
        """
        if mm_hash in self._failed.get(waiter, ()):
            return "failed"
        fetch = self._fetches.get(mm_hash)
        if not self.within_budget(waiter, mm_hash, now):
            self.counters["budget_spent"] += 1
            if fetch is not None:
                self._give_up(fetch, waiter, now)
            else:
                self._fail_waiter(waiter, mm_hash)
            return "failed"
        if fetch is not None and fetch.nbytes != nbytes:
            # One name, two sizes: whoever is wrong, this request encodes for itself.
            self.counters["contradicting_sizes"] += 1
            self._fail_waiter(waiter, mm_hash)
            return "failed"
        if fetch is not None:
            if now >= fetch.deadline:
                self._give_up(fetch, waiter, now)
                return "failed"
            fetch.waiters.add(waiter)
            return "pending"
        entry = None
        if len(self._attempts) >= MAX_ATTEMPTS:
            self.counters["too_many_attempts"] += 1
        elif self.peers.cooling(peer, now):
            self.counters["peer_cooling"] += 1
        elif not self._can_reach(peer, now):
            self.counters["too_many_peers"] += 1
        elif self.tier.get(mm_hash) is None:
            entry = self.tier.alloc(mm_hash, nbytes, shape)
            if entry is None:
                self.counters["no_room"] += 1
        if entry is None:
            self._fail_waiter(waiter, mm_hash)
            return "failed"
        fetch = Fetch(mm_hash, peer, nbytes, entry, now + self.timing.fetch_budget_s, {waiter})
        self._fetches[mm_hash] = fetch
        self.counters["fetches"] += 1
        self._request(fetch, now)
        return "pending"

    def within_budget(self, waiter: str, mm_hash: str, now: float) -> bool:
        """Whether the request may be deferred on for this encoding (EC-5.9)."""
        return self.deferrals.within(waiter, mm_hash, now, self.timing.fetch_budget_s)

    def fetching(self, mm_hash: str) -> bool:
        """Whether a fetch of ``mm_hash`` is under way."""
        return mm_hash in self._fetches

    def consumed(self, waiter: str, mm_hash: str) -> None:
        """The waiter's load of a fetched encoding is planned: its hold ends."""
        self.holds.release(("fetched", mm_hash, waiter))
        self.deferrals.served(waiter, mm_hash)

    def leave(self, waiter: str, now: float) -> None:
        """The request finished or was aborted: it waits for nothing any more."""
        self._failed.pop(waiter, None)
        self.deferrals.forget(waiter)
        for fetch in list(self._fetches.values()):
            self._unwait(fetch, waiter, now)
        self.holds.release_where(lambda key: key[0] == "fetched" and key[2] == waiter)

    # --------------------------------------------------------------- pump: control
    def drain(self) -> list[Command]:
        """Take the commands that are to be carried out, in order."""
        commands, self._commands = self._commands, []
        return commands

    def on_ack(self, peer_key: PeerKey, ack: XferAck, now: float) -> int | None:
        """An XferAck came from ``peer_key`` (EC-5.2, EC-5.3).

        Returns:
            The attempt on which it acted; None if it was dropped (EC-5.6).
        """
        peer = self.peers.current(peer_key)
        if peer is not None and ack.session_id:
            peer.unanswered.answered(ack.mm_hash, ack.session_id)
        elif peer is not None and ack.status != XferStatus.OK:
            session_id = peer.unanswered.take_oldest(ack.mm_hash)
            ack = XferAck(mm_hash=ack.mm_hash, status=ack.status, session_id=session_id)
        attempt = self._named(peer_key, ack)
        if attempt is None:
            return None
        # An ack is traffic too, and may be seen before the connection's own event.
        self.peers.heard(attempt.peer)
        if ack.incarnation in attempt.peer.former:
            # The process that said this is gone, and what it granted with it.
            self.counters["former_incarnations"] += 1
            self._move(attempt, "ack_refused")
            self._record(attempt, "AckRefused", now)
            self._settle(attempt, now)
            return attempt.attempt_id
        if ack.incarnation and ack.incarnation != attempt.peer.incarnation:
            self._learn_incarnation(attempt.peer, ack.incarnation, now)
        self._apply_ack(attempt, ack, now)
        return attempt.attempt_id

    def peer_heard(self, peer_key: PeerKey, now: float) -> None:
        """The control plane got traffic from the peer."""
        peer = self.peers.current(peer_key)
        if peer is not None:
            self.peers.heard(peer)

    def peer_lost(self, peer_key: PeerKey, now: float) -> None:
        """The control plane lost the peer: its attempts fail or are quarantined."""
        peer = self.peers.current(peer_key)
        if peer is not None:
            self.counters["peers_lost"] += 1
            self._peer_down(peer, "lost", now)

    # ------------------------------------------------------------------ pump: data
    def post_read(self, attempt_id: int, now: float) -> bool:
        """Action ``PostRead``, asked at the moment of posting.

        Returns:
            True: the blocks are ``saving``; post the READ. False: do not post; the
            attempt is over, or the fence has closed and it will be retried.
        """
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.state != "granted":
            return False
        open_ = self._fence_open(attempt, now)
        step = self._move(attempt, "post_read", _FENCE_OPEN if open_ else 0)
        if step == "release_grant":
            self.counters["fence_closed"] += 1
            self._record(attempt, "PostRead", now)
            self._release_grant(attempt)
            self._settle(attempt, now)
            return False
        attempt.posted_at = now
        self.active_reads += 1
        self.tier.begin_write(attempt.entry, ("read", attempt_id))
        self._record(attempt, "PostRead", now)
        return True

    def post_failed(self, attempt_id: int, now: float) -> None:
        """Action ``PostFailed``: the READ could not even be prepared."""
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.state != "granted":
            return
        self._move(attempt, "post_failed")
        self.counters["post_failed"] += 1
        self._record(attempt, "PostFailed", now)
        self._release_grant(attempt)
        self._settle(attempt, now)

    def read_done(self, attempt_id: int, now: float) -> None:
        """The data plane reports the READ complete: action ``ReadDone`` or ``DmaEnded``."""
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.state != "reading":
            self.dma_ended(attempt_id, "completed", now)
            return
        # At the fence the margin is used up: a timer has run out at its bound (EC-7.3).
        in_lease = now < attempt.fence
        self._move(attempt, "read_done", _IN_LEASE if in_lease else 0)
        self.active_reads -= 1
        entry = attempt.entry
        if in_lease:
            self.tier.write_landed(entry, ("read", attempt_id))
            self.counters["reads_done"] += 1
            self.counters["bytes_read"] += entry.nbytes
        else:
            self.tier.write_ended(entry, ("read", attempt_id))
            self.counters["late_reads"] += 1
        self._record(attempt, "ReadDone", now)
        self._commands.append(ForgetRead(attempt_id))
        if in_lease:
            for waiter in attempt.fetch.waiters:
                self.holds.hold(
                    ("fetched", entry.mm_hash, waiter), entry, now + self.timing.fetched_hold_s
                )
        self._settle(attempt, now)

    def read_error(self, attempt_id: int, now: float) -> None:
        """The data plane reports an error for a posted READ: quarantine (EC-6.1)."""
        attempt = self._attempts.get(attempt_id)
        if attempt is not None and attempt.state == "reading":
            self.counters["read_errors"] += 1
            self._lose(attempt, "read_error", now)

    def dma_ended(self, attempt_id: int, proof: Proof, now: float) -> None:
        """Proof that a quarantined or retired READ is over: ``DmaEnded`` or ``Reclaim``."""
        attempt = self._attempts.get(attempt_id)
        if attempt is not None and attempt.state == "quarantined":
            self._move(attempt, "dma_ended")
            self.tier.dma_ended(attempt.entry)
            self.counters[f"quarantine_ended_{proof}"] += 1
            self._record(attempt, "DmaEnded", now)
            self._commands.append(ForgetRead(attempt_id))
            self._forget(attempt)
        elif (entry_id := self._retired.pop(attempt_id, None)) is not None:
            self.tier.reclaim(entry_id)
            self.counters["reclaimed"] += 1
            self._commands.append(ForgetRead(attempt_id))

    def _named(self, peer_key: PeerKey, ack: XferAck) -> Attempt | None:
        """The attempt that the ack names, or None after counting why it names none."""
        session, _, number = ack.session_id.rpartition(".")
        if session != self.session or not number.isascii() or not number.isdigit():
            self.counters["foreign_acks"] += 1
            return None
        attempt = self._attempts.get(int(number))
        if attempt is not None and attempt.state != "requested":
            self.counters["duplicate_acks"] += 1
            return None
        if attempt is None:
            self.counters["stale_acks"] += 1
            if ack.status == XferStatus.OK and ack.agent_metadata:
                # Its grant helps nobody: do not let it pin the producer for a lease.
                self._commands.append(
                    ReleaseGrant(
                        peer_key, ack.agent_metadata, wire.notice(ack.session_id, ack.mm_hash)
                    )
                )
            return None
        wrong_attempt = ack.attempt_id is not None and ack.attempt_id != attempt.attempt_id
        wrong_name = (ack.session_id, ack.mm_hash) != (attempt.session_id, attempt.fetch.mm_hash)
        if wrong_attempt or wrong_name or attempt.peer.key != peer_key:
            self.counters["mismatched_acks"] += 1
            return None
        return attempt

    def _apply_ack(self, attempt: Attempt, ack: XferAck, now: float) -> None:
        if ack.status == XferStatus.NACK_VERSION and attempt.version == wire.PREFERRED_VERSION:
            # Older than our preference: once more in the version that it may speak.
            attempt.peer.version = wire.FALLBACK_VERSION
            self._retry(attempt, now, delay=0.0)
            return
        if ack.status in wire.RETRYABLE_NACKS:
            self._retry(attempt, now, delay=self.timing.retry_interval_s)
            return
        command = self._prepare(attempt, ack) if ack.status == XferStatus.OK else None
        if command is None:
            self._move(attempt, "ack_refused")
            self.counters["refused"] += 1
            self._record(attempt, "AckRefused", now)
            if ack.status == XferStatus.OK and ack.agent_metadata:
                attempt.agent_metadata = ack.agent_metadata
                self._release_grant(attempt)
            self._settle(attempt, now)
            return
        lease_s = self.timing.lease_s if ack.lease_s is None else ack.lease_s
        attempt.fence = self.timing.fence(attempt.sent_at, lease_s)
        attempt.lease_s, attempt.incarnation = lease_s, ack.incarnation
        attempt.source = ack.extents
        attempt.agent_metadata = ack.agent_metadata
        effect = self._move(attempt, "ack_ok", _FENCE_OPEN if self._fence_open(attempt, now) else 0)
        self._record(attempt, "AckOk", now)
        if effect == "release_grant":
            self.counters["fence_closed"] += 1
            self._release_grant(attempt)
            self._settle(attempt, now)
            return
        self._commands.append(command)

    def _prepare(self, attempt: Attempt, ack: XferAck) -> PrepareRead | None:
        """What to READ where, or None after counting why the grant is of no use (EC-8.3)."""
        nbytes, size = attempt.fetch.nbytes, self.tier.block_size_bytes
        try:
            if not ack.agent_metadata:
                raise RemoteProtocolError("XferAck: OK without agent metadata")
            source, device = wire.source_pieces(ack, nbytes, size)
            local, remote = wire.pair_pieces(
                wire.local_pieces(attempt.entry.extents, nbytes, size), source
            )
        except RemoteProtocolError:
            self.counters["unusable_acks"] += 1
            return None
        return PrepareRead(
            attempt_id=attempt.attempt_id,
            peer=attempt.peer.key,
            agent_metadata=ack.agent_metadata,
            incarnation=ack.incarnation,
            local=local,
            remote=remote,
            device_id=device,
            notice=wire.notice(attempt.session_id, attempt.fetch.mm_hash),
        )
