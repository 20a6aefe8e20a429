# SPDX-License-Identifier: Apache-2.0
"""Everything around the implementation under test: time, network, DMA, other peers.

Nothing happens by itself; ``play`` moves one thing at a time as the schedule says. The
world watches meanwhile, whatever the case is about:

* *NoReuseUnderDMA, PinSafety*: no block is handed to a writer while a copy, a READ or an
  unexpired grant may still touch it, and none to a reader while it is being written;
* *NoWrongBytes*: what a load or an unexpired grant gives is the named encoding, bit for
  bit, at the moment at which it is copied;
* *FencedAccept*: no READ is posted with too little of its lease left, and none that was
  seen done too late is promised to anybody (``watch``);
* *AttemptIdentity, ServeReadyOnly* follow from these: a grant that was released too
  early, or given too early, shows wrong bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ec_protocol.tables.timing import timer_specs
from ec_verify.kit.adapter import INTERFACE_VERSION, Unsupported
from ec_verify.kit.language.schedule import Case
from ec_verify.kit.language.times import ScheduleError, evaluate
from ec_verify.kit.world import frames
from ec_verify.kit.world.checks import CheckFailed, violated
from ec_verify.kit.world.links import Link, Recorder
from ec_verify.kit.world.nodes import (
    ELEMENT_SIZE,
    PLAYED_BASE,
    CopyRun,
    Dma,
    GrantSeen,
    Message,
    Node,
    Played,
    Spans,
)
from ec_verify.kit.world.outputs import take_output
from ec_verify.kit.world.watch import Watch

#: When every case begins, seconds: not 0, which an implementation might take for "never".
START_S = 1000.0
DEFAULT_BLOCKS = 2
#: Operations that need no running instance.
BEFORE_START = ("config", "compat_hash", "region")
COMPAT = {"vllm_version": "0.32.0", "model": "conformance/model", "dtype": "torch.bfloat16"}


class World:
    """The state of one case.

    Args:
        case: The case.
        connect: Makes a link to a fresh instance.
        history: Where operations and events are written down.
    """

    def __init__(
        self, case: Case, connect: Callable[[str], Link], history: list[dict[str, Any]]
    ) -> None:
        self.case = case
        self.setup = case.setup
        self.block_size = case.setup.block_size_bytes
        self.history = history
        self.time = START_S
        self.timers = {name: spec.default for name, spec in timer_specs().items()}
        self.timers.update(case.setup.timers)
        self.facts = {**COMPAT, **case.setup.compat}
        self.watch = Watch(self.timers)
        self.marks: dict[str, float] = {"start": START_S}
        self.nodes: dict[str, Node] = {}
        self.played: dict[str, Played] = {}
        self.channels: dict[str, list[Message]] = {}
        self.sent: dict[str, list[Message]] = {}
        self.dmas: dict[str, Dma] = {}
        self.named: dict[str, dict[str, Any]] = {}
        self.saved: dict[str, Any] = {}
        self.probes = 0
        self._connect = connect
        for number, (name, setup) in enumerate(case.setup.nodes.items()):
            address = (f"{name.lower()}.example", 5600 + number)
            if setup.played == "kit":
                base = PLAYED_BASE + number * (1 << 32)
                peer = Played(name, setup, address, self.block_size, base)
                peer.fill({mm_hash: self.nbytes(mm_hash) for mm_hash in setup.holds})
                self.played[name] = peer
            else:
                self.nodes[name] = Node(name, setup, address)

    # ------------------------------------------------------------------- sizes, time
    def nbytes(self, mm_hash: str) -> int:
        """Bytes of an encoding."""
        size = self.setup.encodings.get(mm_hash, DEFAULT_BLOCKS)
        return size["bytes"] if isinstance(size, dict) else size * self.block_size

    def shape(self, mm_hash: str) -> list[int]:
        """Rows × width: a row is a block, or a fourth of one for odd sizes."""
        nbytes = self.nbytes(mm_hash)
        row = self.block_size
        while nbytes % row and row > ELEMENT_SIZE:
            row //= 2
        return [nbytes // row, row // ELEMENT_SIZE]

    def content(self, mm_hash: str) -> bytes:
        """The right bytes of an encoding."""
        return frames.content(mm_hash, self.nbytes(mm_hash))

    def seconds(self, expression: str | float) -> float:
        """The value of a time expression."""
        return evaluate(expression, {**self.timers, **self.marks})

    def now(self, node: Node) -> float:
        """The node's own clock."""
        return START_S + (self.time - START_S) * node.setup.rate

    def compat(self) -> str:
        """The compatibility hash of every node of the case (EC-8.4)."""
        return frames.compat_hash({**self.facts, "block_size_bytes": self.block_size})

    def log(self, kind: str, **fields: Any) -> None:
        """Write an event of the world into the history, for diagrams and people."""
        self.history.append({"event": kind, "t": round(self.time - START_S, 6), **fields})

    # -------------------------------------------------------------------- operations
    def node(self, name: str) -> Node:
        """An instance under test.

        Raises:
            ScheduleError: There is none of that name.
        """
        if name not in self.nodes:
            raise ScheduleError(f"{name!r} is no instance under test")
        return self.nodes[name]

    def anyone(self, name: str) -> Node | Played:
        """A node of either sort."""
        if name in self.played:
            return self.played[name]
        return self.node(name)

    def everyone(self) -> list[Node | Played]:
        """Every node of either sort."""
        return [*self.nodes.values(), *self.played.values()]

    def call(self, node: Node, op: str, **args: Any) -> dict[str, Any]:
        """Carry out an operation and take in what the instance sends meanwhile."""
        if node.link is None and op in BEFORE_START:
            node.link = Recorder(self._connect(node.name), node.name, self.history)
        if node.link is None:
            raise ScheduleError(f"{node.name} does not run")
        result = node.link.call(op, {"now": self.now(node), **args})
        for output in result.pop("out", []):
            take_output(self, node, output, ended=_ends(op, args))
        return result

    def start(self, node: Node, **more: Any) -> None:
        """Start a process of a node."""
        node.incarnation += 1
        if node.link is None:
            node.link = Recorder(self._connect(node.name), node.name, self.history)
        node.copies.clear()
        node.grants.clear()
        node.requests.clear()
        node.told.clear()
        node.messages = 0
        setup = node.setup
        timers = {**self.timers, **more.get("timers", {})}
        result = self.call(
            node,
            "start",
            settings={
                "interface": INTERFACE_VERSION,
                "role": setup.role,
                "blocks": setup.blocks,
                "block_size_bytes": self.block_size,
                "ranks": setup.ranks,
                "timers": timers,
                "peer": list(node.address),
                "compat": self.facts,
                "element_size": ELEMENT_SIZE,
                "quotas": setup.quotas,
                "p2p": setup.p2p,
                "authenticated": setup.authenticated,
                "terms": setup.terms,
                "events": setup.events,
            },
        )
        if setup.events and not result.get("events"):
            raise Unsupported("events")
        if not set(setup.terms) <= set(result.get("terms", ())):
            raise Unsupported(f"terms: {', '.join(setup.terms)}")
        node.processes = bool(result.get("processes"))
        if setup.processes and not node.processes:
            raise Unsupported("data processes")
        node.base = int(result.get("base_addr", 0))
        node.agent = bytes.fromhex(result.get("agent", ""))
        self.timers.update(result.get("timers", {}))
        self.log("start", node=node.name, incarnation=node.incarnation)

    def kill(self, node: Node) -> None:
        """The process of a node is gone; what it was sending is still on its way."""
        if node.link is not None:
            node.link.kill()
            node.link = None
            self.watch.restarted(node.name)
            node.grants.clear()
            node.copies.clear()
            for dma in self.dmas.values():
                # EC-A.3: a READ goes through its process's endpoint, which is gone.
                dma.closed = dma.closed or dma.node == node.name

    def close(self) -> None:
        """End every instance."""
        for node in self.nodes.values():
            if node.link is not None:
                node.link.kill()
                node.link = None

    def has(self, node: Node, request: dict[str, Any], item: int) -> bool:
        """Ask a node whether it can load an item; a promise is watched (FencedAccept)."""
        promised = bool(self.call(node, "has", request=request, item=item)["has"])
        if promised:
            self.watch.promised(node.name, request["items"][item]["hash"])
        return promised

    # ---------------------------------------------------------------------- messages
    def channel(self, name: str) -> list[Message]:
        """Messages on their way, oldest first."""
        return self.channels.setdefault(name, [])

    def send(self, name: str, message: Message) -> None:
        """A message is on its way."""
        self.channel(name).append(message)
        self.sent.setdefault(name, []).append(message)

    def grants_of(self, node: Node) -> list[GrantSeen]:
        """Grants of a node whose lease still runs by its own clock."""
        node.grants = [grant for grant in node.grants if self.now(node) < grant.until]
        return node.grants

    def check_grant(self, node: Node, grant: GrantSeen) -> None:
        """The bytes of a grant are the encoding's.

        Raises:
            CheckFailed: They are not.
        """
        seen = b"".join(self.peek(node, offset, size) for offset, size in grant.spans)
        if seen[: grant.nbytes] != self.content(grant.mm_hash):
            raise violated(
                "NoWrongBytes",
                "EC-5.4",
                f"the bytes of {grant.mm_hash} in granted blocks",
                "other bytes",
            )

    # ------------------------------------------------------------------------ memory
    def peek(self, node: Node, offset: int, size: int) -> bytes:
        """Bytes of a node's region."""
        data = bytes.fromhex(self.call(node, "peek", offset=offset, size=size)["data"])
        if len(data) != size:
            raise CheckFailed(f"{size} bytes of the region", f"{len(data)}")
        return data

    def poke(self, node: Node, offset: int, data: bytes) -> None:
        """Write into a node's region as a device or a network card does."""
        self.call(node, "poke", offset=offset, data=data.hex())

    def touching(self, node: Node, *, writers_only: bool = False) -> Iterator[tuple[str, Spans]]:
        """Whatever may touch the blocks of a node at this moment."""
        for dma in self.dmas.values():
            if dma.node == node.name and dma.active:
                yield f"READ {dma.name}", dma.spans
        for run in node.copies.values():
            if run.waiting and (run.kind == "save" or not writers_only):
                yield run.name, run.spans
        if not writers_only:
            for grant in self.grants_of(node):
                yield f"the grant of {grant.mm_hash}", grant.spans

    def no_toucher(self, node: Node, spans: Spans, who: str) -> None:
        """A writer gets blocks: nothing else may still touch them (NoReuseUnderDMA).

        Raises:
            CheckFailed: Something may.
        """
        for other, theirs in self.touching(node):
            if _overlap(spans, theirs):
                raise violated(
                    "NoReuseUnderDMA",
                    "EC-6.2" if other.startswith("READ") else "EC-4.2",
                    f"blocks that nothing touches for {who}",
                    f"blocks that {other} may still touch",
                )

    def no_writer(self, node: Node, spans: Spans, who: str, name: str, clause: str) -> None:
        """A reader gets blocks: nothing may still be writing them.

        Raises:
            CheckFailed: Something may; ``name`` is the invariant, and ``clause`` its clause.
        """
        for other, theirs in self.touching(node, writers_only=True):
            if _overlap(spans, theirs):
                raise violated(
                    name, clause, f"finished blocks for {who}", f"blocks that {other} writes"
                )

    def add_copy(self, node: Node, raw: dict[str, Any]) -> CopyRun:
        """A step handed a copy to its ranks."""
        kind, mm_hash = raw["kind"], raw["hash"]
        spans = tuple((int(offset), int(size)) for offset, size in raw["spans"])
        if sum(size for _, size in spans) != self.nbytes(mm_hash):
            raise CheckFailed(
                f"{kind} of {self.nbytes(mm_hash)} bytes of {mm_hash}", f"{spans}", clause="EC-2.2"
            )
        name = f"{kind} {mm_hash}"
        number = 2
        while name in node.copies:
            name, number = f"{kind} {mm_hash}#{number}", number + 1
        if kind == "save":
            self.no_toucher(node, spans, name)
            self.watch.written(node.name, mm_hash)
        else:
            self.no_writer(node, spans, name, "NoWrongBytes", "EC-2.2")
        run = CopyRun(name, raw["copy"], kind, mm_hash, spans, set(raw["ranks"]))
        node.copies[name] = run
        self.log("copy", node=node.name, copy=name)
        return run

    # -------------------------------------------------------------------------- READs
    def notice_of(self, dma: Dma) -> None:
        """A READ is seen done: its notice goes out to the process that it read from."""
        if dma.source is not None and dma.notice:
            notice = [dma.notice.hex()]
            message = Message("notice", notice, dma.source_incarnation, agent=dma.agent)
            self.send(f"{dma.node}~{dma.source}", message)


def _ends(op: str, args: Mapping[str, Any]) -> bool:
    """Whether an operation ends processes of an instance, or an endpoint of one."""
    return op == "kill" or (op == "data" and args["event"] == "endpoint_closed")


def _overlap(left: Spans, right: Spans) -> bool:
    return any(a < d + n and d < a + m for a, m in left for d, n in right)
