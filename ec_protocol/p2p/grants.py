# SPDX-License-Identifier: Apache-2.0
"""The producer: answers XferReqs with pins that last one lease.

Only servable entries are granted (ServeReadyOnly). A grant belongs to one attempt
and is released by that attempt's own completion notice or by the end of its
lease; nothing else releases it (AttemptIdentity). One peer can pin a bounded
share of the region only, so a peer that asks for everything and completes
nothing cannot pin the tier solid. An encoding that is larger than a bound can be
read nevertheless, one grant at a time (EC-5.10).

One thread at a time. Never raises because of what a peer sent.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from ec_protocol.errors import RemoteProtocolError
from ec_protocol.names import is_strangers
from ec_protocol.p2p import wire
from ec_protocol.p2p.shelf import Found, Shelf
from ec_protocol.p2p.wire import XferAck, XferReq, XferStatus
from ec_protocol.tables.dispatch import GRANT, Dispatcher
from ec_protocol.tables.timing import Timing
from ec_protocol.terms import Terms

_NAMED: Final = GRANT.mask("names_this_attempt")
#: Grants that may be outstanding, however small what they pin: each is state, and is looked
#: at whenever a lease may have run out.
MAX_GRANTS: Final = 4096
#: For how many leases a key without an attempt id stays ambiguous after a grant
#: on it ended without a notice: the notice may still be on its way.
_AMBIGUOUS_LEASES: Final = 10
_NO_TERMS: Final = Terms()


@dataclass(slots=True, eq=False)
class Grant:
    """One pin for one attempt.

    Attributes:
        grant_id: Unique in the table for ever.
        key: The completion notice that ends it.
        identity: Who the peer is, as its connection proves (EC-15.1).
        entry: What is kept for it.
        expires_at: End of the lease.
        attempt_id: The attempt, or None for a peer that does not name attempts.
        state: State of the grant lifecycle.
    """

    lifecycle: ClassVar[Dispatcher] = GRANT

    grant_id: int
    key: bytes
    identity: bytes
    entry: Found
    expires_at: float
    attempt_id: int | None
    state: str = GRANT.initial

    @property
    def label(self) -> str:
        """Its name in traces."""
        return f"grant:{self.grant_id}"

    def variables(self) -> dict[str, Any]:
        """The grant's spec variables, for traces."""
        return {
            "state": self.state,
            "entry": self.entry.entry_id,
            "attempt": self.attempt_id,
            "notice": self.key.decode("utf-8", "backslashreplace"),
            "identity": self.identity.hex(),
            "expires_at": self.expires_at,
            "extents": self.entry.extents,
        }


class ProducerGrants:
    """Every outstanding grant of one region.

    Args:
        shelf: Where the entries are.
        timing: ``lease_s`` is used.
        compat_hash: ``wire.compatibility_hash`` of this process.
        incarnation: This process's own number; another one after every restart.
        base_addr: Address of block 0, as registered with the data plane.
        agent_metadata: The data plane agent's metadata; set once the agent
            exists. Requests before that are answered NACK_NOT_READY.
        peer_quota: Share of the region one peer may pin, 0 to 1; its first grant
            is within it, however large.
        grant_quota: Share of the region that all grants together may pin, 0 to 1. What
            is larger is granted while there is no other grant, and not again until a
            lease after its end.
        terms: What is said and demanded beyond ``compat_hash``.
    """

    def __init__(
        self,
        shelf: Shelf,
        *,
        timing: Timing,
        compat_hash: str,
        incarnation: str,
        base_addr: int,
        agent_metadata: bytes = b"",
        peer_quota: float = 0.5,
        grant_quota: float = 0.9,
        terms: Terms = _NO_TERMS,
    ) -> None:
        self.shelf = shelf
        self.terms = terms
        self._recorder = shelf.recorder
        self.timing = timing
        self.compat_hash = compat_hash
        self.incarnation = incarnation
        self.base_addr = base_addr
        self.agent_metadata = agent_metadata
        self.quota_blocks = int(shelf.num_blocks * peer_quota)
        self.quota_grants = max(1, int(MAX_GRANTS * peer_quota))
        self.grant_quota_blocks = int(shelf.num_blocks * grant_quota)
        self.granted_blocks = 0
        self._large_again_at = float("-inf")
        self._granted: Counter[int] = Counter()  # by entry id
        self._kept_since: dict[int, int] = {}  # likewise, and so is the next
        self._checksums: dict[int, str] = {}
        self.counters: Counter[str] = Counter()
        self._grants: dict[int, Grant] = {}
        self._by_key: dict[bytes, list[Grant]] = {}
        self._ambiguous: dict[bytes, float] = {}
        self._peer_blocks: Counter[bytes] = Counter()
        self._peer_grants: Counter[bytes] = Counter()
        self._ids = itertools.count(1)
        self._old_descriptor = b""
        self._recorder.facts(
            "grants",
            incarnation=incarnation,
            lease_s=timing.lease_s,
            quota_blocks=self.quota_blocks,
            grant_quota_blocks=self.grant_quota_blocks,
        )

    @property
    def open_grants(self) -> int:
        """Outstanding grants: while there are any the data plane must be progressed."""
        return len(self._grants)

    # ------------------------------------------------------------------ requests
    def read(self, frames: Sequence[bytes]) -> XferReq:
        """See ``Node.read_request``."""
        request = wire.decode_request(frames)
        if request.attempt_id is None:
            self.describe_region()
        return request

    def on_request(self, identity: bytes, req: XferReq, now: float) -> XferAck:
        """Answer one request (EC-8.4, EC-5.4).

        Args:
            identity: Who the peer is, as its connection proves; not what it calls itself.
            req: The decoded request.
            now: Seconds.

        Returns:
            The ack to send.
        """
        key = wire.notice(req.session_id, req.mm_hash)
        known = None
        if req.attempt_id is not None:
            # Another attempt under the same session, or one without an id, is not this one.
            same_key = self._by_key.get(key, ())
            known = next((g for g in same_key if g.attempt_id == req.attempt_id), None)
        judged: Found | XferStatus
        if known is not None and known.identity != identity:
            # Another peer's attempt: what it is told would be of somebody else's lease.
            self.counters["foreign_sessions"] += 1
            judged = XferStatus.NACK_INTERNAL
        else:
            judged = self._judge(identity, req, now, again=known is not None)
        if not isinstance(judged, XferStatus):
            if known is not None:
                # The same request again: same pin, and only what is left of its lease.
                self.counters["duplicate_requests"] += 1
                return self._ok(req, known.entry, max(0.0, known.expires_at - now))
            if self._grant(identity, key, req, judged, now):
                self.counters["grants"] += 1
                return self._ok(req, judged, self.timing.lease_s)
            self.counters["gone_meanwhile"] += 1
            judged = XferStatus.NACK_NOT_READY
        self.counters[judged.name.lower()] += 1
        return XferAck(
            mm_hash=req.mm_hash,
            status=int(judged),
            session_id=req.session_id,
            attempt_id=req.attempt_id,
            incarnation=self.incarnation if req.attempt_id is not None else "",
        )

    def _judge(
        self, identity: bytes, req: XferReq, now: float, *, again: bool
    ) -> Found | XferStatus:
        """What the request may have: the entry, or a refusal."""
        if req.connector_version not in (0, *wire.VERSIONS):
            return XferStatus.NACK_VERSION
        if req.compatibility_hash != self.compat_hash:
            return XferStatus.NACK_INCOMPAT
        encoder = self.terms.judge(req.encoder_hash)
        if encoder == "differs":
            self.counters["encoders_differ"] += 1
            return XferStatus.NACK_INCOMPAT
        if encoder == "unproven":
            self.counters["encoders_unproven"] += 1
        if not req.session_id or ":" in req.session_id:
            # Without a session the notice could not name the attempt; with a colon
            # two different attempts could have the same notice.
            self.counters["bad_session_ids"] += 1
            return XferStatus.NACK_INTERNAL
        # What a stranger has sent us is nobody else's (EC-15.8).
        entry = None if is_strangers(req.mm_hash) else self.shelf.find(req.mm_hash)
        if entry is None:
            return XferStatus.NACK_MISSING
        if not entry.servable or not self.agent_metadata:
            return XferStatus.NACK_NOT_READY
        if req.attempt_id is not None and len(entry.extents) > wire.MAX_EXTENTS:
            self.counters["too_many_extents"] += 1
            return XferStatus.NACK_INTERNAL
        if again:
            # Answering an open grant once more pins nothing more.
            return entry
        held = self._peer_blocks[identity]
        if held and held + entry.num_blocks > self.quota_blocks:
            self.counters["over_quota"] += 1
            return XferStatus.NACK_NOT_READY
        if self._peer_grants[identity] >= self.quota_grants:
            self.counters["too_many_grants"] += 1
            return XferStatus.NACK_NOT_READY
        # One machine may have many addresses, so all of them together have a bound too.
        if not self._all_may_pin(entry, now):
            self.counters["over_grant_quota"] += 1
            return XferStatus.NACK_NOT_READY
        if len(self._grants) >= MAX_GRANTS:
            self.counters["too_many_grants"] += 1
            return XferStatus.NACK_NOT_READY
        return entry

    def _all_may_pin(self, entry: Found, now: float) -> bool:
        """Whether the bound of all grants together allows one more on this entry."""
        if entry.num_blocks > self.grant_quota_blocks:
            # Readers that took turns would otherwise pin the region for ever.
            return not self._grants and now >= self._large_again_at
        more = 0 if entry.entry_id in self._granted else entry.num_blocks
        kept = self.granted_blocks + self.shelf.inherited_blocks(now)
        return kept + more <= self.grant_quota_blocks

    def _grant(self, identity: bytes, key: bytes, req: XferReq, entry: Found, now: float) -> bool:
        """Action ``Grant``; False when the entry is not to be had any more."""
        grant = Grant(
            next(self._ids), key, identity, entry, now + self.timing.lease_s, req.attempt_id
        )
        # Kept before anybody is told, whatever becomes of this process (EC-14.2).
        if not self.shelf.keep(entry, grant.grant_id, grant.expires_at):
            return False
        self._grants[grant.grant_id] = grant
        same_key = self._by_key.setdefault(key, [])
        same_key.append(grant)
        if len(same_key) > 1:
            # For as long as one of them is open; the end of the last one prolongs it.
            self._ambiguous[key] = now
        self._peer_blocks[identity] += entry.num_blocks
        self._peer_grants[identity] += 1
        if entry.entry_id not in self._granted:
            self.granted_blocks += entry.num_blocks
            self._kept_since[entry.entry_id] = grant.grant_id
        self._granted[entry.entry_id] += 1
        self._record(grant, "Grant", now)
        return True

    def _ok(self, req: XferReq, entry: Found, lease_s: float) -> XferAck:
        if req.attempt_id is not None:
            return XferAck(
                mm_hash=req.mm_hash,
                status=int(XferStatus.OK),
                session_id=req.session_id,
                agent_metadata=self.agent_metadata,
                attempt_id=req.attempt_id,
                lease_s=lease_s,
                incarnation=self.incarnation,
                base_addr=self.base_addr,
                block_size=self.shelf.block_size_bytes,
                extents=list(entry.extents),
                nbytes=entry.nbytes,
                encoder_hash=self.terms.encoder_hash,
                checksum=self._checksum(req, entry),
            )
        self.describe_region()
        return XferAck(
            mm_hash=req.mm_hash,
            status=int(XferStatus.OK),
            session_id=req.session_id,
            src_block_indices=[
                block for start, count in entry.extents for block in range(start, start + count)
            ],
            agent_metadata=self.agent_metadata,
            mem_descriptor=self._old_descriptor,
        )

    def _checksum(self, req: XferReq, entry: Found) -> str:
        wanted = bool(req.checksum) and req.checksum == self.terms.checksum
        return self._checksums.get(entry.entry_id, "") if wanted else ""

    def describe_region(self) -> None:
        """Make the description of every block that peers of the old form need.

        It takes seconds for a large region: once, before the first request of such a
        peer is answered.
        """
        if not self._old_descriptor:
            self._old_descriptor = wire.mem_descriptor(
                self.base_addr, self.shelf.num_blocks, self.shelf.block_size_bytes
            )

    # ------------------------------------------------------------------- checksums
    def unhashed(self, req: XferReq, ack: XferAck) -> Found | None:
        """The entry whose checksum an OK ack has to wait for; None if it can be sent."""
        if ack.checksum or ack.attempt_id is None or ack.status != XferStatus.OK:
            return None
        if not self.terms.checksum or req.checksum != self.terms.checksum:
            return None
        same_key = self._by_key.get(wire.notice(req.session_id, req.mm_hash), ())
        return next((g.entry for g in same_key if g.attempt_id == req.attempt_id), None)

    def kept_since(self, found: Found) -> int | None:
        """Number of the grant since which grants have kept the entry without a gap.

        While it stays the same the entry's bytes do too. None: no grant keeps it.
        """
        return self._kept_since.get(found.entry_id)

    def hashed(self, found: Found, since: int, checksum: str) -> bool:
        """The checksum of an entry is known, for as long as grants keep it (EC-8.11).

        Args:
            found: As ``unhashed`` returned it.
            since: ``kept_since`` before its first byte was looked at.
            checksum: As an ack gives it.

        Returns:
            False if nothing has kept the entry all the time: then it is of nothing.
        """
        if self.kept_since(found) != since:
            return False
        self._checksums[found.entry_id] = checksum
        return True

    # -------------------------------------------------------------- ends of grants
    def on_notice(self, notice: bytes, now: float) -> None:
        """A completion notice came over the data plane (EC-5.5).

        A notice that names no outstanding grant, or could mean more than one, is
        counted and changes nothing: the lease ends the grant.
        """
        grants = self._by_key.get(notice)
        if not grants:
            self.counters["stale_notices"] += 1
            return
        grant = grants[0]
        named = notice not in self._ambiguous
        try:
            self._end(grant, "complete", _NAMED if named else 0, now)
        except RemoteProtocolError:
            self.counters["ambiguous_notices"] += 1
            return
        self.counters["completed"] += 1
        self._record(grant, "Complete", now)
        self.shelf.show()

    def tick(self, now: float) -> None:
        """End the leases that are over."""
        for grant in [g for g in self._grants.values() if g.expires_at <= now]:
            self._expire(grant, now, "lease")
        for key in [k for k, until in self._ambiguous.items() if until <= now]:
            if key not in self._by_key:
                del self._ambiguous[key]

    def next_deadline(self) -> float | None:
        """When ``tick`` has something to do next."""
        return min((grant.expires_at for grant in self._grants.values()), default=None)

    def shutdown(self, now: float) -> None:
        """End every grant: the region is about to go away."""
        for grant in list(self._grants.values()):
            self._expire(grant, now, "shutdown")

    def _expire(self, grant: Grant, now: float, why: str) -> None:
        self._end(grant, "expire", 0, now)
        self.counters["expired"] += 1
        if grant.attempt_id is None:
            self._ambiguous[grant.key] = now + _AMBIGUOUS_LEASES * self.timing.lease_s
        self._record(grant, "Expire", now, why=why)
        self.shelf.show()

    def _end(self, grant: Grant, event: str, guards: int, now: float) -> None:
        self._recorder.move(grant, event, guards)
        del self._grants[grant.grant_id]
        same_key = self._by_key[grant.key]
        same_key.remove(grant)
        if not same_key:
            del self._by_key[grant.key]
        self._granted[grant.entry.entry_id] -= 1
        if not self._granted[grant.entry.entry_id]:
            del self._granted[grant.entry.entry_id]
            del self._kept_since[grant.entry.entry_id]
            self._checksums.pop(grant.entry.entry_id, None)
            self.granted_blocks -= grant.entry.num_blocks
        self._peer_blocks[grant.identity] -= grant.entry.num_blocks
        self._peer_grants[grant.identity] -= 1
        if not self._peer_grants[grant.identity]:
            del self._peer_blocks[grant.identity], self._peer_grants[grant.identity]
        if grant.entry.num_blocks > self.grant_quota_blocks:
            self._large_again_at = now + self.timing.lease_s
        self.shelf.let_go(grant.entry, grant.grant_id, now)

    def _record(self, grant: Grant, action: str, now: float, **args: Any) -> None:
        self._recorder.action(
            action,
            grant,
            grant=grant.grant_id,
            mm_hash=grant.entry.mm_hash,
            attempt=grant.attempt_id,
            now=now,
            **args,
        )
