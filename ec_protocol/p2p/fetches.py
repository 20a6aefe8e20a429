# SPDX-License-Identifier: Apache-2.0
"""The reading side: what a fetch asks for, attempt by attempt.

The engine begins a fetch and says when nobody waits any more; whoever does the I/O feeds
acks, data-plane outcomes and the time in, takes commands out of ``attempts``, and carries
them out. A fetch is made of attempts, one at a time and all for the same blocks:
``attempts`` says how each one ended, and here that is applied. The encoding has landed,
or another attempt follows, or the fetch has failed.

One call at a time. Nothing that a peer sends raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ec_protocol.p2p.acks import Acks
from ec_protocol.p2p.attempt import Attempt
from ec_protocol.p2p.attempts import Attempts
from ec_protocol.p2p.commands import PeerKey
from ec_protocol.p2p.wire import XferAck
from ec_protocol.tier.entry import Entry
from ec_protocol.waiters import Wanted


class Listener(Protocol):
    """Who is told how a fetch ended."""

    def landed(self, wanted: Wanted, entry: Entry, now: float) -> None:
        """The encoding is there."""

    def failed(self, wanted: Wanted) -> None:
        """It does not come."""


@dataclass(slots=True, eq=False)
class Fetch:
    """One fetch, across attempts.

    Attributes:
        wanted: What is fetched, where from, and for how long it may be tried.
        entry: Destination blocks, the same for every attempt.
        attempt: The attempt under way, or None between two.
        next_at: When the next attempt is due, if ``attempt`` is None.
        retries: How many attempts ended in another one.
    """

    wanted: Wanted
    entry: Entry
    attempt: Attempt | None = None
    next_at: float = 0.0
    retries: int = 0


class Fetches:
    """Every fetch of one process that reads.

    Args:
        attempts: Makes and moves the attempts.
        acks: Moves them by what producers answer.

    Attributes:
        attempts: See there. Commands are taken out of it, and proofs go into it.
        counters: What became of fetches and attempts, by name.
        listener: Told how each fetch ended.
    """

    def __init__(self, attempts: Attempts, acks: Acks) -> None:
        self.attempts = attempts
        self.tier = attempts.tier
        self.timing = attempts.timing
        self.counters = attempts.counters
        self.listener: Listener | None = None
        self._acks = acks
        self._fetches: dict[str, Fetch] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is fetched and no READ is unsettled."""
        return not self._fetches and not self.attempts

    # ------------------------------------------------------------- begun and given up
    def begin(self, wanted: Wanted, now: float) -> bool:
        """A fetch with its first attempt; False after counting why there is none."""
        if not self.attempts.may_begin(wanted.source, now):
            return False
        if self.tier.get(wanted.mm_hash) is not None:
            return False
        entry = self.tier.alloc(wanted.mm_hash, wanted.nbytes, wanted.shape)
        if entry is None:
            self.counters["no_room"] += 1
            return False
        fetch = Fetch(wanted, entry)
        self._fetches[wanted.mm_hash] = fetch
        self._attempt(fetch, now)
        return True

    def unwanted(self, wanted: Wanted, now: float) -> None:
        """Nobody waits: what is not posted yet is not asked for any more."""
        fetch = self._fetches.get(wanted.mm_hash)
        if fetch is None:
            return
        if fetch.attempt is None:
            self._cancel(fetch)
        else:
            self._apply(self.attempts.abort(fetch.attempt, now), now)

    # ------------------------------------------------------------------ time
    def tick(self, now: float) -> None:
        """Let every timer run out that has."""
        self._apply_all(self.attempts.tick(now), now)
        for fetch in list(self._fetches.values()):
            if fetch.attempt is None and now >= min(fetch.next_at, fetch.wanted.deadline):
                if now < fetch.wanted.deadline:
                    self._attempt(fetch, now)
                else:
                    self._cancel(fetch)
        self.attempts.peers.close_idle(now)
        self.attempts.peers.rests.forget(now)

    def next_deadline(self) -> float | None:
        """When ``tick`` has something to do next; None when nothing is pending."""
        due = [self.attempts.next_deadline(), self.attempts.peers.next_deadline()]
        due += [
            min(f.next_at, f.wanted.deadline) for f in self._fetches.values() if f.attempt is None
        ]
        return min((moment for moment in due if moment is not None), default=None)

    def shutdown(self, now: float) -> None:
        """Fail what has not been posted, quarantine what has, close every peer.

        Waiting requests fall back and no block under a READ is reused.
        """
        for fetch in list(self._fetches.values()):
            if fetch.attempt is None:
                self._cancel(fetch)
        self._apply_all(self.attempts.shutdown(now), now)

    # --------------------------------------------------------------- network
    def on_ack(self, peer_key: PeerKey, ack: XferAck, now: float) -> int | None:
        """An XferAck came from ``peer_key`` (EC-5.2, EC-5.3).

        Returns:
            The attempt on which it acted; None if it was dropped (EC-5.6).
        """
        last = self._apply_all(self._acks.on_ack(peer_key, ack, now), now)
        return None if last is None else last.attempt_id

    def peer_lost(self, peer_key: PeerKey, now: float) -> None:
        """The control plane lost the peer: its attempts fail or are quarantined."""
        self._apply_all(self.attempts.peer_lost(peer_key, now), now)

    def post_read(self, attempt_id: int, now: float) -> bool:
        """Whether to post a READ, asked at the moment of posting.

        Returns:
            True: the blocks are ``saving``; post the READ. False: do not post; the
            attempt is over, or the fence has closed and it will be retried.
        """
        outcome = self.attempts.post_read(attempt_id, now)
        posted = outcome is not None and outcome.state == "reading"
        self._apply(outcome, now)
        return posted

    def post_failed(self, attempt_id: int, now: float) -> None:
        """The READ could not even be prepared."""
        self._apply(self.attempts.post_failed(attempt_id, now), now)

    def read_done(self, attempt_id: int, now: float) -> None:
        """The data plane reports the READ complete."""
        self._apply(self.attempts.read_done(attempt_id, now), now)

    def read_corrupt(self, attempt_id: int, now: float) -> None:
        """The READ is complete, and its bytes are not those of the ack's checksum (EC-8.11).

        Args:
            attempt_id: The attempt.
            now: When it was seen complete; comparing came later.
        """
        self._apply(self.attempts.read_corrupt(attempt_id, now), now)

    def read_error(self, attempt_id: int, now: float) -> None:
        """The data plane reports an error for a posted READ (EC-6.1)."""
        self._apply(self.attempts.read_error(attempt_id, now), now)

    # ------------------------------------------------------------------- outcomes
    def _apply_all(self, outcomes: Iterable[Attempt], now: float) -> Attempt | None:
        """Apply outcomes as they come; the last one."""
        outcome = None
        for outcome in outcomes:
            self._apply(outcome, now)
        return outcome

    def _apply(self, outcome: Attempt | None, now: float) -> None:
        """What an attempt's outcome means for the fetch that it was made for."""
        if outcome is None or outcome.state in ("granted", "reading"):
            return
        fetch = self._fetches[outcome.entry.mm_hash]
        if outcome.state == "quarantined":
            self._fail(fetch)
        else:
            self._settle(fetch, outcome, now)

    def _settle(self, fetch: Fetch, ended: Attempt, now: float) -> None:
        """The encoding is there, or another attempt follows, or the fetch fails."""
        timing = self.timing
        done = ended.state == "done"
        if done and self.listener is not None:
            # Before anything else can want its room.
            self.listener.landed(fetch.wanted, fetch.entry, now)
        # However the attempt ended: a producer whose grants have no lease left to
        # use must not make us ask without a pause.
        soonest = max(ended.again_at, now, ended.sent_at + timing.retry_interval_s)
        latest = fetch.wanted.deadline - timing.ack_timeout_s
        again = bool(fetch.wanted.waiters) and soonest <= latest and ended.state == "retryable"
        fetch.attempt = None
        if self.attempts.settle(ended, again, now):
            more = timing.retry_pause(fetch.retries, ended.session_id) - timing.retry_interval_s
            fetch.next_at = min(soonest + more, latest)
            fetch.retries += 1
        elif done:
            del self._fetches[fetch.wanted.mm_hash]
        else:
            self._fail(fetch)

    # ------------------------------------------------------------------ attempts, ends
    def _attempt(self, fetch: Fetch, now: float) -> None:
        """Make the next attempt."""
        fetch.attempt = self.attempts.begin(fetch.entry, fetch.wanted.source, now)
        if fetch.attempt is None:
            self._cancel(fetch)

    def _cancel(self, fetch: Fetch) -> None:
        """Action ``Cancel``: a fetch fails between two attempts, and its blocks are free."""
        self.tier.cancel(fetch.entry)
        self._fail(fetch)

    def _fail(self, fetch: Fetch) -> None:
        """A fetch is over without its encoding."""
        del self._fetches[fetch.wanted.mm_hash]
        if self.listener is not None:
            self.listener.failed(fetch.wanted)
