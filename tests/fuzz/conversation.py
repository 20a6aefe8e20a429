# SPDX-License-Identifier: Apache-2.0
"""Both ends of the protocol and a network between them that does as the input says."""

from __future__ import annotations

from typing import Final

from ec_protocol.errors import RemoteProtocolError
from ec_protocol.p2p import wire
from tests.world.core import BLOCK, CONSUMER, PRODUCER, World

_PICTURES: Final = {"picture-1": 100, "picture-2": 60, "picture-3": 130}


def conversation(data: bytes) -> None:
    """Frames in any order, again, too late, of another process; both ends keep their word.

    Each two bytes are a step and what it is about.
    """
    world = World(blocks=8, producer_blocks=8)
    names = list(_PICTURES)
    kept: list[tuple[str, bytes]] = []
    for step, which in zip(data[::2], data[1::2], strict=False):
        name = names[which % len(names)]
        match step % 13:
            case 0:
                world.fetch(name, _PICTURES[name], f"request-{which % 5}")
            case 1:
                if world.producer.node.tier.get(name) is None:
                    _save(world, name)
            case 2:
                kept += [("request", frame) for frame in world.requests]
                world.deliver_requests()
            case 3:
                kept += [("ack", frame) for frame in world.acks]
                world.deliver_acks()
            case 4:
                world.deliver_notices()
            case 5 if world.prepared:
                world.post(sorted(world.prepared)[which % len(world.prepared)])
            case 6 if world.posted:
                _end(world, sorted(world.posted)[which % len(world.posted)])
            case 7:
                world.tick((0.01, 0.5, 3.0, 40.0)[which % 4])
            case 8 if kept:
                _again(world, *kept[which % len(kept)])
            case 9 if kept:
                kind, frame = kept[which % len(kept)]
                kept.append((kind, _changed(frame, which)))
            case 10:
                world.restart_producer()
            case 11:
                world.node.lost(PRODUCER, world.now)
            case 12:
                world.node.leave(f"request-{which % 5}", world.now)
        world.carry_out()
        del kept[:-64]
    world.check()


def _end(world: World, attempt: int) -> None:
    """A READ ends; out of a process that is gone nothing can be read."""
    if world.posted[attempt].agent_metadata == world.producer.metadata:
        world.finish(attempt)
    else:
        world.node.read_failed(attempt, world.now)
        world.carry_out()
        world.node.proven([attempt], world.now)
        world.posted.pop(attempt, None)


def _save(world: World, name: str) -> None:
    tier = world.producer.node.tier
    if tier.free_blocks * BLOCK >= _PICTURES[name] + BLOCK:
        world.producer.save(name, _PICTURES[name])


def _again(world: World, kind: str, frame: bytes) -> None:
    """A frame comes once more, as a peer may send it."""
    try:
        if kind == "request":
            req = wire.decode_request([b"", frame])
            world.producer.node.request(CONSUMER, req, world.now)
        else:
            answer = world.node.read_answer([b"", frame])
            if answer.agent_metadata in (b"", world.producer.metadata):
                world.node.answer(PRODUCER, answer, world.now)
    except RemoteProtocolError:
        return


def _changed(frame: bytes, which: int) -> bytes:
    at = which * 7 % len(frame)
    return frame[:at] + bytes([frame[at] ^ (1 << which % 8)]) + frame[at + 1 :]
