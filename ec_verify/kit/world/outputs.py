# SPDX-License-Identifier: Apache-2.0
"""What instances send of themselves: messages, READs, and what they say of these.

Each is looked at when it is sent, since later the bytes may be others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ec_verify.kit.world import frames
from ec_verify.kit.world.checks import CheckFailed, violated
from ec_verify.kit.world.events import take_event
from ec_verify.kit.world.nodes import Dma, GrantSeen, Message, Node

if TYPE_CHECKING:
    from ec_verify.kit.world.world import World


def take_output(world: World, node: Node, output: dict[str, Any], *, ended: bool = False) -> None:
    """An instance has sent something: messages, a READ, or news of one.

    Args:
        world: The world.
        node: The instance.
        output: What it has sent.
        ended: The kit has just ended a process of the instance, or an endpoint of it.

    Raises:
        CheckFailed: It is something else, or what it says is wrong already.
    """
    kind = output.get("kind")
    if kind == "frames":
        _sent(world, node, output)
    elif kind == "read":
        _posted(world, node, output)
    elif kind == "notify":
        _notify(world, node.name, bytes.fromhex(output["agent"]), output["notice"])
    elif kind in ("abandon", "release", "gone"):
        for dma in world.dmas.values():
            if dma.node == node.name and dma.read == output["read"]:
                _said_of(dma, kind, ended=ended)
    elif kind == "event":
        take_event(node, output["frames"])
    elif kind not in ("connect", "close"):
        raise CheckFailed("an output that the interface has", f"{output!r:.200}")


def _said_of(dma: Dma, kind: str, *, ended: bool) -> None:
    """What an instance says of a READ; only the kit ends one that may still write."""
    dma.abandoned = dma.abandoned or kind == "abandon"
    dma.released = dma.released or kind != "abandon"
    if kind == "gone":
        if dma.active and not ended:
            raise violated(
                "NoReuseUnderDMA",
                "EC-6.2",
                f"READ {dma.name} to go on until something ends it",
                "its process is said to be gone",
            )
        dma.closed = True


def _sent(world: World, node: Node, output: dict[str, Any]) -> None:
    to = output["to"]
    node.extended = node.extended or frames.extended(output["frames"])
    if isinstance(to, str):
        target, process, *_ = [*bytes.fromhex(to).decode(errors="replace").split("/"), ""]
        # A connection ends with its process: nobody else gets the answer.
        meant = int(process) if process.isdecimal() else 0
        message = Message("answer", output["frames"], meant)
        _watch_ack(world, node, output["frames"])
    else:
        found = [other.name for other in world.everyone() if list(other.address) == list(to)]
        target = found[0] if found else f"{to[0]}:{to[1]}"
        message = Message("request", output["frames"], node.incarnation)
        world.watch.request(node.name, output["frames"], world.now(node))
    world.send(f"{node.name}>{target}", message)
    world.log("sent", node=node.name, to=target, via=message.via)


def _notify(world: World, source: str, agent: bytes, notice: str) -> None:
    for other in world.everyone():
        if other.agent == agent:
            message = Message("notice", [notice], other.incarnation, agent=agent)
            world.send(f"{source}~{other.name}", message)
            world.log("notice", node=source, to=other.name)
            return
    world.send(f"{source}~nobody", Message("notice", [notice]))


def _watch_ack(world: World, node: Node, raw: list[str]) -> None:
    """An instance grants something: its bytes have to be there now, and stay."""
    try:
        ack = frames.decode(raw)
        if ack.get("status") != 0 or ack.get("type") != "ack":
            return
        named = frames.pieces(ack, world.block_size)
    except frames.FrameError as exc:
        raise CheckFailed("a well-formed answer", str(exc), clause="EC-8.1") from exc
    mm_hash = str(ack.get("mm_hash"))
    nbytes = world.nbytes(mm_hash)
    spans = tuple((address - node.base, size) for address, size in named)
    size = node.setup.blocks * world.block_size
    if any(offset < 0 or offset + n > size for offset, n in spans):
        raise CheckFailed("blocks of the region", f"{spans} of {size} bytes", clause="EC-8.3")
    notice = frames.notice(str(ack.get("session_id", "")), mm_hash)
    lease = float(ack.get("lease_s", world.timers["lease_s"]))
    until = world.now(node) + lease
    open_ = [g for g in world.grants_of(node) if g.notice == notice]
    if ack.get("attempt_id") is not None and open_:
        open_[0].until = max(open_[0].until, until)
        return
    grant = GrantSeen(notice, spans, until, mm_hash, nbytes)
    for other in open_:
        # Two grants that one notice could mean: it ends neither (EC-5.5).
        other.twice = grant.twice = True
    if lease > 0:
        world.no_writer(node, spans, f"the grant of {mm_hash}", "ServeReadyOnly", "EC-5.4")
        world.check_grant(node, grant)
    node.grants.append(grant)


def _posted(world: World, node: Node, output: dict[str, Any]) -> None:
    node.posted += 1
    name = f"{node.name}#{node.posted}"
    agent = bytes.fromhex(output["agent"])
    source = next((other for other in world.everyone() if other.agent == agent), None)
    local, remote = output["local"], output["remote"]
    if [size for _, size in local] != [size for _, size in remote]:
        raise CheckFailed("pieces of pairwise equal size", f"{local} and {remote}")
    pieces = []
    for (offset, size), (address, _) in zip(local, remote, strict=True):
        for at in range(0, size, world.block_size):
            pieces.append((offset + at, address + at, min(world.block_size, size - at)))
    dma = Dma(
        name,
        node.name,
        output["read"],
        source.name if source else None,
        source.incarnation if source else 0,
        pieces,
        bytes.fromhex(output["notice"]),
        agent=agent,
    )
    region = node.setup.blocks * world.block_size
    if any(offset < 0 or offset + size > region for offset, size in dma.spans):
        raise CheckFailed("a READ into the region", f"{local}", clause="EC-8.3")
    world.no_toucher(node, dma.spans, f"READ {name}")
    world.watch.posted(node.name, name, dma.notice, world.now(node))
    dma.writer = world.watch.written(node.name, dma.mm_hash)
    world.dmas[name] = dma
    world.log("read", node=node.name, dma=name, source=dma.source)
