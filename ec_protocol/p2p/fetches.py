# SPDX-License-Identifier: Apache-2.0
"""The reading side: encodings that requests wait for, and what their attempts bring.

The engine thread asks with ``fetch`` and goes on with its step; the pump feeds acks,
data-plane outcomes and the time in, takes commands out of ``attempts``, and carries
them out. A fetch is made of attempts, one at a time and all for the same blocks:
``attempts`` says how each one ended, and here that is applied. The encoding is held
for those who wait, or they go on waiting for another attempt, or they fall back, which
means that each request encodes for itself.

Both threads call under the tier's lock. Nothing that a peer sends raises.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from ec_protocol.p2p.acks import Acks
from ec_protocol.p2p.attempt import Attempt
from ec_protocol.p2p.attempts import Attempts
from ec_protocol.p2p.commands import PeerKey
from ec_protocol.p2p.wire import XferAck
from ec_protocol.tier.deferral import Deferrals
from ec_protocol.tier.entry import Entry
from ec_protocol.tier.holds import HoldTable

FetchState = Literal["pending", "failed"]


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
    waiters: set[str]
    attempt: Attempt | None = None
    next_at: float = 0.0
    retries: int = 0


class Fetches:
    """Every fetch of one consumer process, and who waits for it.

    Args:
        attempts: Makes and moves the attempts.
        acks: Moves them by what producers answer.
        holds: Keeps a landed encoding for the requests that wait for it.

    Attributes:
        attempts: See there. Commands are taken out of it, and proofs go into it.
        counters: What became of fetches and attempts, by name.
        deferrals: Since when each request waits.
    """

    def __init__(self, attempts: Attempts, acks: Acks, holds: HoldTable) -> None:
        self.attempts = attempts
        self.tier = attempts.tier
        self.timing = attempts.timing
        self.counters = attempts.counters
        self.holds = holds
        self.deferrals = Deferrals()
        self._acks = acks
        self._fetches: dict[str, Fetch] = {}
        self._failed: dict[str, set[str]] = {}

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
        elif fetch is None:
            if self._begin(mm_hash, peer, nbytes, shape, waiter, now):
                return "pending"
        elif fetch.nbytes != nbytes:
            # One name, two sizes: whoever is wrong, this request encodes for itself.
            self.counters["contradicting_sizes"] += 1
            self._fall_back(mm_hash, [waiter])
            return "failed"
        elif now < fetch.deadline:
            fetch.waiters.add(waiter)
            return "pending"
        self._fall_back(mm_hash, [waiter])
        self._withdraw(mm_hash, waiter, now)
        return "failed"

    def within_budget(self, waiter: str, mm_hash: str, now: float) -> bool:
        """Whether the request may be deferred on for this encoding (EC-5.9)."""
        return self.deferrals.within(waiter, mm_hash, now, self.timing.fetch_budget_s)

    def fetching(self, mm_hash: str) -> bool:
        """Whether a fetch of ``mm_hash`` is under way."""
        return mm_hash in self._fetches

    @property
    def idle(self) -> bool:
        """Whether no request waits and no READ is unsettled."""
        return not self._fetches and not self.attempts

    def consumed(self, waiter: str, mm_hash: str) -> None:
        """The waiter's load of a fetched encoding is planned: its hold ends."""
        self.holds.release(("fetched", mm_hash, waiter))
        self.deferrals.served(waiter, mm_hash)

    def leave(self, waiter: str, now: float) -> None:
        """The request finished or was aborted: it waits for nothing any more."""
        self._failed.pop(waiter, None)
        self.deferrals.forget(waiter)
        for mm_hash in list(self._fetches):
            self._withdraw(mm_hash, waiter, now)
        self.holds.release_where(lambda key: key[0] == "fetched" and key[2] == waiter)

    # ------------------------------------------------------------------ pump: time
    def tick(self, now: float) -> None:
        """Let every timer run out that has."""
        self._apply_all(self.attempts.tick(now), now)
        for fetch in list(self._fetches.values()):
            if fetch.attempt is None and now >= min(fetch.next_at, fetch.deadline):
                if now < fetch.deadline:
                    self._attempt(fetch, now)
                else:
                    self._cancel(fetch)
        self.attempts.peers.close_idle(now)
        self.attempts.peers.forget_losses(now)

    def next_deadline(self) -> float | None:
        """When ``tick`` has something to do next; None when nothing is pending."""
        due = [self.attempts.next_deadline(), self.attempts.peers.next_deadline()]
        due += [min(f.next_at, f.deadline) for f in self._fetches.values() if f.attempt is None]
        return min((moment for moment in due if moment is not None), default=None)

    def shutdown(self, now: float) -> None:
        """Fail what has not been posted, quarantine what has, close every peer.

        Also the answer to a pump that can no longer run: waiting requests fall
        back and no block under a READ is reused.
        """
        for fetch in list(self._fetches.values()):
            if fetch.attempt is None:
                self._cancel(fetch)
        self._apply_all(self.attempts.shutdown(now), now)

    # --------------------------------------------------------------- pump: network
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
        """What an attempt's outcome means for those who wait for its encoding."""
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
        if done:
            for waiter in fetch.waiters:
                key = ("fetched", fetch.mm_hash, waiter)
                self.holds.hold(key, fetch.entry, now + timing.fetched_hold_s)
        # However the attempt ended: a producer whose grants have no lease left to
        # use must not make us ask without a pause.
        soonest = max(ended.again_at, now, ended.sent_at + timing.retry_interval_s)
        latest = fetch.deadline - timing.ack_timeout_s
        again = bool(fetch.waiters) and soonest <= latest and ended.state == "retryable"
        fetch.attempt = None
        if self.attempts.settle(ended, again, now):
            more = timing.retry_pause(fetch.retries, ended.session_id) - timing.retry_interval_s
            fetch.next_at = min(soonest + more, latest)
            fetch.retries += 1
        elif done:
            del self._fetches[fetch.mm_hash]
        else:
            self._fail(fetch)

    # ----------------------------------------------------------- begins and ends
    def _begin(
        self,
        mm_hash: str,
        peer: PeerKey,
        nbytes: int,
        shape: tuple[int, ...] | None,
        waiter: str,
        now: float,
    ) -> bool:
        """A fetch with its first attempt; False after counting why there is none."""
        if not self.attempts.may_begin(peer, now) or self.tier.get(mm_hash) is not None:
            return False
        entry = self.tier.alloc(mm_hash, nbytes, shape)
        if entry is None:
            self.counters["no_room"] += 1
            return False
        fetch = Fetch(mm_hash, peer, nbytes, entry, now + self.timing.fetch_budget_s, {waiter})
        self._fetches[mm_hash] = fetch
        self.counters["fetches"] += 1
        self._attempt(fetch, now)
        return True

    def _attempt(self, fetch: Fetch, now: float) -> None:
        """Make the next attempt."""
        fetch.attempt = self.attempts.begin(fetch.entry, fetch.peer, now)
        if fetch.attempt is None:
            self._cancel(fetch)

    def _cancel(self, fetch: Fetch) -> None:
        """Action ``Cancel``: a fetch fails between two attempts, and its blocks are free."""
        self.tier.cancel(fetch.entry)
        self._fail(fetch)

    def _fail(self, fetch: Fetch) -> None:
        """A fetch is over without its encoding: all who wait for it fall back."""
        del self._fetches[fetch.mm_hash]
        self._fall_back(fetch.mm_hash, fetch.waiters)

    def _fall_back(self, mm_hash: str, waiters: Collection[str]) -> None:
        """These requests encode for themselves, and are told so from now on."""
        self.counters["fallbacks"] += len(waiters)
        for waiter in waiters:
            self._failed.setdefault(waiter, set()).add(mm_hash)

    def _withdraw(self, mm_hash: str, waiter: str, now: float) -> None:
        """A request waits no more; what the last one waited for is not asked for any more."""
        fetch = self._fetches.get(mm_hash)
        if fetch is None or waiter not in fetch.waiters:
            return
        fetch.waiters.remove(waiter)
        if fetch.waiters:
            return
        if fetch.attempt is None:
            self._cancel(fetch)
        else:
            self._apply(self.attempts.abort(fetch.attempt, now), now)
