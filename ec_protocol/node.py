# SPDX-License-Identifier: Apache-2.0
"""``Node``: the whole protocol state of one process, and nothing but state.

A shell around it owns region, sockets, data plane and clock. It tells the node what
happened and when, and does what the node answers::

    node = Node(blocks=256, block_bytes=16384, peering=Peering(…))

    # the engine, in every step
    node.want(item, announced, request_id, now)   # wait for the encoding?
    node.promise(item.mm_hash, [item])            # will a load in this step succeed?
    node.plan(item, request_id)                   # then it is loaded, else saved
    for copy in node.build_step(now): …           # what the workers copy
    node.report(copy.copy_id, rank, landed=True)  # what they say
    node.announce(items, address, now)            # what others may read
    node.leave(request_id, now)

    # the network
    ack = node.request(identity, node.read_request(frames), now)
    node.answer(peer, node.read_answer(frames), now)
    for command in node.commands(): …             # OpenPeer, SendReq, PrepareRead, …
    node.may_post(attempt, now); node.read_done(attempt, now)
    node.tick(now); node.next_deadline()          # timers

Three parts know each other through narrow calls only: the *engine's side* (``tier``,
``copies``, ``holds``, the step, budgets), the *serving side* (``grants``: what others
may read) and the *reading side* (``reads``: what is read from others). Without
``peering`` there is the first alone, and nothing of the other two is imported
(EC-12.2).

Threads: none of its own, and no lock. Every method is called under one lock of the
shell, for one call at a time; only ``read_request`` and ``read_answer``, which may take
long, need none. Times are seconds of one monotonic clock (EC-7.1). What a peer or a
client sends never raises, but ``RemoteProtocolError`` of the two ``read_`` methods; a
``LocalProtocolError`` is a mistake of the shell, and has changed nothing (EC-1.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ec_protocol.announcements import Allowed, Announcer, read_source
from ec_protocol.errors import ConfigError, LocalProtocolError
from ec_protocol.items import Item
from ec_protocol.parts import Parts, Peering
from ec_protocol.tables.timing import Timing
from ec_protocol.tier.copies import Copy
from ec_protocol.tier.deferral import Deferrals
from ec_protocol.tier.entry import Entry
from ec_protocol.tier.step import Step
from ec_protocol.trace import Trace

if TYPE_CHECKING:
    from ec_protocol.p2p.commands import Command, PeerKey
    from ec_protocol.p2p.fetches import Fetches
    from ec_protocol.p2p.grants import ProducerGrants
    from ec_protocol.p2p.wire import XferAck, XferReq

#: What an instance does: a producer saves and serves, a consumer loads and reads.
Role = Literal["producer", "consumer", "both"]
#: How the encoding of an item is to be had: from the tier; not yet; by encoding it.
Availability = Literal["ready", "pending", "failed"]


class Node:
    """The protocol state of one engine instance and data-parallel rank.

    Args:
        blocks: Blocks of the region.
        block_bytes: Bytes of a block.
        role: What the instance does.
        ranks: Ranks that load; rank 0 is the one that saves.
        timing: Timers.
        peering: For reads between instances; None closes that gate.
        allowed: Says whether a request may send us to a host; None allows every one.
        hold_share: Share of the region that holds may keep (EC-3.6).
        trace: Where actions are recorded; None records nothing.
        parts: Classes of what the node is made of; tests put others in.

    Attributes:
        tier: Entries and blocks. ``tier.listener`` is told what becomes of encodings.
        copies: Copies that are planned or in flight.
        holds: Holds on announced and fetched entries.
        reads: The reading side; None without peering, or when the role only produces.
        grants: The serving side; None without peering, or when the role only consumes.
        online: Whether somebody carries out ``commands``. The shell says so; while it
            is False nothing is fetched.
        counters: What the engine's side counts, by name.

    Raises:
        ConfigError: ``role`` is none.
        LocalProtocolError: A size or a name that no node can have.
    """

    def __init__(
        self,
        *,
        blocks: int,
        block_bytes: int,
        role: Role = "both",
        ranks: int = 1,
        timing: Timing | None = None,
        peering: Peering | None = None,
        allowed: Allowed | None = None,
        hold_share: float = 0.5,
        trace: Trace | None = None,
        parts: Parts | None = None,
    ) -> None:
        if role not in ("producer", "consumer", "both"):
            raise ConfigError(f"role={role!r}: expected producer, consumer or both")
        self.role: Role = role
        self.saves = role != "consumer"
        self.loads = role != "producer"
        self.timing = Timing() if timing is None else timing
        self.online = True
        self.counters: Counter[str] = Counter()
        self._allowed = allowed
        parts = Parts() if parts is None else parts
        self.tier = parts.tier(blocks, block_bytes, trace)
        self.holds = parts.holds(self.tier, hold_share)
        self.copies = parts.copies(self.tier, ranks)
        self._step = Step(self.tier, self.copies, self.counters)
        self._announcer = Announcer(self.copies, self.holds, self.timing, self.counters)
        self.reads: Fetches | None = None
        self.grants: ProducerGrants | None = None
        if peering is not None:
            if self.loads:
                self.reads = parts.make_reads(self.tier, self.holds, self.timing, peering)
            if self.saves:
                self.grants = parts.make_grants(self.tier, self.timing, peering)
        # Whatever a request waits for, it has one budget (EC-5.9).
        self._deferrals = Deferrals() if self.reads is None else self.reads.deferrals

    # ----------------------------------------------------------- engine: requests
    def want(self, item: Item, announced: object, waiter: str, now: float) -> Availability:
        """How the encoding of an item is to be had; starts a fetch if one is wanted.

        Asked in every step by every request that waits, within ``fetch_budget_s`` of
        its first question (EC-5.9).

        Args:
            item: What the request needs.
            announced: ``ec_transfer_params`` of the request, of any type (EC-11.4).
            waiter: The request's id.
            now: Seconds.

        Returns:
            ``ready``: ``promise`` may have it. ``pending``: wait. ``failed``: only
            encoding the media helps, now and later.
        """
        if not item.named_by_content:
            return "failed"
        reads = self.reads
        if reads is None or not reads.fetching(item.mm_hash):
            entry = self.tier.get(item.mm_hash)
            if entry is not None:
                return self._from_tier(item, entry, waiter, now)
        if reads is None:
            return "failed"
        capacity = self.tier.num_blocks * self.tier.block_size_bytes
        source = read_source(announced, item, capacity, self._allowed)
        if isinstance(source, str):
            self.counters[f"params_{source}"] += 1
            return "failed"
        if not self.online:
            self.counters["fetches_without_pump"] += 1
            return "failed"
        peer = (source.host, source.port)
        return reads.fetch(item.mm_hash, peer, item.nbytes, item.shape, waiter, now)

    def _from_tier(self, item: Item, entry: Entry, waiter: str, now: float) -> Availability:
        if self.contradicts(item):
            return "failed"
        if entry.servable:
            return "ready"
        # A save of our own is about to make it so, or nothing ever will.
        if item.has_media or self.copies.save_of(item.mm_hash) is None:
            return "failed"
        within = self._deferrals.within(waiter, item.mm_hash, now, self.timing.fetch_budget_s)
        return "pending" if within else "failed"

    def contradicts(self, item: Item) -> bool:
        """Whether the tier holds something else under the item's name.

        Names may come from clients. Loaded into a request that expects other rows it
        would stop the engine. Under a name that does not follow from the content
        anything may lie (EC-2.8).
        """
        if not item.named_by_content:
            return True
        entry = self.tier.get(item.mm_hash)
        return entry is not None and entry.contradicts(item.nbytes, item.shape)

    def leave(self, waiter: str, now: float) -> None:
        """The request is over, in whatever way: it waits for nothing any more."""
        self._deferrals.forget(waiter)
        if self.reads is not None:
            self.reads.leave(waiter, now)

    # --------------------------------------------------------------- engine: a step
    def promise(self, mm_hash: str, items: Iterable[Item] = ()) -> bool:
        """Whether a load of ``mm_hash`` in this step will succeed: a promise (EC-3.2).

        Args:
            mm_hash: The encoding.
            items: What the request that asks means by the name.
        """
        if not self.loads or any(self.contradicts(item) for item in items):
            return False
        return self._step.promise(mm_hash)

    def plan(self, item: Item, waiter: str) -> Copy | None:
        """An item is part of the step: it is loaded as promised, or encoded and saved.

        Returns:
            The copy that was planned; None when the step has it already, or it is
            neither loaded nor saved.
        """
        # The promise may have been another request's, which means something else.
        if self._step.promised(item.mm_hash) and not self.contradicts(item):
            copy = self._step.load(item.mm_hash)
            self._deferrals.served(waiter, item.mm_hash)
            if self.reads is not None:
                self.reads.consumed(waiter, item.mm_hash)
            return copy
        return self._step.save(item, wanted=self.saves)

    def build_step(self, now: float) -> tuple[Copy, ...]:
        """What the workers copy in this step; its promises end (EC-3.4)."""
        planned = self._step.build()
        self.holds.tick(now)
        return planned

    def report(self, copy_id: int, rank: int, landed: bool) -> Copy:
        """A rank will not touch the blocks of a copy any more (EC-4.1).

        Raises:
            LocalProtocolError: See ``CopyTable.report``; nothing was changed.
        """
        copy = self.copies.report(copy_id, rank, landed)
        if copy.kind == "save" and copy.state == "landed":
            self.holds.landed(copy.entry)
        return copy

    # ------------------------------------------------------- engine: announcements
    def announce(
        self, items: Sequence[Item], address: tuple[str, int] | None, now: float
    ) -> dict[str, dict[str, Any]]:
        """What others are told of a request's encodings, which are held for them.

        Args:
            items: Of the request, in their order.
            address: Where consumers reach this producer; None: they do not.
            now: Seconds.

        Returns:
            By ``mm_hash`` the positions of its items, and metadata and address
            together, or empty metadata (EC-11.1). Nothing of names that were counted.
        """
        return {} if self.grants is None else self._announcer.announce(items, address, now)

    # -------------------------------------------------------------- network: server
    @property
    def _serving(self) -> ProducerGrants:
        if self.grants is None:
            raise LocalProtocolError(f"a node of role {self.role} serves nobody: it has no grants")
        return self.grants

    def offer(self, agent_metadata: bytes) -> None:
        """The data plane serves the region: before that nothing is granted."""
        self._serving.agent_metadata = agent_metadata

    def read_request(self, frames: Sequence[bytes]) -> XferReq:
        """A request as its frames tell it. Without the lock, since it may take long.

        The first peer of the old form makes it describe every block of the region.

        Raises:
            RemoteProtocolError: They are none (EC-8.1); count it with ``malformed``.
        """
        return self._serving.read(frames)

    def request(self, identity: bytes, request: XferReq, now: float) -> XferAck:
        """The answer to a request of a peer, whose quota goes by ``identity`` (EC-5.4)."""
        return self._serving.on_request(identity, request, now)

    def notice(self, raw: bytes, now: float) -> None:
        """A completion notice came over the data plane (EC-5.5)."""
        self._serving.on_notice(raw, now)

    # -------------------------------------------------------------- network: reader
    @property
    def _reading(self) -> Fetches:
        if self.reads is None:
            raise LocalProtocolError(
                f"a node of role {self.role} reads from nobody: it has no reads"
            )
        return self.reads

    def commands(self) -> list[Command]:
        """Take what is to be done on the network, in order."""
        return [] if self.reads is None else self.reads.attempts.drain()

    def read_answer(self, frames: Sequence[bytes]) -> XferAck:
        """An ack as its frames tell it. Without the lock: an old peer's may be large.

        Raises:
            RemoteProtocolError: They are none (EC-8.1); count it with ``malformed``.
        """
        from ec_protocol.p2p import wire

        return wire.keep_named_rows(wire.decode_ack(frames))

    def answer(self, peer: PeerKey, ack: XferAck, now: float) -> int | None:
        """An ack came from ``peer`` (EC-5.6).

        Returns:
            The attempt on which it acted, or None.
        """
        self.heard(peer, now)
        return self._reading.on_ack(peer, ack, now)

    def malformed(self, side: Literal["request", "answer"]) -> None:
        """A frame that could not be read was dropped."""
        part = self._serving if side == "request" else self._reading
        part.counters["malformed_frames"] += 1

    def heard(self, peer: PeerKey, now: float) -> None:
        """There is a connection to ``peer``, or a sign of life."""
        self._reading.attempts.peers.heard_from(peer)

    def lost(self, peer: PeerKey, now: float) -> None:
        """The connection to ``peer`` is gone (EC-9.1)."""
        self._reading.peer_lost(peer, now)

    def may_post(self, attempt: int, now: float) -> bool:
        """Whether the READ may be posted, asked at the moment of posting (EC-5.2)."""
        return self._reading.post_read(attempt, now)

    def post_failed(self, attempt: int, now: float) -> None:
        """The READ could not even be prepared."""
        self._reading.post_failed(attempt, now)

    def read_done(self, attempt: int, now: float) -> None:
        """The READ was seen finished before ``now`` (EC-5.3)."""
        self._reading.read_done(attempt, now)

    def read_failed(self, attempt: int, now: float) -> None:
        """The READ ended with an error, which proves nothing (EC-6.1)."""
        self._reading.read_error(attempt, now)

    def proven(self, attempts: Iterable[int], now: float) -> None:
        """The endpoint through which these READs were posted is torn down (EC-6.2)."""
        for attempt in attempts:
            self._reading.attempts.dma_ended(attempt, "endpoint_closed", now)

    # ----------------------------------------------------------------------- time
    def tick(self, now: float) -> None:
        """Let every timer run out that has (EC-7.3)."""
        if self.reads is not None:
            self.reads.tick(now)
        if self.grants is not None:
            self.grants.tick(now)
        self.holds.tick(now)

    def next_deadline(self) -> float | None:
        """When ``tick`` has something to do next; None when nothing is pending."""
        parts = (self.reads, self.grants, self.holds)
        due = [part.next_deadline() for part in parts if part is not None]
        return min((moment for moment in due if moment is not None), default=None)

    @property
    def transferring(self) -> bool:
        """Whether a READ may be under way, of ours or from us: planes need progress."""
        return (self.reads is not None and self.reads.attempts.active_reads > 0) or (
            self.grants is not None and self.grants.open_grants > 0
        )

    @property
    def has_commands(self) -> bool:
        """Whether ``commands`` would return something."""
        return self.reads is not None and self.reads.attempts.has_commands

    def stop_reading(self, now: float) -> None:
        """What waits fails, READs are quarantined; also if the network cannot run on."""
        self.online = False
        if self.reads is not None:
            self.reads.shutdown(now)

    def stop_serving(self, now: float) -> None:
        """Every grant ends: the region is about to go away."""
        if self.grants is not None:
            self.grants.shutdown(now)

    def shutdown(self, now: float) -> None:
        """The orderly end of both sides."""
        self.stop_reading(now)
        self.stop_serving(now)
