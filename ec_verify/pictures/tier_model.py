# SPDX-License-Identifier: Apache-2.0
"""Tells behaviours of ``Tier.tla``: one engine, its worker ranks and one region."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from ec_verify.behaviours.reading import STATE_STYLE, State, Teller, changed_keys
from ec_verify.behaviours.story import Arrow, Lane, Step
from ec_verify.models.tla_value import as_function, shown

_COPY_ACTIONS: Final = frozenset({"SubmitSave", "SubmitLoad"})
_REPORTS: Final = frozenset(
    {"RankReport", "SaveLanded", "SaveSkipped", "LoadLanded", "LoadSkipped"}
)
_OF_ENTRY: Final = frozenset({"est", "blk", "writer", "pins", "holders"})
_IDLE: Final = ("none", "landed", "skipped")


class TierTeller(Teller):
    """The engine and its ranks, with copies under way and entries as bars."""

    needs: ClassVar[frozenset[str]] = frozenset(
        {"phase", "asked", "est", "blk", "free", "holders", "cp", "content"}
    )
    environment: ClassVar[dict[str, str]] = {
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
        copies = as_function(first["cp"]) or {}
        ranks: list[Any] = []
        for copy in copies.values():
            ranks = list(as_function(copy.get("rk")) or {})
        self._ranks = ranks
        return [
            Lane("engine", "engine", "scheduler"),
            *(Lane(f"rank {r}", f"worker rank {r}", "workers") for r in map(shown, ranks)),
            Lane("copies", "copies", "workers", "bars"),
            Lane("region", "region", "region", "bars"),
            Lane("peer", "READ from a peer", "data plane"),
        ]

    def lane_of(self, action: str, before: State, after: State) -> str:
        """Copies happen on the rank that makes them, everything else at the engine."""
        if action in ("RankCopies", "RankFails"):
            ranks = self._changed_ranks(before, after, "todo") or self._changed_ranks(
                before, after, "rk"
            )
            return f"rank {shown(ranks[0])}" if ranks else "engine"
        if action.startswith("Remote"):
            return "peer"
        if action in ("EncoderRuns", "EncoderSkipped") and self._ranks:
            return f"rank {shown(self._ranks[0])}"
        return "engine"

    def place(self, variable: str, key: Any) -> str | None:
        """Groups by encoding, by copy and by block."""
        if key is None:
            return f"engine|{variable}"
        if variable in _OF_ENTRY:
            return f"encoding {shown(key)}|{variable}"
        if variable == "content":
            return f"blocks|{variable}[{shown(key)}]"
        return f"{variable} {shown(key)}|{variable}"

    def rows(self, state: State) -> dict[str, str]:
        """Copies are shown field by field, and only while there is one."""
        found = {name: text for name, text in super().rows(state).items() if name[:3] != "cp "}
        for name, copy in (as_function(state["cp"]) or {}).items():
            if copy.get("st") in _IDLE:
                continue
            for field, value in copy.items():
                found[f"copy {shown(name)}|{field}"] = shown(value)
        return found

    def draw(self, action: str, before: State, after: State, step: Step) -> None:
        """Orders to the ranks, their reports, copies under way and entries."""
        copies = changed_keys("cp", before, after)
        entries = changed_keys("est", before, after) or changed_keys("holders", before, after)
        copy_of = as_function(after["cp"]) or {}
        encodings = entries or [copy_of[copy]["enc"] for copy in copies]
        step.subject = ", ".join(dict.fromkeys(shown(e) for e in encodings))
        if action in _COPY_ACTIONS:
            for name in copies:
                ranks = as_function(copy_of[name]["rk"]) or {}
                for rank in (r for r, doing in ranks.items() if doing != "off"):
                    label = f"{copy_of[name]['kind']} {shown(copy_of[name]['enc'])}"
                    self._arrow("engine", f"rank {shown(rank)}", label)
        elif action in _REPORTS:
            for rank in self._changed_ranks(before, after, "rk"):
                self._arrow(f"rank {shown(rank)}", "engine", "report")
        for name, copy in copy_of.items():
            if copy.get("st") in _IDLE:
                self.bars.hide(("copy", name), self.row)
            else:
                label = f"{copy['kind']} {shown(copy['enc'])}: {copy['st']}"
                self.bars.show(("copy", name), self.row, "copies", label, "transfer")
        content = as_function(after["content"]) or {}
        for encoding, state in (as_function(after["est"]) or {}).items():
            if state == "freed":
                self.bars.hide(("entry", encoding), self.row)
                continue
            blocks = (as_function(after["blk"]) or {}).get(encoding) or []
            wrong = state in ("ready", "pinned") and any(content[b] != encoding for b in blocks)
            label = f"{shown(encoding)}: {state}, {', '.join(map(shown, blocks))}"
            style = "wrong" if wrong else STATE_STYLE.get(str(state), "state")
            self.bars.show(("entry", encoding), self.row, "region", label, style)

    def _arrow(self, source: str, target: str, label: str) -> None:
        self.story.arrows.append(Arrow(source, target, self.row, self.row, label, "local"))

    def _changed_ranks(self, before: State, after: State, field: str) -> list[Any]:
        found = []
        for name in changed_keys("cp", before, after):
            old = as_function((as_function(before["cp"]) or {})[name][field]) or {}
            new = as_function((as_function(after["cp"]) or {})[name][field]) or {}
            found += [rank for rank, value in new.items() if old.get(rank) != value]
        return list(dict.fromkeys(found))
