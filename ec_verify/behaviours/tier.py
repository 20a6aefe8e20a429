# SPDX-License-Identifier: Apache-2.0
"""Turns behaviours of ``Tier.tla`` into schedules of one engine, E.

An engine step of the model becomes one step of the host, in which one request asks for
everything that the step reserves or allocates. The kit's host allocates what is to be
encoded before what is to be loaded, which is the order that a promise must survive. An
eviction that no allocation of the step follows becomes one for another encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ec_verify.behaviours.draft import BLOCKS_EACH, Draft
from ec_verify.behaviours.errors import NotExpressible
from ec_verify.behaviours.reading import State, changed_keys
from ec_verify.models.tla_value import as_function

_PLANNING: Final = frozenset({"Reserve", "Alloc", "Evict"})
_REPORTS: Final = frozenset(
    {"RankReport", "SaveLanded", "SaveSkipped", "LoadLanded", "LoadSkipped"}
)
_NODE: Final = "E"
Move = tuple[str, State]


def schedule(moves: Sequence[Move]) -> Draft:
    """The schedule of a behaviour.

    Raises:
        NotExpressible: It has a step that the schedule language does not have.
    """
    return _Translation(moves).translate()


class _Translation:
    def __init__(self, moves: Sequence[Move]) -> None:
        self.moves = moves
        first = moves[0][1]
        blocks = as_function(first["content"]) or {}
        names = [str(name) for name in as_function(first["est"]) or {}]
        copies = as_function(first["cp"]) or {}
        self.ranks = max(len(as_function(c["rk"]) or {}) for c in copies.values())
        self.names = names
        self.draft = Draft(
            {_NODE: {"blocks": len(blocks) * BLOCKS_EACH, "ranks": self.ranks}}, names, {}
        )
        for _, state in moves:
            for name, owned in (as_function(state["blk"]) or {}).items():
                if owned:
                    self.draft.encodings[str(name)] = len(owned) * BLOCKS_EACH
        self.items: list[str] = []
        self.unsaid: set[Any] = set()

    def translate(self) -> Draft:
        before = self.moves[0][1]
        for number, (action, after) in enumerate(self.moves[1:], 2):
            self.draft.note(f"state {number}: {action}")
            self._take(number, action, before, after)
            before = after
        self._end()
        return self.draft

    def _end(self) -> None:
        draft = self.draft
        draft.settle()
        draft.whatever_is_loaded(_NODE, self.names, self.ranks)
        draft.nothing_is_left()

    def _take(self, number: int, action: str, before: State, after: State) -> None:
        if action.startswith("Remote"):
            raise NotExpressible(f"{action} is a READ: scenarios of READs come from PeerRead")
        if action in _PLANNING:
            self._plan(action, before, after)
            if not self._planning_follows(number):
                self._step()
        for copy in changed_keys("cp", before, after):
            self._copy(copy, action, before, after)
        if action == "Hold":
            for name in changed_keys("holders", before, after):
                request = self.draft.declare(_NODE, [str(name)])
                del self.draft.open_requests[request]
                self.draft.must({"finish": request})

    # ------------------------------------------------------------------- the step
    def _plan(self, action: str, before: State, after: State) -> None:
        if action == "Reserve":
            asked = [name for name in after["asked"] if name not in before["asked"]]
            self.items += [str(name) for name in asked]
        elif action == "Alloc":
            self.items += [str(name) for name in changed_keys("est", before, after)]
        else:
            self._evicted = [str(name) for name in changed_keys("est", before, after)]
            self.items.append("")  # whoever wants the space: the next allocation, or another

    def _planning_follows(self, number: int) -> bool:
        """Whether the same engine step plans something more."""
        for action, _ in self.moves[number:]:
            if action in ("EndStep", "BeginStep"):
                return False
            if action in _PLANNING:
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
    def _copy(self, copy: Any, action: str, before: State, after: State) -> None:
        old = (as_function(before["cp"]) or {})[copy]
        new = (as_function(after["cp"]) or {})[copy]
        record = new if new["kind"] != "none" else old
        name = f"{record['kind']} {record['enc']}"
        if action == "RankCopies":
            for rank in _differing(old, new, "todo"):
                self.draft.attempt(
                    {"copy": name, "at": _NODE, "do": "move", "rank": rank - 1,
                     "blocks": BLOCKS_EACH}
                )  # fmt: skip
        elif action == "EncoderSkipped":
            # Its rank has to say so whatever the model's rank did.
            self.draft.attempt({"copy": name, "at": _NODE, "do": "skip", "rank": 0})
            self.unsaid.add(copy)
        elif action in _REPORTS and copy not in self.unsaid:
            self._report(name, old, new)
        if new["st"] in ("none", "landed", "skipped"):
            self.unsaid.discard(copy)

    def _report(self, name: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        ranks = _differing(old, new, "rk") or [r for r in new["heard"] if r not in old["heard"]]
        for rank in ranks or old["heard"][:1]:
            doing = (as_function(old["rk"]) or {}).get(rank)
            step = {"copy": name, "at": _NODE, "do": "report", "rank": rank - 1}
            self.draft.attempt(step if doing != "skip" else {**step, "landed": False})


def _differing(old: dict[str, Any], new: dict[str, Any], field: str) -> list[int]:
    before, after = as_function(old[field]) or {}, as_function(new[field]) or {}
    return [rank for rank, value in after.items() if before.get(rank) != value]
