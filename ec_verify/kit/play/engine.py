# SPDX-License-Identifier: Apache-2.0
"""Verbs of the engine: requests, steps, copies, announcements."""

from __future__ import annotations

from typing import Any

from ec_verify.kit.adapter import Unsupported
from ec_verify.kit.language import steps
from ec_verify.kit.language.times import ScheduleError
from ec_verify.kit.play.verbs import plays
from ec_verify.kit.world.checks import CheckFailed, compare, violated
from ec_verify.kit.world.nodes import CopyRun, Node
from ec_verify.kit.world.world import World

PROBE = "probe"


def make_request(
    world: World,
    node: Node,
    request_id: str,
    items: list[str],
    *,
    media: bool = True,
    params: Any = None,
) -> dict[str, Any]:
    """Declare a request at a node."""
    request = {
        "id": request_id,
        "items": [
            {
                "hash": mm_hash,
                "bytes": world.nbytes(mm_hash),
                "shape": world.shape(mm_hash),
                "media": media,
            }
            for mm_hash in items
        ],
        "params": params,
    }
    node.requests[request_id] = request
    return request


def announcement(world: World, source: str, items: list[str], change: dict[str, Any]) -> Any:
    """What a producer announces for encodings (EC-11.1), with fields changed."""
    host, port = world.anyone(source).address
    result: dict[str, Any] = {}
    for mm_hash in items:
        row = {
            "metadata": {},
            "peer_host": host,
            "peer_port": port,
            "size_bytes": world.nbytes(mm_hash),
            "shape": world.shape(mm_hash),
            **change,
        }
        result[mm_hash] = {k: v for k, v in row.items() if v != "<absent>"}
    return result


def request_of(node: Node, request_id: str) -> dict[str, Any]:
    """A request declared before."""
    if request_id not in node.requests:
        raise ScheduleError(f"no request {request_id!r} at {node.name}")
    return node.requests[request_id]


def owner_of(world: World, request_id: str) -> Node:
    """The node at which a request was declared."""
    for node in world.nodes.values():
        if request_id in node.requests:
            return node
    raise ScheduleError(f"no request {request_id!r} anywhere")


def engine_step(world: World, node: Node, run: list[str]) -> dict[str, Any]:
    """One engine step; returns per request ``deferred``, ``failed`` or per item what is done.

    Within a request, items that are encoded are allocated before items that are loaded,
    as vLLM's scheduler does: the order that a promise has to survive.
    """
    outcome: dict[str, Any] = {}
    promised: set[str] = set()
    for request_id in run:
        request = request_of(node, request_id)
        ready = world.call(node, "available", request=request)["ready"]
        if not ready:
            outcome[request_id] = "deferred"
            continue
        hashes = [item["hash"] for item in request["items"]]
        has = [world.has(node, request, i) for i in range(len(hashes))]
        for i in sorted(range(len(hashes)), key=lambda i: has[i]):
            world.call(node, "alloc", request=request, item=i)
        promised.update(h for h, promise in zip(hashes, has, strict=True) if promise)
        outcome[request_id] = {
            h: "load" if promise else "encode" for h, promise in zip(hashes, has, strict=True)
        }
    runs = [world.add_copy(node, raw) for raw in world.call(node, "build")["copies"]]
    node.step_items = [run.name for run in runs]
    loads = {run.mm_hash for run in runs if run.kind == "load"}
    for mm_hash in sorted(promised - loads):
        raise violated(
            "PromiseKept", "EC-3.3", f"a load of {mm_hash}, which was promised", "none in the step"
        )
    try:
        for request_id in world.call(node, "failed")["requests"]:
            outcome[request_id] = "failed"
    except Unsupported:
        pass
    return outcome


def check_outcome(wanted: Any, seen: Any, what: str) -> None:
    """Compare what became of a request in a step with the expectation."""
    if isinstance(wanted, str) and isinstance(seen, dict):
        for mm_hash, done in seen.items():
            if done != wanted:
                raise CheckFailed(f"{what}: {wanted}", f"{mm_hash}: {done}")
        return
    compare(wanted, seen, what)


@plays(steps.Request)
def _play_request(world: World, step: steps.Request) -> None:
    node = world.node(step.at)
    params = None
    if step.params is not steps.UNSET:
        params = step.params
    elif step.source is not None:
        params = announcement(world, step.source, step.items, step.change)
    make_request(world, node, step.request, step.items, media=step.media, params=params)


@plays(steps.EngineStep)
def _play_one_step(world: World, step: steps.EngineStep) -> None:
    node = world.node(step.step)
    outcome = engine_step(world, node, step.run)
    for request_id, wanted in step.expect.items():
        check_outcome(wanted, outcome.get(request_id), f"request {request_id}")
    runs = [node.copies[name] for name in node.step_items]
    for wanted_hashes, kind in ((step.saves, "save"), (step.loads, "load")):
        if wanted_hashes is not None:
            seen = sorted(run.mm_hash for run in runs if run.kind == kind)
            compare(sorted(wanted_hashes), seen, f"{kind}s of the step")
    for name, ranks in step.ranks.items():
        compare(sorted(ranks), sorted(copy_of(node, name).waiting), f"ranks of {name}")
    for name, number in step.extents.items():
        compare(number, len(copy_of(node, name).spans), f"extents of {name}")


@plays(steps.Hook)
def _play_hook(world: World, step: steps.Hook) -> None:
    node = world.node(step.at)
    if step.hook == "build":
        node.step_items = [
            world.add_copy(node, raw).name for raw in world.call(node, "build")["copies"]
        ]
        seen: Any = node.step_items
    elif step.hook == "failed":
        seen = world.call(node, "failed")["requests"]
    else:
        what = request_of(node, step.request)
        if step.hook == "available":
            seen = world.call(node, "available", request=what)["ready"]
        else:
            hashes = [item["hash"] for item in what["items"]]
            item = hashes.index(step.item)
            if step.hook == "has":
                seen = world.has(node, what, item)
            else:
                seen = world.call(node, step.hook, request=what, item=item)
    if step.expect is not steps.UNSET:
        compare(step.expect, seen, f"{step.hook} {step.request} {step.item}".strip())


# ----------------------------------------------------------------------- copies
def copy_of(node: Node, name: str) -> CopyRun:
    """A copy by name; the latest of that name that is not over, if there are several."""
    if "#" in name:
        first = name.removesuffix("#1")
        if first in node.copies:
            return node.copies[first]
    candidates = [r for n, r in node.copies.items() if n == name or n.startswith(name + "#")]
    if not candidates:
        raise CheckFailed(f"a copy {name!r} at {node.name}", f"{sorted(node.copies)}")
    return next((r for r in reversed(candidates) if r.waiting), candidates[-1])


def move(world: World, node: Node, run: CopyRun, rank: int, blocks: int | None) -> None:
    """A rank's device moves some blocks of a copy, or all that are left.

    Raises:
        CheckFailed: A load read something else than the encoding.
    """
    want = world.content(run.mm_hash)
    at = 0
    left = None if blocks is None else blocks * world.block_size
    done = run.moved.get(rank, 0)
    for offset, size in run.spans:
        skip = max(0, min(size, done - at))
        begin, part = at + skip, size - skip
        at += size
        if left is not None:
            part = min(part, left)
            left -= part
        if part <= 0:
            continue
        if run.kind == "save":
            world.poke(node, offset + skip, want[begin : begin + part])
        elif world.peek(node, offset + skip, part) != want[begin : begin + part]:
            raise violated(
                "NoWrongBytes",
                "EC-2.2",
                f"rank {rank} to load the bytes of {run.mm_hash}",
                f"other bytes at {offset + skip}",
            )
        run.moved[rank] = run.moved.get(rank, 0) + part
    world.log("moved", node=node.name, copy=run.name, rank=rank)


def report(world: World, node: Node, run: CopyRun, rank: int, *, landed: bool) -> bool:
    """A rank reports a copy; returns whether the implementation took the report."""
    taking_part = rank in run.waiting
    run.waiting.discard(rank)
    result = world.call(node, "report", copy=run.copy, rank=rank, landed=landed)
    accepted = bool(result.get("accepted", True))
    if taking_part and not accepted:
        raise CheckFailed(f"the report of rank {rank} on {run.name} to be taken", "refused")
    return accepted


def land(world: World, node: Node, run: CopyRun) -> None:
    """Every rank that has not reported moves what is left and reports."""
    for rank in sorted(run.waiting):
        move(world, node, run, rank, None)
        report(world, node, run, rank, landed=True)


@plays(steps.Copy)
def _play_copy(world: World, step: steps.Copy) -> None:
    node = world.node(step.at)
    if step.id is not steps.UNSET:
        rank = step.rank or 0
        args = {"copy": step.id, "rank": rank, "landed": step.landed}
        accepted = bool(world.call(node, "report", **args).get("accepted", True))
        compare(step.expect, "accepted" if accepted else "refused", f"report on copy {step.id}")
        return
    run = copy_of(node, step.copy)
    ranks = [step.rank] if step.rank is not None else sorted(run.waiting)
    if step.do == "report" and step.rank is None and not ranks:
        ranks = [0]
    for rank in ranks:
        if step.do in ("land", "move"):
            move(world, node, run, rank, step.blocks if step.do == "move" else None)
        if step.do == "move":
            continue
        landed = step.landed if step.do == "report" else step.do == "land"
        accepted = report(world, node, run, rank, landed=landed)
        if step.expect is not None:
            seen = "accepted" if accepted else "refused"
            compare(step.expect, seen, f"report of rank {rank} on {run.name}")


@plays(steps.Resize)
def _play_resize(world: World, step: steps.Resize) -> None:
    world.setup.encodings[step.resize] = step.blocks


@plays(steps.Store)
def _play_store(world: World, step: steps.Store) -> None:
    node = world.node(step.at)
    world.probes += 1
    name = f"store-{world.probes}"
    what = make_request(world, node, name, [step.store])
    engine_step(world, node, [name])
    run = next((node.copies[n] for n in node.step_items if node.copies[n].kind == "save"), None)
    if run is None:
        raise CheckFailed(f"{step.store} to be saved at {step.at}", "no save in the step")
    land(world, node, run)
    world.call(node, "finish", request=what, aborted=True)
    del node.requests[name]


@plays(steps.Finish)
def _play_finish(world: World, step: steps.Finish) -> None:
    node = owner_of(world, step.finish)
    what = node.requests.pop(step.finish)
    params = world.call(node, "finish", request=what, aborted=step.aborted).get("params")
    for mm_hash, row in (params or {}).items():
        address = [row.get("peer_host"), row.get("peer_port")]
        whole = address == list(node.address)
        if not whole and (address != [None, None] or row.get("metadata")):
            raise violated(
                "AnnounceWhole",
                "EC-11.1",
                f"{mm_hash} announced with metadata and address, or with neither",
                f"{row!r:.200}",
            )
    for mm_hash, wanted in step.expect.items():
        row = (params or {}).get(mm_hash)
        if wanted in ("announced", "empty"):
            seen = "announced" if row and row.get("peer_host") is not None else "empty"
            compare(wanted, seen, f"announcement of {mm_hash}")
        else:
            compare(wanted, row, f"announcement of {mm_hash}")


# ---------------------------------------------------------------------- workers
@plays(steps.Work)
def _play_work(world: World, step: steps.Work) -> None:
    node = world.node(step.work)
    result = world.call(node, "work", rank=step.rank, held=step.held, encoded=step.encoded)
    if step.started is not None:
        names = {run.copy: run.name for run in node.copies.values()}
        seen = sorted(names.get(c, str(c)) for c in result["started"])
        compare(sorted(step.started), seen, f"copies that rank {step.rank} started")
    _worker_reports(world, node, step.rank, result["reports"], step.reports)


@plays(steps.Copied)
def _play_copied(world: World, step: steps.Copied) -> None:
    node = world.node(step.at)
    run = copy_of(node, step.copied)
    if step.ok:
        move(world, node, run, step.rank, None)
    result = world.call(node, "copied", rank=step.rank, copy=run.copy, ok=step.ok)
    _worker_reports(world, node, step.rank, result["reports"], step.reports)


def _worker_reports(
    world: World,
    node: Node,
    rank: int,
    reports: list[list[Any]],
    wanted: dict[str, bool] | None,
) -> None:
    """Check what a rank reports, and hand it to the scheduler."""
    by_id = {run.copy: run for run in node.copies.values()}
    seen = {}
    for copy_id, landed in reports:
        run = by_id.get(copy_id)
        if run is None or rank not in run.waiting:
            raise CheckFailed(
                f"one report of rank {rank} on each of its copies",
                f"a report on copy {copy_id} too many",
                clause="EC-4.1",
                level="MUST",
            )
        seen[run.name] = bool(landed)
        report(world, node, run, rank, landed=bool(landed))
    if wanted is not None:
        compare(sorted(wanted.items()), sorted(seen.items()), f"reports of rank {rank}")
