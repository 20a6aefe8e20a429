# SPDX-License-Identifier: Apache-2.0
"""Tells behaviours of ``Fleet.tla``: several consumers and producers, which may crash."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from ec_verify.behaviours.reading import STATE_STYLE, State, Teller
from ec_verify.behaviours.story import Arrow, ArrowKind, BarStyle, Lane, Step
from ec_verify.models.tla_value import as_function, shown

_NOBODY: Final = ("nobody", "torn", "none")
_WAITING: Final = ("requested", "granted", "reading")
_AT_PRODUCER: Final = frozenset({"Grant", "Complete", "Expire"})
_OF_TIER: Final = frozenset(
    {"SaveBegin", "SaveEnd", "SaveSkipped", "Evict", "Cancel", "Hold", "ReleaseHold"}
)
_BY_ENGINE: Final = frozenset({"Fetch", "RequestRead"})


def attempts_of(state: State) -> dict[Any, dict[str, Any]]:
    """The attempts by number."""
    return as_function(state["att"]) or {}


def grants_of(state: State, attempt: Any) -> dict[Any, dict[str, Any]]:
    """What each process of the asked producer did about an attempt."""
    return as_function((as_function(state["gr"]) or {}).get(attempt)) or {}


def blocks_of(state: State) -> dict[tuple[Any, Any], dict[str, Any]]:
    """Every block, by instance and number."""
    return {
        (node, number): block
        for node, region in (as_function(state["blk"]) or {}).items()
        for number, block in (as_function(region) or {}).items()
    }


def changed_attempt(before: State, after: State) -> Any:
    """The attempt that a step is about: first by its state, then by a grant's, then at all."""
    old, new = attempts_of(before), attempts_of(after)
    for attempt, record in new.items():
        if old[attempt]["st"] != record["st"] or old[attempt]["dma"] != record["dma"]:
            return attempt
    for attempt in new:
        was, now = grants_of(before, attempt), grants_of(after, attempt)
        if any(was[process]["st"] != grant["st"] for process, grant in now.items()):
            return attempt
    for attempt, record in new.items():
        if old[attempt] != record or grants_of(before, attempt) != grants_of(after, attempt):
            return attempt
    return None


class FleetTeller(Teller):
    """A group of lanes for each instance."""

    needs: ClassVar[frozenset[str]] = frozenset({"inc", "blk", "att", "gr"})
    environment: ClassVar[dict[str, str]] = {
        "SaveBegin": "The instance's engine begins to save an encoding.",
        "SaveEnd": "The save has ended: the block holds the encoding.",
        "Fetch": "The consumer allocates and asks the producer.",
        "FenceCloses": "Too little of the lease is left from here on.",
        "GiveUp": "The attempt ends before anything was posted.",
        "DropAck": "An ack that nobody waits for: its grant goes back.",
        "DmaFinish": "The READ ends: its bytes are in place, and the notice goes out.",
        "DmaStop": "The READ is aborted, or its endpoint is gone.",
        "Crash": "The process dies and another takes its address.",
    }

    def lanes(self, first: State) -> list[Lane]:
        """Engine, pump, bars and DMA of each instance."""
        self._requests: dict[Any, Arrow] = {}
        self._acks: dict[tuple[Any, Any], Arrow] = {}
        self._notices: dict[tuple[Any, Any], Arrow] = {}
        lanes = []
        for node in as_function(first["inc"]) or {}:
            name = shown(node)
            lanes += [
                Lane(f"{name}/engine", "engine", name),
                Lane(f"{name}/pump", "pump", name),
                Lane(f"{name}/fence", "fence · quarantine", name, "bars"),
                Lane(f"{name}/lease", "lease", name, "bars"),
                Lane(f"{name}/region", "region", name, "bars"),
                Lane(f"{name}/dma", "DMA", name),
            ]
        return lanes

    def lane_of(self, action: str, before: State, after: State) -> str:
        """The instance whose step it is, and which of its threads."""
        if action == "Crash":
            crashed = [node for node, n in after["inc"].items() if before["inc"][node] != n]
            return f"{shown(crashed[0])}/engine" if crashed else ""
        attempt = None if action in _OF_TIER else changed_attempt(before, after)
        if attempt is None:
            old = blocks_of(before)
            nodes = [place[0] for place, block in blocks_of(after).items() if old[place] != block]
            return f"{shown(nodes[0])}/engine" if nodes else ""
        record = attempts_of(after)[attempt]
        if action in _AT_PRODUCER:
            return f"{shown(record['pro'])}/pump"
        if action in ("DmaFinish", "DmaStop"):
            return f"{shown(record['con'])}/dma"
        return f"{shown(record['con'])}/{'engine' if action in _BY_ENGINE else 'pump'}"

    def rows(self, state: State) -> dict[str, str]:
        """Blocks in use, attempts that were made, grants that were given."""
        found = {f"processes|{shown(n)}": shown(i) for n, i in state["inc"].items()}
        for (node, number), block in blocks_of(state).items():
            if block["st"] != "freed":
                for field, value in block.items():
                    found[f"{shown(node)}: block {shown(number)}|{field}"] = shown(value)
        for attempt, record in attempts_of(state).items():
            if record["st"] == "none":
                continue
            for field, value in record.items():
                found[f"attempt {attempt}|{field}"] = shown(value)
            for process, grant in grants_of(state, attempt).items():
                if grant["st"] != "none":
                    where = f"grant {attempt} of {shown(record['pro'])}, process {process}"
                    for field, value in grant.items():
                        found[f"{where}|{field}"] = shown(value)
        return found

    def draw(self, action: str, before: State, after: State, step: Step) -> None:
        """Messages, bytes and bars."""
        attempt = changed_attempt(before, after)
        if attempt is not None and action not in ("Crash", *_OF_TIER):
            record = attempts_of(after)[attempt]
            step.subject = f"attempt {attempt} ({shown(record['name'])})"
            self._messages(action, attempt, before, after, step.lane)
            self._bytes(action, attempt, before, after)
        self._bars(after)

    # ----------------------------------------------------------------- messages
    def _messages(self, action: str, attempt: Any, before: State, after: State, lane: str) -> None:
        record = attempts_of(after)[attempt]
        producer, consumer = shown(record["pro"]), shown(record["con"])
        if action in _BY_ENGINE:
            self._requests[attempt] = self._arrow(
                lane, f"{producer}/pump", f"request {attempt}", "request"
            )
        for process, grant in grants_of(after, attempt).items():
            old = grants_of(before, attempt)[process]
            if grant["st"] == "granted" and old["st"] == "none":
                request = self._requests.get(attempt)
                if request is not None and request.end is None:
                    request.end = self.row
                label = f"OK {attempt}"
                self._acks[attempt, process] = self._arrow(lane, f"{consumer}/pump", label, "ack")
            if grant["note"] and not old["note"]:
                source = f"{consumer}/{'dma' if action == 'DmaFinish' else 'pump'}"
                self._notices[attempt, process] = self._arrow(
                    source, f"{producer}/pump", f"notice {attempt}", "notice"
                )
        if action in ("AckOk", "DropAck"):
            via = (record["via"] or attempt, record["src"] or None)
            for (of, process), ack in self._acks.items():
                if of == via[0] and via[1] in (None, process) and ack.end is None:
                    ack.end, ack.target = self.row, lane
        if action == "Complete":
            self._completed(before, after)

    def _completed(self, before: State, after: State) -> None:
        """The notice that was taken: of this attempt, or of another with its name."""
        for attempt in attempts_of(after):
            for process, grant in grants_of(after, attempt).items():
                taken = grants_of(before, attempt)[process]["note"] and not grant["note"]
                notice = self._notices.get((attempt, process))
                if taken and notice is not None:
                    notice.end = self.row

    def _bytes(self, action: str, attempt: Any, before: State, after: State) -> None:
        record, old = attempts_of(after)[attempt], attempts_of(before)[attempt]
        consumer = shown(record["con"])
        if action == "PostRead":
            self._now(f"{consumer}/pump", f"{consumer}/dma", "post READ")
        elif action == "DmaFinish":
            content = _content(old["result"])
            self._now(f"{shown(record['pro'])}/region", f"{consumer}/dma", f"reads {content}")
        elif action == "ReadDone":
            self._now(f"{consumer}/dma", f"{consumer}/pump", "seen done")

    def _arrow(self, source: str, target: str, label: str, kind: ArrowKind) -> Arrow:
        arrow = Arrow(source, target, self.row, None, label, kind)
        self.story.arrows.append(arrow)
        return arrow

    def _now(self, source: str, target: str, label: str) -> None:
        self._arrow(source, target, label, "data").end = self.row

    # --------------------------------------------------------------------- bars
    def _bars(self, state: State) -> None:
        for (node, number), block in blocks_of(state).items():
            st, name = str(block["st"]), shown(block["name"])
            wrong = st in ("ready", "pinned") and block["bytes"] != block["name"]
            style = "wrong" if wrong else STATE_STYLE.get(st, "retired")
            label = f"{name}: {'wrong bytes' if wrong else st}" if st != "retired" else st
            self._bar(("block", node, number), st != "freed", f"{shown(node)}/region", label, style)
        for attempt, record in attempts_of(state).items():
            consumer, st = shown(record["con"]), record["st"]
            fence, open_ = f"{consumer}/fence", bool(record["open"])
            waiting = st in _WAITING
            self._bar(("open", attempt), waiting and open_, fence, f"fence {attempt} open", "fence")
            self._bar(
                ("shut", attempt), waiting and not open_, fence, f"fence {attempt} closed", "wrong"
            )
            quarantine = f"quarantine {attempt}"
            self._bar(("lost", attempt), st == "quarantined", fence, quarantine, "quarantine")
            moving = record["dma"] == "moving"
            self._bar(("dma", attempt), moving, f"{consumer}/dma", f"READ {attempt}", "transfer")
            for process, grant in grants_of(state, attempt).items():
                lease = f"{shown(record['pro'])}/lease"
                there = grant["st"] == "granted"
                self._bar(("lease", attempt, process), there, lease, f"lease {attempt}", "lease")

    def _bar(self, key: object, there: bool, lane: str, label: str, style: BarStyle) -> None:
        if there:
            self.bars.show(key, self.row, lane, label, style)
        else:
            self.bars.hide(key, self.row)


def _content(held: Any) -> str:
    return "wrong bytes" if held in _NOBODY else f"bytes of {shown(held)}"
