# SPDX-License-Identifier: Apache-2.0
"""What takes part in a case: instances under test, and peers that the kit plays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from ec_verify.kit.language.schedule import NodeSetup
from ec_verify.kit.world import frames
from ec_verify.kit.world.links import Link

Spans = tuple[tuple[int, int], ...]

#: Where the memory of played producers begins; far from anything an adapter would use.
PLAYED_BASE: Final = 1 << 44
ELEMENT_SIZE: Final = 2


@dataclass(eq=False)
class CopyRun:
    """One copy that a node's step has handed to its ranks; the kit moves the bytes.

    Attributes:
        name: ``save A`` or ``load A``; a second one of the same name is ``save A#2``.
        copy: The implementation's own id of it.
        kind: ``save`` or ``load``.
        mm_hash: The encoding.
        spans: ``(offset, bytes)`` in the region, in the order of the bytes.
        waiting: Ranks that have not reported.
        moved: Bytes that each rank has moved.
        started: Ranks whose device was told to copy (worker cases).
    """

    name: str
    copy: Any
    kind: str
    mm_hash: str
    spans: Spans
    waiting: set[int]
    moved: dict[int, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the encoding."""
        return sum(size for _, size in self.spans)


@dataclass(eq=False)
class Dma:
    """A READ that a node has posted. Only its own end or its endpoint's stops it.

    Attributes:
        name: ``C#1``: the first of node C.
        node: Who posted it.
        read: The implementation's own id.
        source: Node that its agent metadata names, or None for nobody.
        source_incarnation: Which process of that node.
        pieces: ``(local offset, remote address, bytes)``, at most a block each.
        notice: Completion notice, sent when it is seen done.
        done: Pieces moved.
        closed: Its local endpoint was torn down, or its abort confirmed.
        untold: It was, and the implementation takes no such proof.
        reported: It was seen done.
        lost: It was seen failing.
        writer: Which writer of its encoding at its node it is.
        abandoned: The implementation does not wait for it any more.
        released: The implementation gave the handle up.
        agent: The agent metadata of its source.
    """

    name: str
    node: str
    read: Any
    source: str | None
    source_incarnation: int
    pieces: list[tuple[int, int, int]]
    notice: bytes
    done: int = 0
    closed: bool = False
    untold: bool = False
    reported: bool = False
    lost: bool = False
    writer: int = 0
    abandoned: bool = False
    released: bool = False
    agent: bytes = b""

    @property
    def active(self) -> bool:
        """Whether it may still write."""
        return not self.closed and self.done < len(self.pieces)

    @property
    def mm_hash(self) -> str:
        """The encoding, as its notice names it."""
        return self.notice.decode(errors="replace").partition(":")[2]

    @property
    def spans(self) -> Spans:
        """Where it writes."""
        return tuple((local, size) for local, _, size in self.pieces)


@dataclass(eq=False)
class GrantSeen:
    """An OK ack that an instance under test has sent: it owes the bytes for a lease.

    Attributes:
        notice: Ends it.
        spans: Blocks in the region that it names.
        until: End of the lease by the node's clock.
        mm_hash: The encoding.
        nbytes: Its bytes.
    """

    notice: bytes
    spans: Spans
    until: float
    mm_hash: str
    nbytes: int
    twice: bool = False


def identity_of(name: str, incarnation: int, alias: str = "") -> str:
    """Identity of a DEALER of a node's process, hex: each process has another.

    What stands before the first slash is the host that its packets come from (EC-15.1).
    """
    return "/".join([name, str(incarnation), *([alias] if alias else [])]).encode().hex()


@dataclass(eq=False)
class Message:
    """Something on its way.

    Attributes:
        via: Operation that delivers it: ``request``, ``answer`` or ``notice``.
        frames: Hex, as sent; a notice is one frame.
        incarnation: Of the process that it was meant for (notices, answers), or that has
            sent it (requests); 0: whichever runs.
        delivered: It has reached its target; a copy may wait all the same.
        agent: Agent metadata by which a notice was sent.
    """

    via: str
    frames: list[str]
    incarnation: int = 0
    delivered: bool = False
    agent: bytes = b""


@dataclass(eq=False)
class Node:
    """One instance under test.

    Attributes:
        extended: A message of one of its processes had a field of the extended form, so
            that a message without them is no sign that it speaks the old form only.
        processes: It has data processes, which ``kill`` can end.
    """

    name: str
    setup: NodeSetup
    address: tuple[str, int]
    link: Link | None = None
    incarnation: int = 0
    base: int = 0
    agent: bytes = b""
    requests: dict[str, dict[str, Any]] = field(default_factory=dict)
    copies: dict[str, CopyRun] = field(default_factory=dict)
    grants: list[GrantSeen] = field(default_factory=list)
    posted: int = 0
    step_items: list[str] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)
    message: dict[str, Any] = field(default_factory=dict)
    messages: int = 0
    extended: bool = False
    processes: bool = False

    @property
    def alive(self) -> bool:
        """Whether a process of it runs."""
        return self.link is not None

    @property
    def identity(self) -> str:
        """Identity of its process's DEALER, hex."""
        return identity_of(self.name, self.incarnation)


@dataclass(eq=False)
class Played:
    """A peer that the kit plays from raw frames, with memory of its own."""

    name: str
    setup: NodeSetup
    address: tuple[str, int]
    block_size: int
    base: int
    incarnation: int = 1
    alive: bool = True
    memory: bytearray = field(default_factory=bytearray)
    where: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """Identity of its process's DEALER, hex."""
        return identity_of(self.name, self.incarnation)

    @property
    def agent(self) -> bytes:
        """Agent metadata of the present process."""
        return f"agent-{self.name}-{self.incarnation}".encode()

    @property
    def process(self) -> str:
        """Its incarnation, as on the wire."""
        return f"{self.name}-{self.incarnation}"

    def fill(self, sizes: dict[str, int]) -> None:
        """Lay out what it holds, each encoding in two extents out of order if it can be.

        The second half comes first in memory, so that an implementation that orders
        blocks by number reads a wrong picture (EC-2.7).
        """
        self.memory = bytearray(b"\xee" * (self.setup.blocks * self.block_size))
        self.where.clear()
        at = 0
        for mm_hash in self.setup.holds:
            count = -(-sizes[mm_hash] // self.block_size)
            tail = count // 2
            extents = ((at + tail, count - tail), (at, tail)) if tail else ((at, count),)
            self.where[mm_hash] = extents
            at += count
            self.write(mm_hash, frames.content(mm_hash, sizes[mm_hash]))
        if at > self.setup.blocks:
            raise ValueError(f"{self.name} holds {at} blocks and has {self.setup.blocks}")

    def write(self, mm_hash: str, data: bytes) -> None:
        """Put bytes where the encoding is."""
        for start, count in self.where[mm_hash]:
            part = data[: count * self.block_size]
            self.memory[start * self.block_size : start * self.block_size + len(part)] = part
            data = data[count * self.block_size :]
