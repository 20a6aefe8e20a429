# SPDX-License-Identifier: Apache-2.0
"""Tells behaviours of ``Peer.tla``: sessions with a peer that dies and comes back."""

from __future__ import annotations

from typing import Any, ClassVar

from ec_verify.behaviours.reading import STATE_STYLE, State, Teller, changed_keys, gained
from ec_verify.behaviours.story import Arrow, ArrowKind, Lane, Step
from ec_verify.models.tla_value import as_function, shown


class PeerTeller(Teller):
    """The consumer and its sessions, the process behind the address."""

    needs: ClassVar[frozenset[str]] = frozenset({"peer", "inc", "current", "read", "proc", "acks"})
    environment: ClassVar[dict[str, str]] = {
        "ProcDies": "The process behind the address dies.",
        "ProcStarts": "Another process takes the address.",
        "Answer": "The process answers the request with OK.",
        "Completes": "All bytes of the READ have come.",
        "Breaks": "The process that the READ names is gone: it will not complete.",
    }

    def lanes(self, first: State) -> list[Lane]:
        """Consumer, data plane, peer."""
        self._requests: dict[Any, Arrow] = {}
        self._acks: dict[Any, Arrow] = {}
        return [
            Lane("engine", "engine", "consumer"),
            Lane("pump", "pump", "consumer"),
            Lane("sessions", "sessions", "consumer", "bars"),
            Lane("reads", "reads", "consumer", "bars"),
            Lane("dma", "DMA", "data plane"),
            Lane("life", "process", "peer", "bars"),
            Lane("peer", "pump", "peer"),
        ]

    def lane_of(self, action: str, before: State, after: State) -> str:
        """Where an action of the module happens."""
        if action in ("ProcDies", "ProcStarts", "Answer"):
            return "peer"
        if action in ("Completes", "Breaks"):
            return "dma"
        return "engine" if action in ("PeerOpen", "RequestRead", "Settle") else "pump"

    def place(self, variable: str, key: Any) -> str | None:
        """Groups by session and by read."""
        if key is None:
            return f"{'peer' if variable in ('proc', 'alive') else 'consumer'}|{variable}"
        return f"{'read' if variable == 'read' else 'session'} {shown(key)}|{variable}"

    def draw(self, action: str, before: State, after: State, step: Step) -> None:
        """Requests, acks, and the states of sessions and reads."""
        reads = changed_keys("read", before, after)
        if action == "RequestRead":
            for read in reads:
                self._requests[read] = self._send("engine", "peer", f"request {read}", "request")
        for ack in gained("acks", before, after):
            read, incarnation = ack
            if (request := self._requests.get(read)) is not None and request.end is None:
                request.end = self.row
            label = f"OK {read} from process {incarnation}"
            self._acks[read] = self._send("peer", "pump", label, "ack")
            reads = [read]
        if action == "AckOk":
            for read in reads:
                if (ack := self._acks.get(read)) is not None and ack.end is None:
                    ack.end = self.row
        elif action == "PostRead":
            arrow = self._send("pump", "dma", "post READ", "data")
            arrow.end = self.row
        sessions = changed_keys("peer", before, after)
        step.subject = ", ".join(
            [f"read {shown(r)}" for r in reads] + [f"session {shown(s)}" for s in sessions]
        )
        self._bars(after)

    def _bars(self, state: State) -> None:
        for session, peer in (as_function(state["peer"]) or {}).items():
            if peer == "drained":
                self.bars.hide(("session", session), self.row)
            else:
                style = "ready" if peer == "live" else STATE_STYLE.get(str(peer), "allocated")
                known = (as_function(state["inc"]) or {}).get(session)
                label = f"{shown(session)}: {peer}" + (f", process {known}" if known else "")
                self.bars.show(("session", session), self.row, "sessions", label, style)
        for read, record in (as_function(state["read"]) or {}).items():
            if record["st"] in ("none", "settled"):
                self.bars.hide(("read", read), self.row)
            else:
                style = STATE_STYLE.get(str(record["st"]), "lease")
                label = f"read {shown(read)}: {record['st']}"
                self.bars.show(("read", read), self.row, "reads", label, style)
        if state["alive"]:
            self.bars.show("process", self.row, "life", f"process {state['proc']}", "state")
        else:
            self.bars.hide("process", self.row)

    def _send(self, source: str, target: str, label: str, kind: ArrowKind) -> Arrow:
        arrow = Arrow(source, target, self.row, None, label, kind)
        self.story.arrows.append(arrow)
        return arrow
