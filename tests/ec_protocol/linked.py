# SPDX-License-Identifier: Apache-2.0
"""Two nodes, linked by nothing but what they return."""

from __future__ import annotations

from typing import Any

from ec_protocol import Node, Peering, make_item
from ec_protocol.p2p import wire
from ec_protocol.p2p.commands import OpenPeer, PrepareRead, SendReq

ROWS, WIDTH, ELEMENT = 2, 8, 2
BLOCK = WIDTH * ELEMENT
ADDRESS = ("producer.example", 5601)
AGENT = b"agent"
START = 100.0


def item(name: str = "a", rows: int = ROWS, **kw: Any) -> Any:
    return make_item(name, rows, WIDTH, ELEMENT, **kw)


def node(role: Any = "both", blocks: int = 8, peers: bool = True, **kw: Any) -> Node:
    peering = Peering(
        vllm_version="test",
        model="m",
        dtype="torch.bfloat16",
        incarnation=f"{role}1",
        base_addr=4096,
    )
    made = Node(
        blocks=blocks, block_bytes=BLOCK, role=role, peering=peering if peers else None, **kw
    )
    if made.grants is not None:
        made.offer(AGENT)
    return made


def save(n: Node, *items: Any, now: float = START, landed: bool = True) -> None:
    for wanted in items:
        assert n.plan(wanted, "saver") is not None
    for copy in n.build_step(now):
        n.report(copy.copy_id, 0, landed)


class Pair:
    """A producer that has announced, a consumer, and the wire between them."""

    def __init__(self, *names: str) -> None:
        self.now = START
        self.producer, self.consumer = node("producer"), node("consumer")
        items = [item(name) for name in names or ("a",)]
        save(self.producer, *items)
        self.announced = self.producer.announce(items, ADDRESS, self.now)

    def want(self, name: str = "a", waiter: str = "r", **kw: Any) -> str:
        return self.consumer.want(item(name, **kw), self.announced, waiter, self.now)

    def ask(self) -> wire.XferAck:
        """The consumer's commands so far are to connect and to ask; the answer."""
        open_, send = self.consumer.commands()
        assert isinstance(open_, OpenPeer)
        assert isinstance(send, SendReq)
        assert open_.peer == send.peer == ADDRESS
        frames = [b"", wire.encode(send.req)]
        return self.producer.request(b"c", self.producer.read_request(frames), self.now)

    def deliver(self, ack: wire.XferAck) -> int | None:
        frames = [b"", wire.encode(ack)]
        return self.consumer.answer(ADDRESS, self.consumer.read_answer(frames), self.now)

    def prepared(self) -> PrepareRead:
        self.want()
        self.deliver(self.ask())
        (command,) = self.consumer.commands()
        assert isinstance(command, PrepareRead)
        return command

    def posted(self) -> PrepareRead:
        command = self.prepared()
        assert self.consumer.may_post(command.attempt_id, self.now)
        return command


def states(n: Node) -> dict[str, str]:
    return {entry.mm_hash: entry.state for entry in n.tier.entries()}
