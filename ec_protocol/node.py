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

Threads: none of its own, and no lock. A shell that has several makes one call at a time;
only ``read_request`` and ``read_answer``, which may take long, may run beside it. Times
are seconds of one monotonic clock (EC-7.1). What a peer or a client sends never raises,
but ``RemoteProtocolError`` of the two ``read_`` methods; a ``LocalProtocolError`` is a
mistake of the shell, and has changed nothing (EC-1.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from ec_protocol.announcements import Allowed
from ec_protocol.engine import Engine, Role
from ec_protocol.errors import LocalProtocolError
from ec_protocol.parts import Parts, Peering
from ec_protocol.tables.timing import Timing
from ec_protocol.trace import Trace

if TYPE_CHECKING:
    from ec_protocol.p2p.commands import Command, PeerKey
    from ec_protocol.p2p.fetches import Fetches
    from ec_protocol.p2p.grants import ProducerGrants
    from ec_protocol.p2p.wire import XferAck, XferReq


class Node(Engine):
    """An engine that fetches and grants in its own process.

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
        reads: The reading side; None without peering, or when the role only produces.
        grants: The serving side; None without peering, or when the role only consumes.

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
        parts = Parts() if parts is None else parts
        super().__init__(
            blocks=blocks,
            block_bytes=block_bytes,
            role=role,
            ranks=ranks,
            timing=timing,
            allowed=allowed,
            hold_share=hold_share,
            trace=trace,
            parts=parts,
        )
        self.reads: Fetches | None = None
        self.grants: ProducerGrants | None = None
        if peering is not None and self.loads:
            self.reads = parts.make_reads(self.tier, self.timing, peering)
            self.reads.listener = self.fetch_by(self.reads, self.reads.counters)
        if peering is not None and self.saves:
            self.grants = parts.make_grants(self.tier, self.timing, peering)
            self.serves = True

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
        """A request as its frames tell it. May run beside another call, since it takes long.

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
        """An ack as its frames tell it. May run beside another call: an old peer's is large.

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
