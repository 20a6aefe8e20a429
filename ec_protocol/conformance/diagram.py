# SPDX-License-Identifier: Apache-2.0
"""The sequence diagram of a history: what the kit did, and what the implementation.

Rows are the operations of the engine and the pump, and the events of the simulated
world; bars are READs and copies, from being handed out to their end. The picture itself
is drawn by ``ec_protocol.explain``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ec_protocol.explain.page import drawing, page
from ec_protocol.explain.story import Arrow, Lane, OpenBars, Step, Story, Verdict

#: Operations that are worth a row, and what each is called there.
_ENGINE: Final = {
    "available": "available?",
    "has": "has?",
    "alloc": "alloc",
    "build": "build step",
    "report": "report",
    "finish": "finish",
    "failed": "failed",
}
_ARROWS: Final = {"request": "request", "answer": "ack", "notice": "notice"}
_QUIET: Final = frozenset({"time", "step"})


def tell(title: str, history: Sequence[Mapping[str, Any]], verdict: Verdict | None = None) -> Story:
    """The story of a history.

    Args:
        title: The case.
        history: As ``runner.run_case`` collected it.
        verdict: What was wrong, shown at the last row.
    """
    teller = _Teller(title)
    for record in history:
        if "op" in record:
            teller.operation(record)
        else:
            teller.event(record)
    story = teller.story
    story.lanes = teller.lanes()
    if not story.steps:
        story.steps.append(Step("", "nothing happened", "start"))
        story.lanes = [Lane("", "", "")]
    if verdict is not None:
        last = len(story.steps) - 1
        story.verdict = Verdict(verdict.title, last, verdict.sentence, facts=verdict.facts)
    return story


def svg(title: str, history: Sequence[Mapping[str, Any]], verdict: Verdict | None = None) -> str:
    """One SVG drawing."""
    return drawing(tell(title, history, verdict))


def html(title: str, history: Sequence[Mapping[str, Any]], verdict: Verdict | None = None) -> str:
    """A page of its own, with steps forward and back."""
    return page(tell(title, history, verdict))


class _Teller:
    def __init__(self, title: str) -> None:
        self.story = Story(
            title, "what was done to the implementation, and what it did", [], time_unit="seconds"
        )
        self._bars = OpenBars(self.story)
        self._nodes: dict[str, None] = {}
        self._sent: dict[tuple[str, str, str], list[Arrow]] = {}
        self._why = ""
        self._time = ""

    def lanes(self) -> list[Lane]:
        """Of every node that took part: engine, pump, DMA and what lasts."""
        return [
            lane
            for node in self._nodes
            for lane in (
                Lane(f"{node}/engine", "engine", node),
                Lane(f"{node}/copies", "copies", node, "bars"),
                Lane(f"{node}/pump", "pump", node),
                Lane(f"{node}/dma", "DMA", node),
                Lane(f"{node}/reads", "READs", node, "bars"),
            )
        ]

    def _row(
        self,
        node: str,
        lane: str,
        label: str,
        subject: str = "",
        notes: Sequence[str] = (),
        kind: Any = "protocol",
    ) -> int:
        self._nodes.setdefault(node)
        self.story.steps.append(
            Step(f"{node}/{lane}", label, kind, subject, notes, self._time, self._why)
        )
        self._time = ""
        return len(self.story.steps) - 1

    # ------------------------------------------------------------------ operations
    def operation(self, record: Mapping[str, Any]) -> None:
        """A call of the implementation, with its answer."""
        node, op, args = record["node"], record["op"], record["args"]
        result = record.get("result", {})
        self._nodes.setdefault(node)
        if op in _ENGINE:
            subject, notes = _engine(op, args, result)
            if op != "failed" or notes:
                self._row(node, "engine", _ENGINE[op], subject, notes)
        for name in ("unsupported", "error"):
            if name in record:
                self._row(node, "engine", op, name, [str(record[name])])
        for output in result.get("out", ()):
            if output["kind"] in ("abandon", "release", "close"):
                what = f"READ {output['read']}" if "read" in output else str(output.get("peer", ""))
                self._row(node, "pump", output["kind"], what)

    # ---------------------------------------------------------------------- events
    def event(self, record: Mapping[str, Any]) -> None:
        """Something that the simulated world did."""
        kind, node = str(record["event"]), str(record.get("node", ""))
        if kind == "step":
            self._why = f"step {record['number']}: {json.dumps(record['step'])}"
        if kind in _QUIET:
            self._time = f"{record['t']:.3f}"
            return
        if kind in ("sent", "notice"):
            self._send(node, str(record["to"]), str(record.get("via", "notice")))
        elif kind == "delivered":
            self._deliver(node, str(record["to"]), str(record["via"]))
        elif kind == "read":
            row = self._row(node, "dma", "READ posted", str(record["dma"]), kind="environment")
            self._bars.show(record["dma"], row, f"{node}/reads", str(record["dma"]), "transfer")
        elif kind.startswith("read "):
            row = self._row(node, "dma", kind, str(record["dma"]), kind="environment")
            self._bars.hide(record["dma"], row)
        elif kind == "copy":
            name = str(record["copy"])
            row = len(self.story.steps) - 1
            style: Any = "saving" if name.startswith("save") else "pinned"
            self._bars.show((node, name), max(row, 0), f"{node}/copies", name, style)
        elif kind == "moved":
            row = self._row(
                node, "dma", "copied", f"{record['copy']} rank {record['rank']}", kind="environment"
            )
            self._bars.hide((node, str(record["copy"])), row)
        elif node:
            extra = {k: v for k, v in record.items() if k not in ("event", "t", "node")}
            notes = [f"{name} {value}" for name, value in extra.items()]
            self._row(node, "engine", kind, notes=notes, kind="environment")

    def _send(self, source: str, target: str, via: str) -> None:
        self._nodes.setdefault(target)
        row = self._row(source, "pump", f"send {_ARROWS.get(via, via)}", f"to {target}")
        asked = self._sent.get((target, source, "request"))
        if via == "answer" and asked:  # who answers has received the request
            asked.pop(0).end = row
        kind: Any = _ARROWS.get(via, "local")
        arrow = Arrow(f"{source}/pump", f"{target}/pump", row, None, kind, kind)
        self.story.arrows.append(arrow)
        self._sent.setdefault((source, target, via), []).append(arrow)

    def _deliver(self, source: str, target: str, via: str) -> None:
        row = self._row(target, "pump", f"receive {_ARROWS.get(via, via)}", f"from {source}")
        waiting = self._sent.get((source, target, via))
        if waiting:
            waiting.pop(0).end = row


def _engine(op: str, args: Mapping[str, Any], result: Mapping[str, Any]) -> tuple[str, list[str]]:
    request = args.get("request") or {}
    subject = str(request.get("id", ""))
    if op in ("has", "alloc"):
        subject = f"{subject} {request['items'][args['item']]['hash']}"
    if op == "report":
        ended = "landed" if args["landed"] else "did not land"
        return f"copy {args['copy']} rank {args['rank']}", [ended]
    if op == "build":
        return "", [f"{c['kind']} {c['hash']} {c['spans']}" for c in result.get("copies", ())]
    if op == "failed":
        return "", [str(name) for name in result.get("requests", ())]
    if op == "finish":
        announced = result.get("params") or {}
        return subject, [
            f"{name}: {'announced' if 'peer_host' in what else 'without address'}"
            for name, what in announced.items()
            if isinstance(what, Mapping)
        ]
    return subject, [f"{name}: {value}" for name, value in result.items() if name != "out"]
