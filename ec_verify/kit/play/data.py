# SPDX-License-Identifier: Apache-2.0
"""Verbs of the data plane, of time, of whole nodes, and the checks by behaviour."""

from __future__ import annotations

import json
from typing import Any

from ec_verify.kit.adapter import Unsupported
from ec_verify.kit.language import steps
from ec_verify.kit.language.times import ScheduleError
from ec_verify.kit.play.engine import engine_step, land, make_request, report
from ec_verify.kit.play.peers import vector
from ec_verify.kit.play.verbs import plays
from ec_verify.kit.play.wire import ends
from ec_verify.kit.world.checks import CheckFailed, compare
from ec_verify.kit.world.events import check_events
from ec_verify.kit.world.links import ImplementationError
from ec_verify.kit.world.nodes import Dma, Node, Played
from ec_verify.kit.world.world import World


# ------------------------------------------------------------------------- READs
def dma_of(world: World, name: str) -> Dma:
    """A READ by name.

    Raises:
        CheckFailed: The node has not posted it.
    """
    if name.endswith("#latest"):
        node = name.removesuffix("#latest")
        name = f"{node}#{world.node(node).posted}"
    if name not in world.dmas:
        raise CheckFailed(f"READ {name} to be posted", f"{sorted(world.dmas) or 'none'}")
    return world.dmas[name]


def move_piece(world: World, dma: Dma) -> bool:
    """Move one block, as the source is at this moment; False when it hangs.

    A process that is gone answers no READ: the transfer then hangs, having spoilt the
    block that it was writing (EC-A.1).
    """
    node = world.node(dma.node)
    local, remote, size = dma.pieces[dma.done]
    data = _source_bytes(world, dma, remote, size)
    world.poke(node, local, b"\xbd" * size if data is None else data)
    if data is None:
        return False
    dma.done += 1
    return True


def _source_bytes(world: World, dma: Dma, remote: int, size: int) -> bytes | None:
    source = world.anyone(dma.source) if dma.source is not None else None
    if source is None or not source.alive or source.incarnation != dma.source_incarnation:
        return None
    offset = remote - source.base
    capacity = source.setup.blocks * world.block_size
    if offset < 0 or offset + size > capacity:
        raise CheckFailed(
            "a READ of the producer's region", f"address {remote:#x}", clause="EC-9.3"
        )
    if isinstance(source, Played):
        return bytes(source.memory[offset : offset + size])
    return world.peek(source, offset, size)


def say(world: World, dma: Dma, event: str) -> None:
    """The data plane tells the node something about a READ."""
    world.log(f"read {event}", node=dma.node, dma=dma.name)
    node = world.node(dma.node)
    if node.alive:
        world.call(node, "data", read=dma.read, event=event)


@plays(steps.Dma)
def _play_dma(world: World, step: steps.Dma) -> None:
    what = dma_of(world, step.dma)
    if step.do == "look":
        seen = {
            "remote": [[address, size] for _, address, size in what.pieces],
            "bytes": sum(size for _, _, size in what.pieces),
            "first": what.pieces[0][1],
            "last": what.pieces[-1][1],
            "source": what.source,
            "notice": what.notice.decode(errors="replace"),
        }
        compare(step.expect, seen, f"READ {what.name}")
        return
    if step.do == "move":
        for _ in range(step.blocks if step.blocks is not None else len(what.pieces)):
            if what.done == len(what.pieces) or what.closed or not move_piece(world, what):
                break
        return
    if step.do == "finish":
        while what.done < len(what.pieces) and not what.closed:
            if not move_piece(world, what):
                raise ScheduleError(f"{what.name}: a process that is gone completes no READ")
    if step.do in ("finish", "done"):
        _seen_done(world, what)
    elif step.do == "fail":
        if what.reported:
            raise ScheduleError(f"{what.name} was seen done: it cannot fail any more")
        what.lost = True
        say(world, what, "error")
    else:
        # From here on nothing is written: the proof.
        what.closed = True
        say(world, what, "aborted" if step.do == "aborted" else "endpoint_closed")


def _seen_done(world: World, what: Dma) -> None:
    if what.done < len(what.pieces):
        raise ScheduleError(f"{what.name} is not finished: it cannot be seen done")
    world.notice_of(what)
    what.reported = True
    world.watch.done(
        what.node,
        what.mm_hash,
        what.notice,
        world.now(world.node(what.node)),
        writer=what.writer,
        lost=what.lost or what.abandoned or what.closed,
    )
    say(world, what, "done")


@plays(steps.Settle)
def _play_settle(world: World, step: steps.Settle) -> None:
    node = world.node(step.settle)
    for run in list(node.copies.values()):
        land(world, node, run)
    for what in list(world.dmas.values()) if step.reads else ():
        if what.node == node.name and not what.reported and not what.closed:
            _come_to_an_end(world, what)


def _come_to_an_end(world: World, what: Dma) -> None:
    """A READ that is well is done; one that is not stops, which proves that it is over.

    The proof is told to whoever takes it. For others it is a fact all the same: what
    they do about a READ that reports an error, or nothing, is theirs.
    """
    well = not (what.lost or what.abandoned)
    while well and what.done < len(what.pieces):
        well = move_piece(world, what)
    if well:
        _seen_done(world, what)
        return
    if not what.lost:
        what.lost = True
        say(world, what, "error")
    what.closed = True
    try:
        say(world, what, "endpoint_closed")
    except Unsupported:
        what.untold = True
        world.log("untold", node=what.node, dma=what.name)


@plays(steps.Handle)
def _play_handle(world: World, step: steps.Handle) -> None:
    what = dma_of(world, step.handle)
    compare(step.expect, "released" if what.released else "kept", f"handle of READ {what.name}")


@plays(steps.Posted)
def _play_posted(world: World, step: steps.Posted) -> None:
    compare(step.count, world.node(step.posted).posted, f"READs posted by {step.posted}")


@plays(steps.SameBlocks)
def _play_same_blocks(world: World, step: steps.SameBlocks) -> None:
    first, second = (dma_of(world, name) for name in step.same_blocks)
    compare(sorted(first.spans), sorted(second.spans), f"blocks of READ {second.name}")


@plays(steps.Overwrite)
def _play_overwrite(world: World, step: steps.Overwrite) -> None:
    peer = world.played.get(step.at)
    if peer is None:
        raise ScheduleError(f"{step.at!r} is no peer that the kit plays")
    peer.write(step.overwrite, b"\xad" * world.nbytes(step.overwrite))


@plays(steps.Prepare)
def _play_prepare(world: World, step: steps.Prepare) -> None:
    world.call(world.node(step.prepare), "prepare_takes", seconds=world.seconds(step.takes))


# -------------------------------------------------------------------------- time
@plays(steps.Advance)
def _play_advance(world: World, step: steps.Advance) -> None:
    _to(world, world.time + world.seconds(step.advance), quiet=False)


@plays(steps.Until)
def _play_until(world: World, step: steps.Until) -> None:
    _to(world, world.seconds(step.until), quiet=step.quiet)


def _to(world: World, moment: float, *, quiet: bool) -> None:
    if moment < world.time:
        raise ScheduleError(f"time cannot go back by {world.time - moment:g} s")
    world.time = moment
    world.log("time")
    if not quiet:
        for node in world.nodes.values():
            if node.alive:
                world.call(node, "tick")


@plays(steps.Tick)
def _play_tick(world: World, step: steps.Tick) -> None:
    node = world.node(step.tick)
    if node.alive:
        world.call(node, "tick")


@plays(steps.Mark)
def _play_mark(world: World, step: steps.Mark) -> None:
    world.marks[step.mark] = world.time


# ------------------------------------------------------------------------- nodes
@plays(steps.Crash)
def _play_crash(world: World, step: steps.Crash) -> None:
    _crash(world, step.crash)


def _crash(world: World, name: str) -> None:
    world.log("crash", node=name)
    if name in world.played:
        world.played[name].alive = False
        return
    world.kill(world.node(name))


@plays(steps.Restart)
def _play_restart(world: World, step: steps.Restart) -> None:
    _crash(world, step.restart)
    peer = world.played.get(step.restart)
    if peer is not None:
        peer.incarnation += 1
        peer.alive = True
        peer.fill({mm_hash: world.nbytes(mm_hash) for mm_hash in peer.setup.holds})
        world.log("start", node=peer.name, incarnation=peer.incarnation)
        return
    world.start(world.node(step.restart))


@plays(steps.Stop)
def _play_stop(world: World, step: steps.Stop) -> None:
    node = world.node(step.stop)
    world.call(node, "stop")
    world.log("stop", node=step.stop)


@plays(steps.Kill)
def _play_kill(world: World, step: steps.Kill) -> None:
    node = world.node(step.kill)
    read = dma_of(world, step.of).read if step.of else None
    result = world.call(node, "kill", kind=step.process, read=read)
    # What comes for the agent of one that is gone reaches nobody.
    node.agent = bytes.fromhex(result["agent"])
    world.log("kill", node=node.name, process=step.process)


@plays(steps.Start)
def _play_start(world: World, step: steps.Start) -> None:
    node = world.node(step.start)
    try:
        world.start(node, timers=step.timers)
    except ImplementationError as exc:
        if step.ok:
            raise
        for word in step.error:
            if word not in str(exc):
                raise CheckFailed(f"an error that names {word}", str(exc)) from exc
        return
    if not step.ok:
        raise CheckFailed("an error at start", f"{step.start} started")


# ------------------------------------------------------------- checks by behaviour
def _probe(world: World, node: Node, items: list[str], *, media: bool = True) -> dict[str, Any]:
    world.probes += 1
    return make_request(world, node, f"probe-{world.probes}", items, media=media)


def _end(world: World, node: Node, request: dict[str, Any]) -> None:
    world.call(node, "finish", request=request, aborted=True)
    del node.requests[request["id"]]


def _delivered(world: World, name: str) -> bool:
    """Whether a message such as ``"P>C#2"``, the second ever sent, has reached its target."""
    channel, _, number = name.partition("#")
    ends(channel)
    if not number.isdecimal() or int(number) == 0:
        raise ScheduleError(f"{name!r} is no message: expected A>B#1")
    sent = world.sent.get(channel, [])
    return len(sent) >= int(number) and sent[int(number) - 1].delivered


@plays(steps.Servable)
def _play_servable(world: World, step: steps.Servable) -> None:
    node = world.node(step.at)
    if step.after and not _delivered(world, step.after):
        world.log("impossible", number="", why=f"message {step.after} was not delivered")
        return
    request = _probe(world, node, [step.servable])
    ready = world.call(node, "available", request=request)["ready"]
    has = ready and world.has(node, request, 0)
    world.call(node, "build")
    _end(world, node, request)
    compare(step.expect, has, f"{step.servable} servable at {step.at}")


@plays(steps.Load)
def _play_load(world: World, step: steps.Load) -> None:
    node = world.node(step.at)
    request = _probe(world, node, [step.load])
    outcome = engine_step(world, node, [request["id"]])
    if outcome[request["id"]] != {step.load: "load"}:
        raise CheckFailed(f"{step.load} to be loaded at {step.at}", f"{outcome[request['id']]}")
    for name in node.step_items:
        land(world, node, node.copies[name])
    _end(world, node, request)


@plays(steps.Room)
def _play_room(world: World, step: steps.Room) -> None:
    node = world.node(step.at)
    world.probes += 1
    mm_hash = f"room-{world.probes}"
    world.setup.encodings[mm_hash] = step.room
    request = _probe(world, node, [mm_hash])
    engine_step(world, node, [request["id"]])
    saves = [node.copies[name] for name in node.step_items]
    for run in saves:
        for rank in sorted(run.waiting):
            report(world, node, run, rank, landed=False)
    _end(world, node, request)
    compare(step.expect, bool(saves), f"room for {step.room} blocks at {step.at}")


@plays(steps.Idle)
def _play_idle(world: World, step: steps.Idle) -> None:
    pending = bool(world.call(world.node(step.idle), "pending")["pending"])
    compare(step.expect, not pending, f"{step.idle} idle")


@plays(steps.Blocks)
def _play_blocks(world: World, step: steps.Blocks) -> None:
    compare(step.expect, world.call(world.node(step.blocks), "blocks"), "blocks")


@plays(steps.Events)
def _play_events(world: World, step: steps.Events) -> None:
    check_events(world.node(step.events), step)


@plays(steps.Config)
def _play_config(world: World, step: steps.Config) -> None:
    result = world.call(world.node(step.at), "config", settings=step.config)
    error = str(result.get("error", ""))
    compare(step.ok, bool(result["ok"]), f"configuration {step.config} ({error}) accepted")
    for word in step.error:
        if word not in error:
            raise CheckFailed(f"an error that names {word!r}", error or "none")


@plays(steps.CompatHash)
def _play_compat_hash(world: World, step: steps.CompatHash) -> None:
    facts, want = step.facts, step.expect
    if step.vector:
        golden = vector(step.vector)
        facts, want = golden["fields"], golden["hex"]
    seen = world.call(world.node(step.compat_hash), "compat_hash", facts=facts)["hash"]
    compare(want, seen, "compatibility hash")


@plays(steps.Region)
def _play_region(world: World, step: steps.Region) -> None:
    node = world.node(step.at)
    text = json.dumps(step.args)
    for name, value in world.saved.items():
        text = text.replace(f"<{name}>", str(value))
    try:
        result = world.call(node, "region", action=step.region, args=json.loads(text))
    except Unsupported:
        raise
    error = str(result.get("error", ""))
    if step.error and not error:
        raise CheckFailed(f"an error that names {step.error}", "none")
    if error and not step.error:
        raise CheckFailed(f"region {step.region} to succeed", error)
    for word in step.error:
        if word not in error:
            raise CheckFailed(f"an error that names {word!r}", error)
    compare(step.expect, result, f"region {step.region}")
    for name, key in step.save.items():
        world.saved[name] = result.get(key)
