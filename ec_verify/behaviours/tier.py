# SPDX-License-Identifier: Apache-2.0
"""Behaviours of ``Tier.tla``: one engine, its worker ranks and one region.

In a schedule the engine is E, and an engine step of the model becomes one step of the
host, in which one request asks for everything that the step reserves or allocates. The
kit's host allocates what is to be encoded before what is to be loaded, which is the order
that a promise must survive. An eviction that no allocation of the step follows becomes
one for another encoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from ec_verify.behaviours.errors import NotExpressible
from ec_verify.behaviours.picture import STATE_STYLE, Picture
from ec_verify.behaviours.reading import Event, Move, State, elements, read
from ec_verify.behaviours.schedule import BLOCKS_EACH, Draft, Translation
from ec_verify.behaviours.story import Lane, Step
from ec_verify.models.tla_value import as_function, as_text

_PLANNING: Final = frozenset({"Reserve", "Alloc", "Evict"})
_ORDERS: Final = frozenset({"SubmitSave", "SubmitLoad"})
#: Actions by which ranks say how their parts of copies ended.
REPORTS: Final = frozenset({"RankReport", "SaveLanded", "SaveSkipped", "LoadLanded", "LoadSkipped"})
_OF_ENTRY: Final = frozenset({"est", "blk", "writer", "pins", "holders"})
_IDLE: Final = ("none", "landed", "skipped")
_NODE: Final = "E"


class TierEvent(Event):
    """A step of the engine, of a rank, or of a READ into the tier."""

    needs: ClassVar = frozenset(
        {"phase", "asked", "est", "blk", "free", "holders", "cp", "content"}
    )

    @property
    def lane(self) -> str:
        """Copies happen on the rank that makes them, everything else at the engine."""
        ranks: list[Any] = []
        if self.action in ("RankCopies", "RankFails"):
            for field in ("todo", "rk"):
                ranks += [r for copy in self.changed("cp") for r in self.ranks(copy, field)]
        elif self.action in ("EncoderRuns", "EncoderSkipped"):
            ranks = ranks_of(self.after)
        elif self.action.startswith("Remote"):
            return "peer"
        return f"rank {as_text(ranks[0])}" if ranks else "engine"

    def ranks(self, copy: Any, field: str) -> list[Any]:
        """The ranks of a copy for which a field is not what it was."""
        old = as_function(self.was("cp", copy)[field]) or {}
        new = as_function(self.now("cp", copy)[field]) or {}
        return [rank for rank, value in new.items() if old.get(rank) != value]


def ranks_of(state: State) -> list[Any]:
    """The worker ranks."""
    copies = list(elements(state, "cp").values())
    return list(as_function(copies[-1]["rk"]) or {}) if copies else []


class TierPicture(Picture[TierEvent]):
    """The engine and its ranks, with copies under way and entries as bars."""

    environment: ClassVar = {
        "BeginStep": "The engine begins to plan a step.",
        "BuildMeta": "The step's metadata is built: nothing more is planned in it.",
        "EncoderRuns": "The encoder runs, and its output is there to be saved.",
        "EncoderSkipped": "The encoder does not run in this step.",
        "RankCopies": "A rank copies a block.",
        "RankFails": "A rank's copy ends without the bytes.",
        "RemoteBegins": "A READ from a peer begins to write the blocks.",
        "RemoteCopies": "The READ writes a block.",
        "RemoteLands": "The READ ended in time: the entry is ready.",
        "RemoteEnds": "The READ ended without bytes that count.",
        "Stop": "No new work comes any more.",
        "Sleep": "Nothing is left to do.",
    }

    def lanes(self, first: State) -> list[Lane]:
        """The engine, each rank, the peer, then the region's bars."""
        ranks = map(as_text, ranks_of(first))
        return [
            Lane("engine", "engine", "scheduler"),
            *(Lane(f"rank {rank}", f"worker rank {rank}", "workers") for rank in ranks),
            Lane("copies", "copies", "workers", "bars"),
            Lane("region", "region", "region", "bars"),
            Lane("peer", "READ from a peer", "data plane"),
        ]

    def place(self, variable: str, key: Any) -> str:
        """Groups by encoding, by copy and by block."""
        if key is None:
            return f"engine|{variable}"
        if variable in _OF_ENTRY:
            return f"encoding {as_text(key)}|{variable}"
        if variable == "content":
            return f"blocks|{variable}[{as_text(key)}]"
        return f"{variable} {as_text(key)}|{variable}"

    def rows(self, state: State) -> dict[str, str]:
        """Copies are shown field by field, and only while there is one."""
        found = {name: text for name, text in super().rows(state).items() if name[:3] != "cp "}
        for name, copy in elements(state, "cp").items():
            if copy.get("st") in _IDLE:
                continue
            for field, value in copy.items():
                found[f"copy {as_text(name)}|{field}"] = as_text(value)
        return found

    def draw(self, event: TierEvent, step: Step) -> None:
        """Orders to the ranks, their reports, copies under way and entries."""
        state = event.after
        copies = event.changed("cp")
        entries = event.changed("est") or event.changed("holders")
        encodings = entries or [event.now("cp", copy)["enc"] for copy in copies]
        step.subject = ", ".join(dict.fromkeys(as_text(e) for e in encodings))
        if event.action in _ORDERS:
            for copy in (event.now("cp", name) for name in copies):
                for rank, doing in (as_function(copy["rk"]) or {}).items():
                    if doing != "off":
                        label = f"{copy['kind']} {as_text(copy['enc'])}"
                        self.arrow("engine", f"rank {as_text(rank)}", label, "local")
        elif event.action in REPORTS:
            for rank in dict.fromkeys(r for copy in copies for r in event.ranks(copy, "rk")):
                self.arrow(f"rank {as_text(rank)}", "engine", "report", "local")
        for name, copy in elements(state, "cp").items():
            label = f"{copy['kind']} {as_text(copy['enc'])}: {copy['st']}"
            self.bar(("copy", name), copy["st"] not in _IDLE, "copies", label, "transfer")
        content = elements(state, "content")
        for encoding, st in elements(state, "est").items():
            blocks = elements(state, "blk").get(encoding) or []
            wrong = st in ("ready", "pinned") and any(content[b] != encoding for b in blocks)
            label = f"{as_text(encoding)}: {st}, {', '.join(map(as_text, blocks))}"
            style = "wrong" if wrong else STATE_STYLE.get(str(st), "state")
            self.bar(("entry", encoding), st != "freed", "region", label, style)


def schedule(
    moves: Sequence[Move], constants: Mapping[str, str] | None = None, broken: str = ""
) -> Draft:
    """As ``models.Model.schedule``."""
    events = read(moves, TierEvent)
    first = moves[0][1]
    names = [str(name) for name in elements(first, "est")]
    blocks, ranks = len(elements(first, "content")), len(ranks_of(first))
    draft = Draft({_NODE: {"blocks": blocks * BLOCKS_EACH, "ranks": ranks}}, names, {})
    for _, state in moves:
        for name, owned in elements(state, "blk").items():
            if owned:
                draft.encodings[str(name)] = len(owned) * BLOCKS_EACH
    return _Translation(events, draft, names, ranks).translate()


class _Translation(Translation[TierEvent]):
    def __init__(
        self, events: Sequence[TierEvent], draft: Draft, names: list[str], ranks: int
    ) -> None:
        super().__init__(events, draft)
        self.names = names
        self.ranks = ranks
        self.items: list[str] = []
        self.unsaid: set[Any] = set()

    def end(self) -> None:
        self.draft.settle()
        self.draft.whatever_is_loaded(_NODE, self.names, self.ranks)
        self.draft.nothing_is_left()

    def take(self, event: TierEvent) -> None:
        if event.action.startswith("Remote"):
            raise NotExpressible(f"{event.action} is a READ: scenarios of READs come from PeerRead")
        if event.action in _PLANNING:
            self._plan(event)
            if not self._planning_follows(event):
                self._step()
        for copy in event.changed("cp"):
            self._copy(copy, event)
        if event.action == "Hold":
            for name in event.changed("holders"):
                request = self.draft.declare(_NODE, [str(name)])
                del self.draft.open_requests[request]
                self.draft.must({"finish": request})

    # ------------------------------------------------------------------- the step
    def _plan(self, event: TierEvent) -> None:
        if event.action == "Reserve":
            self.items += map(str, event.gained("asked"))
        elif event.action == "Alloc":
            self.items += map(str, event.changed("est"))
        else:
            self._evicted = [str(name) for name in event.changed("est")]
            self.items.append("")  # whoever wants the space: the next allocation, or another

    def _planning_follows(self, event: TierEvent) -> bool:
        """Whether the same engine step plans something more."""
        for later in self.events[event.number :]:
            if later.action in ("EndStep", "BeginStep"):
                return False
            if later.action in _PLANNING:
                return True
        return False

    def _step(self) -> None:
        items, self.items = self.items, []
        wanted: list[str] = []
        for index, name in enumerate(items):
            if name:
                wanted.append(name)
            elif not any(later for later in items[index + 1 :]):
                size = max(self.draft.encodings[gone] for gone in self._evicted)
                wanted.append(self.draft.spare(size))
        if wanted:
            self.draft.request(_NODE, list(dict.fromkeys(wanted)))

    # ---------------------------------------------------------------------- copies
    def _copy(self, copy: Any, event: TierEvent) -> None:
        old, new = event.was("cp", copy), event.now("cp", copy)
        record = new if new["kind"] != "none" else old
        name = f"{record['kind']} {record['enc']}"
        if event.action == "RankCopies":
            for rank in event.ranks(copy, "todo"):
                self.draft.attempt(
                    {"copy": name, "at": _NODE, "do": "move", "rank": rank - 1,
                     "blocks": BLOCKS_EACH}
                )  # fmt: skip
        elif event.action == "EncoderSkipped":
            # Its rank has to say so whatever the model's rank did.
            self.draft.attempt({"copy": name, "at": _NODE, "do": "skip", "rank": 0})
            self.unsaid.add(copy)
        elif event.action in REPORTS and copy not in self.unsaid:
            ranks = event.ranks(copy, "rk") or [r for r in new["heard"] if r not in old["heard"]]
            for rank in ranks or old["heard"][:1]:
                doing = (as_function(old["rk"]) or {}).get(rank)
                step = {"copy": name, "at": _NODE, "do": "report", "rank": rank - 1}
                self.draft.attempt(step if doing != "skip" else {**step, "landed": False})
        if new["st"] in _IDLE:
            self.unsaid.discard(copy)
