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

from collections.abc import Callable, Iterator
from typing import Any

from ec_protocol.tables.timing import timer_specs
from ec_verify.kit.adapter import INTERFACE_VERSION, Unsupported
from ec_verify.kit.language.schedule import Case
from ec_verify.kit.language.times import ScheduleError, evaluate
from ec_verify.kit.world import frames
from ec_verify.kit.world.checks import CheckFailed, violated
from ec_verify.kit.world.events import take_event
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
            self._take(node, output)
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
                "events": setup.events,
            },
        )
        if setup.events and not result.get("events"):
            raise Unsupported("events")
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

    # ----------------------------------------------------------------------- outputs
    def _take(self, node: Node, output: dict[str, Any]) -> None:
        kind = output.get("kind")
        if kind == "frames":
            self._sent(node, output)
        elif kind == "read":
            self._posted(node, output)
        elif kind == "notify":
            self._notify(node.name, bytes.fromhex(output["agent"]), output["notice"])
        elif kind in ("abandon", "release"):
            for dma in self.dmas.values():
                if dma.node == node.name and dma.read == output["read"]:
                    dma.abandoned = dma.abandoned or kind == "abandon"
                    dma.released = dma.released or kind == "release"
        elif kind == "event":
            take_event(node, output["frames"])
        elif kind not in ("connect", "close"):
            raise CheckFailed("an output that the interface has", f"{output!r:.200}")

    def _sent(self, node: Node, output: dict[str, Any]) -> None:
        to = output["to"]
        node.extended = node.extended or frames.extended(output["frames"])
        if isinstance(to, str):
            target, _, process = bytes.fromhex(to).decode(errors="replace").partition("/")
            # A connection ends with its process: nobody else gets the answer.
            meant = int(process) if process.isdecimal() else 0
            message = Message("answer", output["frames"], meant)
            self._watch_ack(node, output["frames"])
        else:
            found = [other.name for other in self.everyone() if list(other.address) == list(to)]
            target = found[0] if found else f"{to[0]}:{to[1]}"
            message = Message("request", output["frames"], node.incarnation)
            self.watch.request(node.name, output["frames"], self.now(node))
        self.send(f"{node.name}>{target}", message)
        self.log("sent", node=node.name, to=target, via=message.via)

    def channel(self, name: str) -> list[Message]:
        """Messages on their way, oldest first."""
        return self.channels.setdefault(name, [])

    def send(self, name: str, message: Message) -> None:
        """A message is on its way."""
        self.channel(name).append(message)
        self.sent.setdefault(name, []).append(message)

    def _notify(self, source: str, agent: bytes, notice: str) -> None:
        for other in self.everyone():
            if other.agent == agent:
                message = Message("notice", [notice], other.incarnation)
                self.send(f"{source}~{other.name}", message)
                self.log("notice", node=source, to=other.name)
                return
        self.send(f"{source}~nobody", Message("notice", [notice]))

    def _watch_ack(self, node: Node, raw: list[str]) -> None:
        """An instance grants something: its bytes have to be there now, and stay."""
        try:
            ack = frames.decode(raw)
            if ack.get("status") != 0 or ack.get("type") != "ack":
                return
            named = frames.pieces(ack, self.block_size)
        except frames.FrameError as exc:
            raise CheckFailed("a well-formed answer", str(exc), clause="EC-8.1") from exc
        mm_hash = str(ack.get("mm_hash"))
        nbytes = self.nbytes(mm_hash)
        spans = tuple((address - node.base, size) for address, size in named)
        size = node.setup.blocks * self.block_size
        if any(offset < 0 or offset + n > size for offset, n in spans):
            raise CheckFailed("blocks of the region", f"{spans} of {size} bytes", clause="EC-8.3")
        notice = frames.notice(str(ack.get("session_id", "")), mm_hash)
        lease = float(ack.get("lease_s", self.timers["lease_s"]))
        until = self.now(node) + lease
        open_ = [g for g in self.grants_of(node) if g.notice == notice]
        if ack.get("attempt_id") is not None and open_:
            open_[0].until = max(open_[0].until, until)
            return
        grant = GrantSeen(notice, spans, until, mm_hash, nbytes)
        for other in open_:
            # Two grants that one notice could mean: it ends neither (EC-5.5).
            other.twice = grant.twice = True
        if lease > 0:
            self._no_writer(node, spans, f"the grant of {mm_hash}", "ServeReadyOnly", "EC-5.4")
            self.check_grant(node, grant)
        node.grants.append(grant)

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

    def _no_writer(self, node: Node, spans: Spans, who: str, name: str, clause: str) -> None:
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
            self._no_writer(node, spans, name, "NoWrongBytes", "EC-2.2")
        run = CopyRun(name, raw["copy"], kind, mm_hash, spans, set(raw["ranks"]))
        node.copies[name] = run
        self.log("copy", node=node.name, copy=name)
        return run

    # -------------------------------------------------------------------------- READs
    def _posted(self, node: Node, output: dict[str, Any]) -> None:
        node.posted += 1
        name = f"{node.name}#{node.posted}"
        agent = bytes.fromhex(output["agent"])
        source = next((other for other in self.everyone() if other.agent == agent), None)
        local, remote = output["local"], output["remote"]
        if [size for _, size in local] != [size for _, size in remote]:
            raise CheckFailed("pieces of pairwise equal size", f"{local} and {remote}")
        pieces = []
        for (offset, size), (address, _) in zip(local, remote, strict=True):
            for at in range(0, size, self.block_size):
                pieces.append((offset + at, address + at, min(self.block_size, size - at)))
        dma = Dma(
            name,
            node.name,
            output["read"],
            source.name if source else None,
            source.incarnation if source else 0,
            pieces,
            bytes.fromhex(output["notice"]),
        )
        region = node.setup.blocks * self.block_size
        if any(offset < 0 or offset + size > region for offset, size in dma.spans):
            raise CheckFailed("a READ into the region", f"{local}", clause="EC-8.3")
        self.no_toucher(node, dma.spans, f"READ {name}")
        self.watch.posted(node.name, name, dma.notice, self.now(node))
        dma.writer = self.watch.written(node.name, dma.mm_hash)
        self.dmas[name] = dma
        self.log("read", node=node.name, dma=name, source=dma.source)

    def notice_of(self, dma: Dma) -> None:
        """A READ is seen done: its notice goes out to the process that it read from."""
        if dma.source is not None and dma.notice:
            message = Message("notice", [dma.notice.hex()], dma.source_incarnation)
            self.send(f"{dma.node}~{dma.source}", message)


def _overlap(left: Spans, right: Spans) -> bool:
    return any(a < d + n and d < a + m for a, m in left for d, n in right)
