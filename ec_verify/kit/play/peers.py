# SPDX-License-Identifier: Apache-2.0
"""Verbs of peers that the kit plays: consumers that ask, producers that answer."""

from __future__ import annotations

import json
from typing import Any

from ec_protocol.tables.files import spec_path
from ec_verify.kit.adapter import Unsupported
from ec_verify.kit.language import steps
from ec_verify.kit.language.times import ScheduleError
from ec_verify.kit.play.verbs import plays
from ec_verify.kit.play.wire import decoded, ends, hand_over, notice, nth, readable
from ec_verify.kit.world import frames
from ec_verify.kit.world.checks import CheckFailed, compare
from ec_verify.kit.world.nodes import Message, Played, identity_of
from ec_verify.kit.world.world import World

#: The fields of the extended form, and what is measured of an ack that has them.
_ONLY_EXTENDED = {*frames.OPTIONAL, "bytes", "bytes_beyond_agent"}


def _build(fields: dict[str, Any], world: World) -> dict[str, Any]:
    """Fields as a case writes them: hex and time expressions spelt out, absent left out."""
    result = {}
    for key, value in fields.items():
        if value == "<absent>":
            continue
        if value == "<compat>":
            value = world.compat()
        if isinstance(value, dict) and set(value) == {"hex"}:
            value = bytes.fromhex(value["hex"])
        elif isinstance(value, dict) and set(value) == {"time"}:
            value = world.seconds(value["time"])
        elif isinstance(value, dict) and set(value) == {"repeat", "times"}:
            value = value["repeat"] * value["times"]
        elif isinstance(value, dict) and set(value) == {"vector"}:
            value = bytes.fromhex(vector(value["vector"])["hex"])
        elif isinstance(value, dict) and set(value) == {"zeros"}:
            value = bytes(value["zeros"])
        elif isinstance(value, dict) and set(value) == {"float"}:
            value = float(value["float"])
        result[key] = value
    return result


# --------------------------------------------------------- played consumers
@plays(steps.Ask)
def _play_ask(world: World, step: steps.Ask) -> None:
    node, by = world.node(step.ask), _played(world, step.by)
    number = step.attempt if step.attempt is not None else len(world.named) + 1
    session = step.session or f"{step.by}.{number}"
    fields: dict[str, Any] = {
        "type": "req",
        "mm_hash": step.hash,
        "compatibility_hash": world.compat() if step.compat is None else step.compat,
        "session_id": session,
    }
    if step.version is not None:
        fields["connector_version"] = step.version
    if step.form == "extended" and not by.setup.old:
        fields.update(attempt_id=number, incarnation=by.process)
    fields = _build({**fields, **step.fields}, world)
    channel = f"{step.ask}>{step.by}"
    before = len(world.channel(channel))
    identity = identity_of(by.name, by.incarnation, step.alias)
    world.call(node, "request", identity=identity, frames=["", frames.encode(fields).hex()])
    answers = world.channel(channel)[before:]
    del world.channel(channel)[before:]
    if len(answers) != 1:
        raise CheckFailed("one answer to a request", f"{len(answers)}", clause="EC-8.1")
    ack = decoded(answers[0].frames)
    world.named[step.name or f"ask-{len(world.named) + 1}"] = {
        "hash": step.hash,
        "session": session,
        "ack": ack,
        "node": step.ask,
    }
    asked_for = {*(step.expect or {}), *step.differs} & _ONLY_EXTENDED
    if asked_for and ack.get("status") == 0 and "attempt_id" in fields and not node.extended:
        # It ignores what it does not know, as it should (EC-8.1), and answers in the old form.
        raise Unsupported(f"acks in the extended form: {', '.join(sorted(asked_for))}")
    compare(_times(step.expect or {}, world), readable(ack), "ack")
    for name, other in step.differs.items():
        compare({"not": world.named[other]["ack"].get(name)}, ack.get(name), f"ack.{name}")


@plays(steps.Bound)
def _play_bound(world: World, step: steps.Bound) -> None:
    node, by = world.node(step.bound), _played(world, step.by)
    fields = {
        "type": "req",
        "mm_hash": "nothing",
        "compatibility_hash": world.compat(),
        "session_id": f"{step.by}.bound",
        "connector_version": 2,
        "attempt_id": 1,
        **_build(step.fields, world),
    }
    frame = frames.encode(fields).hex()
    channel = world.channel(f"{step.bound}>{step.by}")
    before = len(channel)
    world.call(node, "request", identity=by.identity, frames=["", frame])
    answers = channel[before:]
    del channel[before:]
    optional = step.expect == "dropped" and set(step.fields) <= {"attempt_id", "incarnation"}
    if optional and answers and not node.extended:
        raise Unsupported("the optional fields of a request: it ignores them (EC-8.1)")
    compare(step.expect, "answered" if answers else "dropped", "the request")


def _times(expect: dict[str, Any], world: World) -> dict[str, Any]:
    result = {}
    for key, value in expect.items():
        if isinstance(value, dict) and set(value) == {"time"}:
            value = {"near": world.seconds(value["time"])}
        elif isinstance(value, dict) and set(value) == {"hex"}:
            value = bytes.fromhex(value["hex"])
        result[key] = value
    return result


@plays(steps.Notice)
def _play_send_notice(world: World, step: steps.Notice) -> None:
    node = world.node(step.notice)
    if step.of:
        grant = world.named[step.of]
        raw = frames.notice(grant["session"], grant["hash"])
    elif step.vector:
        raw = bytes.fromhex(vector(step.vector)["hex"])
    else:
        raw = bytes.fromhex(step.hex) if step.hex else step.text.encode()
    notice(world, node, raw)


@plays(steps.Pull)
def _play_pull(world: World, step: steps.Pull) -> None:
    """A played consumer READs what a grant names, from the region as it is now."""
    grant = world.named[step.pull]
    node = world.node(grant["node"])
    try:
        named = frames.pieces(grant["ack"], world.block_size)
    except frames.FrameError as exc:
        raise CheckFailed("an ack that names blocks", str(exc), clause="EC-8.7") from exc
    data = b"".join(world.peek(node, address - node.base, size) for address, size in named)
    want = world.content(grant["hash"])
    seen = "right" if data[: len(want)] == want else "wrong"
    compare(step.expect, seen, f"bytes of {grant['hash']}")


def _played(world: World, name: str) -> Played:
    if name not in world.played:
        raise ScheduleError(f"{name!r} is no peer that the kit plays")
    return world.played[name]


# --------------------------------------------------------- played producers
@plays(steps.Answer)
def _play_answer(world: World, step: steps.Answer) -> None:
    source, target = ends(step.answer)
    peer = _played(world, target)
    index = nth(world, step.answer, step.nth)
    waiting = world.channel(step.answer)
    request = decoded((waiting[index] if step.keep else waiting.pop(index)).frames)
    compare(_times(step.expect, world), request, "request")
    extended = (
        step.form == "extended"
        or step.lease is not None
        or not frames.OPTIONAL.isdisjoint(step.fields)
    )
    golden = frames.decode(["", vector(step.vector)["hex"]]) if step.vector else {}
    known = request.get("attempt_id") is not None or world.node(source).extended
    if (extended or "extents" in golden) and not known:
        # Who names no attempt does not know these fields and may ignore them (EC-8.1).
        raise Unsupported("an answer in the extended form: its requests ask for the old one")
    status = frames.STATUSES[step.status] if isinstance(step.status, str) else step.status
    mm_hash = str(request.get("mm_hash"))
    fields: dict[str, Any] = {
        "type": "ack",
        "mm_hash": mm_hash,
        "status": status,
        "session_id": request.get("session_id", ""),
    }
    # Only who names attempts is told extents (EC-8.7).
    unnamed = step.form == "auto" and request.get("attempt_id") is None
    old = step.form == "old" or peer.setup.old or unnamed
    if not old:
        fields.update(attempt_id=request.get("attempt_id"), incarnation=peer.process)
    if status == 0:
        extents = peer.where.get(mm_hash, ((0, 1),))
        fields["agent_metadata"] = peer.agent
        if old:
            fields["src_block_indices"] = [
                block for start, count in extents for block in range(start, start + count)
            ]
            fields["mem_descriptor"] = frames.descriptor(
                peer.base, peer.setup.blocks, world.block_size
            )
        else:
            lease = world.timers["lease_s"] if step.lease is None else world.seconds(step.lease)
            fields.update(
                lease_s=lease,
                base_addr=peer.base,
                block_size=world.block_size,
                extents=[list(extent) for extent in extents],
                nbytes=world.nbytes(mm_hash),
            )
    if golden:
        for name in ("mm_hash", "session_id", "attempt_id"):
            if name in golden:
                golden[name] = request.get(name)
        fields = golden
    fields = _build({**fields, **step.fields}, world)
    payload, back = frames.encode(fields), f"{target}>{source}"
    for bad in frames.damaged(payload, 0, step.damage):
        hand_over(world, back, Message("answer", ["", bad.hex()]))
    reply = Message("answer", ["", payload.hex()])
    world.log("sent", node=target, to=source, via="answer")
    world.send(back, reply)
    if not step.hold:
        world.channel(back).remove(reply)
        hand_over(world, back, reply)


@plays(steps.Raw)
def _play_raw(world: World, step: steps.Raw) -> None:
    """Frames as they are; a node must survive any, and drop what is no message."""
    source, target = ends(step.raw)
    peer = _played(world, source)
    if step.frames is not None:
        sent_frames = list(step.frames)
    else:
        if step.vector:
            payload = bytes.fromhex(vector(step.vector)["hex"])
        elif step.nested:
            payload = b"\x91" * step.nested + b"\xc0"
        elif isinstance(step.payload, dict):
            payload = frames.encode(_build(step.payload, world))
        else:
            payload = frames.encode(step.payload)
        sent_frames = ["", (payload if step.cut is None else payload[: step.cut]).hex()]
    via = "answer" if peer.setup.role == "producer" else "request"
    channel = f"{target}>{source}"
    before = len(world.channel(channel))
    if step.damage:
        for bad in frames.damaged(bytes.fromhex(sent_frames[-1]), 0, step.damage):
            hand_over(world, step.raw, Message(via, ["", bad.hex()]))
        del world.channel(channel)[before:]
        return
    hand_over(world, step.raw, Message(via, sent_frames))
    answers = world.channel(channel)[before:]
    if step.expect == "dropped":
        compare(0, len(answers), "answers")
    elif step.expect is not None:
        compare(1, len(answers), "answers")
        ack = readable(decoded(answers[0].frames))
        other = _version(sent_frames) not in (None, 2)
        if other and ack.get("status") == "NACK_VERSION" and world.case.clause != "EC-8.2":
            raise Unsupported("the version that this request names, which EC-8.2 is about")
        if isinstance(step.expect, dict):
            compare(_times(step.expect, world), ack, "ack")
    if via == "request":
        del world.channel(channel)[before:]


def _version(raw: list[str]) -> Any:
    """The version that a request names, if it is one and does."""
    try:
        return frames.decode(raw).get("connector_version")
    except frames.FrameError:
        return None


def vector(name: str) -> dict[str, Any]:
    """A golden wire vector of ``spec/wire``."""
    path = spec_path(f"wire/{name}.json")
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result
