# SPDX-License-Identifier: Apache-2.0
"""Random schedules: what nobody thought of, found by the invariants alone.

A walk lets two instances of an implementation work with each other under a network that
delays, loses, repeats and reorders, a data plane that tears, hangs and fails, engine
steps that overlap, processes that die, and time that passes at bad moments. It expects
nothing of any single step; the kit's invariants are watched throughout. At the end
everything is allowed to finish, and then nothing may be left: no block, no request, no
engine that must go on stepping (Progress, Conserved).

``walk_failures`` has what becomes of a walk that fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ec_verify.kit.adapter import Unsupported
from ec_verify.kit.language.schedule import Case, NodeSetup, Setup
from ec_verify.kit.play.player import play_steps
from ec_verify.kit.runner import Result, run_case
from ec_verify.kit.world.checks import CheckFailed
from ec_verify.kit.world.links import ImplementationError, Link
from ec_verify.kit.world.nodes import CopyRun, Dma, Node
from ec_verify.kit.world.world import World

Step = dict[str, Any]

ENCODINGS: Final = {f"{letter}{size}": size for letter in "ABDE" for size in (1, 2, 3, 4)}
#: Short, and close to each other: any two may run out in either order.
TIMERS: Final = {
    "ack_timeout_s": 1.0,
    "read_timeout_s": 2.5,
    "lease_s": 4.0,
    "lease_margin_s": 0.25,
    "min_read_s": 0.125,
    "quarantine_s": 6.0,
    "fetch_budget_s": 8.0,
    "announce_hold_s": 1.5,
    "fetched_hold_s": 2.0,
}
_WAITS: Final = (
    ("eps", 5),
    ("retry_interval_s", 5),
    ("min_read_s", 3),
    ("0.5", 5),
    ("ack_timeout_s", 4),
    ("announce_hold_s", 3),
    ("read_timeout_s", 3),
    ("lease_s", 4),
    ("heartbeat_timeout_s", 2),
    ("quarantine_s", 1),
)


def new_case(seed: int) -> Case:
    """The case of a walk before its first step; every fourth seed has the same nodes.

    A clock that is two per cent fast is within what ``lease_margin_s`` covers (EC-A.2).
    """
    shapes = (
        {"C": NodeSetup(blocks=10, ranks=2), "P": NodeSetup(blocks=10)},
        {"C": NodeSetup(blocks=6), "P": NodeSetup(blocks=12, rate=1.02)},
        {"C": NodeSetup(blocks=8), "P": NodeSetup(blocks=10), "Q": NodeSetup(blocks=8, ranks=2)},
        {"C": NodeSetup(blocks=9, ranks=3, rate=1.02), "P": NodeSetup(blocks=7)},
    )
    setup = Setup(
        nodes=shapes[seed % len(shapes)],
        encodings=dict(ENCODINGS),
        timers=dict(TIMERS),
    )
    return Case(
        id=f"walk-{seed}",
        area="read",
        title=f"Random schedule {seed}",
        clause="EC-2.2",
        setup=setup,
        steps=[],
        note="made by ec-protocol conformance walk",
    )


@dataclass
class Walk:
    """One random schedule, chosen step by step from what is possible.

    Attributes:
        world: The state of the case so far.
        dice: The source of chance.
        steps: What was played.
        proofs: Whether READs may end by the teardown of their endpoint.
    """

    world: World
    dice: random.Random
    steps: list[Step] = field(default_factory=list)
    requests: int = 0
    proofs: bool = True

    def play(self, *steps: Step) -> None:
        """Play steps and remember them."""
        for step in steps:
            self.steps.append(step)
            play_steps(self.world, [step], f"walk {len(self.steps)}")

    def one(self) -> None:
        """Play one possible step."""
        moves = [(weight, make) for weight, make in self._moves() if weight > 0]
        (make,) = self.dice.choices([m for _, m in moves], [w for w, _ in moves])
        self.play(make())

    # --------------------------------------------------------------------- choices
    def _moves(self) -> list[tuple[int, Callable[[], Step]]]:
        channels = [name for name, waiting in self.world.channels.items() if waiting]
        running = self._running()
        active = [
            dma
            for dma in self.world.dmas.values()
            if not dma.reported and (self.proofs or not dma.closed)
        ]
        live = [(node, r) for node in self._nodes() for r in node.requests]
        return [
            (5 if len(live) < 6 else 1, self._request),
            (10 if len(live) < 12 else 1, self._fetch),
            (4 if len(live) < 12 else 1, self._save),
            (12 if live else 0, self._engine_step),
            (3, lambda: {"step": self.dice.choice(self._nodes()).name}),
            (3 if live else 0, lambda: self._finish(self.dice.choice(live)[1])),
            (14 if running else 0, lambda: self._copy(*self.dice.choice(running))),
            (24 if channels else 0, lambda: self._message(self.dice.choice(channels))),
            (20 if active else 0, lambda: self._read(self.dice.choice(active))),
            (5, self._wait),
            (4 if channels or active else 0, lambda: self._oversleep(channels, active)),
            (1 if self.dice.random() < 0.4 else 0, self._connection),
            (1 if self.dice.random() < 0.2 else 0, self._restart),
            (1 if self._mortals() else 0, self._kill),
        ]

    def _nodes(self) -> list[Node]:
        return [node for node in self.world.nodes.values() if node.alive]

    def _mortals(self) -> list[Node]:
        """Those whose data processes may end by themselves."""
        return [node for node in self._nodes() if node.processes]

    def _running(self) -> list[tuple[Node, CopyRun]]:
        return [
            (node, run) for node in self._nodes() for run in node.copies.values() if run.waiting
        ]

    def _request(self) -> Step:
        self.requests += 1
        node = self.dice.choice(self._nodes()).name
        items = self.dice.sample(sorted(ENCODINGS), self.dice.choice((1, 1, 1, 2, 3)))
        return {"request": f"r{self.requests}", "at": node, "items": items}

    def _save(self) -> Step:
        """A request that encodes, its step, and the end of the node's copies."""
        step = self._request()
        self.play(step, {"step": step["at"], "run": [step["request"]]})
        return {"settle": step["at"]}

    def _fetch(self) -> Step:
        """A request for what the other has, or had, or is about to have, and its first step."""
        names = sorted(self.world.nodes)
        node, other = self.dice.choice((("C", "P"), ("C", "P"), self.dice.sample(names, 2)))
        here, there = self.world.nodes[node], self.world.nodes[other]
        local = {run.mm_hash for run in here.copies.values()}
        saves = [run.mm_hash for run in there.copies.values() if run.kind == "save"]
        latest = set(saves[-4:])
        wanted = sorted(latest - local) or sorted(latest) or sorted(ENCODINGS)
        items = self.dice.sample(wanted, min(len(wanted), self.dice.choice((1, 1, 2))))
        self.requests += 1
        name = f"r{self.requests}"
        media = self.dice.random() < 0.8
        self.play({"request": name, "at": node, "items": items, "from": other, "media": media})
        return {"step": node, "run": [name]}

    def _engine_step(self) -> Step:
        node = self.dice.choice([node for node in self._nodes() if node.requests])
        count = min(len(node.requests), self.dice.choice((1, 1, 2, 3)))
        return {"step": node.name, "run": self.dice.sample(sorted(node.requests), count)}

    def _finish(self, request: str) -> Step:
        return {"finish": request, "aborted": self.dice.random() < 0.5}

    def _copy(self, node: Node, run: CopyRun) -> Step:
        # Names are of the first copy of a kind; a later one has its number.
        name = run.name if "#" in run.name else f"{run.name}#1"
        step: Step = {"copy": name, "at": node.name}
        rank = self.dice.choice(sorted(run.waiting))
        return self.dice.choice(
            (
                step,
                step,
                {**step, "rank": rank},
                {**step, "do": "move", "rank": rank, "blocks": 1},
                {**step, "do": "skip", "rank": rank},
            )
        )

    def _message(self, channel: str) -> Step:
        waiting = len(self.world.channels[channel])
        nth = self.dice.choice((1, 1, 1, self.dice.randint(1, waiting)))
        chance = self.dice.random()
        if chance < 0.12:
            return {"drop": channel, "nth": nth}
        return {"deliver": channel, "nth": nth, "keep": chance > 0.9}

    def _read(self, dma: Dma) -> Step:
        step: Step = {"dma": dma.name}
        if dma.closed:
            return {**step, "do": "closed"}
        ways = [{**step, "do": "move", "blocks": 1}, {**step, "do": "fail"}]
        if dma.abandoned and self.proofs:
            ways.append({**step, "do": "closed"})
        if self._source_lives(dma) or dma.done == len(dma.pieces):
            ways += [{**step, "do": "finish"}] * 3
        return self.dice.choice(ways)

    def _source_lives(self, dma: Dma) -> bool:
        source = self.world.anyone(dma.source) if dma.source is not None else None
        return bool(source and source.alive and source.incarnation == dma.source_incarnation)

    def _wait(self) -> Step:
        (name,) = self.dice.choices([n for n, _ in _WAITS], [w for _, w in _WAITS])
        if self.dice.random() < 0.3:
            # Everybody was stopped meanwhile: what is on its way is seen before a timer.
            self.play({"mark": "now"})
            return {"until": f"now + {name}", "quiet": True}
        return {"advance": name}

    def _oversleep(self, channels: list[str], active: list[Dma]) -> Step:
        """Every process stands still; the next thing that it sees is what came meanwhile."""
        wait = self.dice.choice(("0.5", "ack_timeout_s", "read_timeout_s", "lease_s"))
        step = self._read(self.dice.choice(active)) if active else None
        if step is None or (channels and self.dice.random() < 0.5):
            step = self._message(self.dice.choice(channels))
        self.play({"mark": "now"}, {"until": f"now + {wait} + eps", "quiet": True})
        return step

    def _connection(self) -> Step:
        node, other = self.dice.sample(sorted(self.world.nodes), 2)
        event = self.dice.choice(("lost", "heard"))
        return {"peer": event, "at": node, "of": other}

    def _restart(self) -> Step:
        return {"restart": self.dice.choice(self._nodes()).name}

    def _kill(self) -> Step:
        """A data process ends: whoever serves, all that READ, or the one that posted a READ."""
        node = self.dice.choice(self._mortals())
        reads = [dma for dma in self.world.dmas.values() if dma.node == node.name and dma.active]
        if reads and self.dice.random() < 0.5:
            return {"kill": node.name, "process": "reader", "of": self.dice.choice(reads).name}
        return {"kill": node.name, "process": self.dice.choice(("server", "reader"))}

    # ------------------------------------------------------------------------- end
    def finish_everything(self) -> None:
        """Let everything end that is under way, then look for what is left.

        Raises:
            CheckFailed: Something is left.
        """
        for channel, waiting in list(self.world.channels.items()):
            if waiting:
                self.play({"deliver": channel, "all": True})
        for node in self._nodes():
            self.play({"settle": node.name})
            for request in list(node.requests):
                self.play({"finish": request, "aborted": True})
        self._end_reads()
        for name in ("fetch_budget_s", "read_timeout_s", "lease_s", "announce_hold_s"):
            self.play({"advance": f"{name} + eps"})
            self._end_reads()
        for node in self._nodes():
            self.play({"idle": node.name, "clause": "EC-4.2"})
            room = node.setup.blocks - self._retired(node)
            if room > 0:
                self.play({"room": room, "at": node.name, "clause": "EC-2.1"})

    def _end_reads(self) -> None:
        for node in self._nodes():
            self.play({"settle": node.name, "reads": True})

    def _retired(self, node: Node) -> int:
        """Blocks that it need not have back: of READs of whose end it takes no proof."""
        reads = [dma for dma in self.world.dmas.values() if dma.node == node.name and dma.untold]
        return sum(len(dma.pieces) for dma in reads)


def walk(seed: int, length: int, connect: Callable[[str], Link]) -> Result | None:
    """Take one walk.

    Args:
        seed: Of its chance.
        length: Steps before everything is allowed to end.
        connect: Makes a link to a fresh instance.

    Returns:
        A result that is not OK, its case being the whole walk; None if all was well.

    Raises:
        Unsupported: The implementation lacks an operation that walks need.
    """
    try:
        return _walk(seed, length, connect, proofs=True)
    except Unsupported:
        # Perhaps only the teardown of an endpoint, which is no more than one way to end a READ.
        return _walk(seed, length, connect, proofs=False)


def _walk(seed: int, length: int, connect: Callable[[str], Link], *, proofs: bool) -> Result | None:
    case = new_case(seed)
    walked = Walk(World(case, connect, []), random.Random(seed), proofs=proofs)
    try:
        for node in walked.world.nodes.values():
            walked.world.start(node)
        for _ in range(length):
            walked.one()
        walked.finish_everything()
        if walked.world.watch.near:
            raise walked.world.watch.near[0]
    except (CheckFailed, ImplementationError):
        case.steps = walked.steps
        return run_case(case, connect)
    finally:
        walked.world.close()
    return None
