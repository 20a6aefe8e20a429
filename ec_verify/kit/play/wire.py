# SPDX-License-Identifier: Apache-2.0
"""Verbs of the control plane: messages on their way, and what nodes know of each other."""

from __future__ import annotations

from typing import Any

from ec_verify.kit.language import steps
from ec_verify.kit.language.times import ScheduleError
from ec_verify.kit.play.verbs import plays
from ec_verify.kit.world import frames
from ec_verify.kit.world.checks import CheckFailed, compare
from ec_verify.kit.world.nodes import Message, Node, identity_of
from ec_verify.kit.world.world import World


def ends(channel: str) -> tuple[str, str]:
    """Both ends of ``"C>P"`` or ``"C~P"``."""
    source, mark, target = channel.partition(">" if ">" in channel else "~")
    if not mark or not source or not target:
        raise ScheduleError(f"{channel!r} is no channel: expected A>B or A~B")
    return source, target


def nth(world: World, channel: str, number: int) -> int:
    """Index of the nth message that waits.

    Raises:
        CheckFailed: It was never sent.
    """
    waiting = world.channel(channel)
    if len(waiting) < number:
        raise CheckFailed(f"a message {channel}", f"{len(waiting)} of them wait")
    return number - 1


def hand_over(world: World, channel: str, message: Message) -> None:
    """A message reaches its target."""
    source, target = ends(channel)
    if target in world.played or target not in world.nodes:
        return
    node = world.node(target)
    if not node.alive:
        return
    if message.via != "request" and message.incarnation not in (0, node.incarnation):
        world.log("dropped", channel=channel)
        return
    if message.via == "notice" and message.agent not in (b"", node.agent):
        world.log("dropped", channel=channel)
        return
    message.delivered = True
    world.log("delivered", node=source, to=target, via=message.via)
    if message.via == "notice":
        notice(world, node, bytes.fromhex(message.frames[0]))
    elif message.via == "request":
        sender = world.anyone(source)
        identity = identity_of(source, message.incarnation or sender.incarnation)
        world.call(node, "request", identity=identity, frames=message.frames)
    else:
        peer = list(world.anyone(source).address)
        world.watch.answer(node.name, message.frames)
        world.call(node, "answer", peer=peer, frames=message.frames)


def notice(world: World, node: Node, raw: bytes) -> None:
    """A completion notice reaches a producer: it ends the one grant that it names."""
    named = [grant for grant in world.grants_of(node) if grant.notice == raw]
    if len(named) == 1 and not named[0].twice:
        node.grants.remove(named[0])
    world.call(node, "notice", notice=raw.hex())


@plays(steps.Deliver)
def _play_deliver(world: World, step: steps.Deliver) -> None:
    waiting = world.channel(step.deliver)
    if step.all:
        while waiting:
            hand_over(world, step.deliver, waiting.pop(0))
        return
    index = nth(world, step.deliver, step.nth)
    message = waiting[index] if step.keep else waiting.pop(index)
    _, target = ends(step.deliver)
    hand_over(world, f"{step.via}>{target}" if step.via else step.deliver, message)


@plays(steps.Drop)
def _play_drop(world: World, step: steps.Drop) -> None:
    world.channel(step.drop).pop(nth(world, step.drop, step.nth))
    world.log("dropped", channel=step.drop)


@plays(steps.Exchange)
def _play_exchange(world: World, step: steps.Exchange) -> None:
    left, right = step.exchange
    for _ in range(1000):
        channel = next(
            (c for c in (f"{left}>{right}", f"{right}>{left}") if world.channels.get(c)), None
        )
        if channel is None:
            return
        hand_over(world, channel, world.channels[channel].pop(0))
    raise CheckFailed("the exchange to end", "1000 messages")


@plays(steps.Message)
def _play_message(world: World, step: steps.Message) -> None:
    waiting = world.channel(step.message)[nth(world, step.message, step.nth)]
    if waiting.via == "notice":
        text = bytes.fromhex(waiting.frames[0]).decode(errors="replace")
        compare(step.expect, {"text": text}, f"notice {step.message}")
        return
    compare(step.expect, readable(decoded(waiting.frames)), f"message {step.message}")


@plays(steps.Sent)
def _play_sent(world: World, step: steps.Sent) -> None:
    compare(step.count, len(world.channel(step.sent)), f"messages {step.sent}")


def decoded(raw: list[str]) -> dict[str, Any]:
    """A message that an instance has sent.

    Raises:
        CheckFailed: It is none.
    """
    try:
        return frames.decode(raw)
    except frames.FrameError as exc:
        raise CheckFailed("a well-formed message", str(exc), clause="EC-8.1") from exc


def readable(fields: dict[str, Any]) -> dict[str, Any]:
    """The message with its status by name, and the bytes of the payload counted."""
    result = {**fields, "bytes": len(frames.encode(fields))}
    result["bytes_beyond_agent"] = result["bytes"] - len(fields.get("agent_metadata", b""))
    if "status" in fields:
        result["status"] = frames.STATUS_NAMES.get(fields["status"], fields["status"])
    return result


@plays(steps.Twins)
def _play_twins(world: World, step: steps.Twins) -> None:
    channel, *numbers = step.twins
    first, second = (
        decoded(world.channel(str(channel))[nth(world, str(channel), int(n))].frames).get(
            step.field
        )
        for n in numbers
    )
    compare({"not": first}, second, f"{step.field} of the second message")


@plays(steps.PeerEvent)
def _play_peer_event(world: World, step: steps.PeerEvent) -> None:
    node = world.node(step.at)
    address = list(world.anyone(step.of).address)
    world.log(f"peer {step.peer}", node=step.at, peer=step.of)
    if step.peer == "silent":
        world.call(node, "silent", peer=address)
    else:
        world.call(node, "peer", peer=address, up=step.peer == "heard")
