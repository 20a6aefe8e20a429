# SPDX-License-Identifier: Apache-2.0
"""Consumers with one fault each: answers, retries, timeouts, peers."""

from __future__ import annotations

from typing import Any

import msgspec

from ec_protocol.p2p.acks import Acks
from ec_protocol.p2p.attempt import Attempt
from ec_protocol.p2p.attempts import Attempts
from ec_protocol.p2p.commands import PeerKey
from ec_protocol.p2p.fetches import Fetch, Fetches
from ec_protocol.p2p.wire import XferAck, XferStatus
from ec_protocol.tier.encodings import EncodingTier
from ec_verify.adapters.ours.faulty.registry import fault, with_timers


class _Answers(Acks):
    """Takes some statuses for others."""

    def taken_for(self, status: int) -> int:
        """What ``status`` is taken for."""
        return status

    def _apply(self, attempt: Attempt, ack: XferAck, now: float) -> None:
        status = self.taken_for(ack.status)
        super()._apply(attempt, msgspec.structs.replace(ack, status=status), now)


@fault("not-ready-is-final", "EC-8.5", part="acks")
class NotReadyIsFinal(_Answers):
    """NACK_NOT_READY is not retried."""

    def taken_for(self, status: int) -> int:
        return XferStatus.NACK_INTERNAL if status == XferStatus.NACK_NOT_READY else status


@fault("everything-is-retried", "EC-8.5", part="acks")
class EverythingIsRetried(_Answers):
    """Every refusal is asked again until the budget is spent."""

    def taken_for(self, status: int) -> int:
        return status if status == XferStatus.OK else XferStatus.NACK_NOT_READY


@fault("unknown-status-is-retried", "EC-8.5", part="acks")
class UnknownStatusIsRetried(_Answers):
    """A status that nobody has defined counts as NACK_NOT_READY."""

    def taken_for(self, status: int) -> int:
        known = status in {int(one) for one in XferStatus}
        return status if known else XferStatus.NACK_NOT_READY


@fault("no-older-version", "EC-8.2", part="acks")
class NoOlderVersion(_Answers):
    """After NACK_VERSION the request is not made in version 1."""

    def taken_for(self, status: int) -> int:
        return XferStatus.NACK_INTERNAL if status == XferStatus.NACK_VERSION else status


@fault("reads-what-it-is-given", "EC-8.3", "F9", part="acks")
class ReadsWhatItIsGiven(Acks):
    """An ack for fewer bytes than were announced is good enough."""

    def _apply(self, attempt: Attempt, ack: XferAck, now: float) -> None:
        entry, size = attempt.entry, self._attempts.tier.block_size_bytes
        nbytes = entry.nbytes
        granted = sum(count for _, count in ack.extents) * size
        if 0 < granted < nbytes:
            entry.nbytes = granted
            ack = msgspec.structs.replace(ack, nbytes=granted)
        try:
            super()._apply(attempt, ack, now)
        finally:
            entry.nbytes = nbytes


@fault("grants-are-not-given-back", "EC-5.11", part="attempts")
class GrantsAreNotGivenBack(Attempts):
    """The grant of an attempt that posts nothing is left to its lease."""

    def _release_grant(self, attempt: Attempt) -> None:
        pass


@fault("late-grants-are-not-given-back", "EC-5.6", part="attempts")
class LateGrantsAreNotGivenBack(Attempts):
    """An OK ack for an attempt that is over is dropped, and its grant left to its lease."""

    def release(self, peer: PeerKey, ack: XferAck) -> None:
        pass


@fault("retry-gives-up-its-blocks", "EC-5.8", part="fetches")
class RetryGivesUpItsBlocks(Fetches):
    """Between two attempts the blocks are free for anybody."""

    def _settle(self, fetch: Fetch, ended: Attempt, now: float) -> None:
        super()._settle(fetch, ended, now)
        if fetch.mm_hash in self._fetches and fetch.attempt is None:
            self.tier.cancel(fetch.entry)

    def _attempt(self, fetch: Fetch, now: float) -> None:
        if fetch.entry.state == "freed":
            entry = self.tier.alloc(fetch.mm_hash, fetch.nbytes, fetch.entry.shape)
            if entry is None:
                self._fail(fetch)
                return
            fetch.entry = entry
        super()._attempt(fetch, now)

    def _cancel(self, fetch: Fetch) -> None:
        if fetch.entry.state == "freed":
            self._fail(fetch)
        else:
            super()._cancel(fetch)


class _Timers(Attempts):
    """A consumer with timers of its own."""

    timers: dict[str, float]

    def __init__(self, tier: EncodingTier, **args: Any) -> None:
        args["timing"] = with_timers(args["timing"], **self.timers)
        super().__init__(tier, **args)


@fault("no-pause-between-attempts", "EC-5.8", part="attempts")
class NoPauseBetweenAttempts(_Timers):
    """A retryable answer is followed by the next request at once."""

    timers = {"retry_interval_s": 0.0}  # noqa: RUF012


@fault("pauses-do-not-grow", "EC-5.8", part="attempts")
class PausesDoNotGrow(_Timers):
    """However often a producer has said NACK_NOT_READY, it is asked again as soon."""

    timers = {"retry_max_interval_s": 0.0}  # noqa: RUF012


@fault("pauses-grow-without-bound", "EC-5.8", part="attempts")
class PausesGrowWithoutBound(_Timers):
    """The pause between two attempts doubles for ever."""

    timers = {"retry_max_interval_s": 1e6}  # noqa: RUF012


@fault("no-budget", "EC-5.9", part="attempts")
class NoBudget(_Timers):
    """A request is deferred for as long as its producer answers NACK_NOT_READY."""

    timers = {"fetch_budget_s": 1e12}  # noqa: RUF012


@fault("no-ack-timeout", "EC-5.9", part="attempts")
class NoAckTimeout(_Timers):
    """A request that nobody answers waits for the whole budget."""

    timers = {"ack_timeout_s": 1e6}  # noqa: RUF012


@fault("no-read-timeout", "EC-5.9", part="attempts")
class NoReadTimeout(_Timers):
    """A READ that does not end keeps its request waiting for the whole budget."""

    timers = {"read_timeout_s": 1e6}  # noqa: RUF012


@fault("lost-peer-goes-unnoticed", "EC-9.1", part="fetches")
class LostPeerGoesUnnoticed(Fetches):
    """What the control plane says about a lost peer is ignored."""

    def peer_lost(self, peer_key: PeerKey, now: float) -> None:
        pass


@fault("no-rest-after-a-loss", "EC-9.4", part="attempts")
class NoRestAfterALoss(Attempts):
    """A lost address is tried again by every request at once."""

    def __init__(self, tier: EncodingTier, **args: Any) -> None:
        super().__init__(tier, **args)
        self.peers.cooldown_s = 0.0
