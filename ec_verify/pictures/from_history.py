# SPDX-License-Identifier: Apache-2.0
"""Makes a story of a scenario or conformance case as it was played.

The kit writes down every operation and everything that happened in its world; this
draws the latter, a row for each step of the schedule. So it shows what the
implementation made of the schedule, whatever implementation it was, and a history that
was saved (``ec-protocol conformance run --history``) can be drawn long afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from ec_verify.behaviours.story import Arrow, ArrowKind, Lane, OpenBars, Step, StepKind, Story
from ec_verify.behaviours.story import Verdict as StoryVerdict
from ec_verify.kit.runner import Result
from ec_verify.pictures.page import drawing

Record = Mapping[str, Any]

_REFUSED: Final = "schedule|not possible"
_ENDS: Final = frozenset({"read done", "read error", "read aborted", "read endpoint_closed"})
_CHECKS: Final = frozenset({"servable", "load", "room", "idle", "posted", "blocks", "handle"})
_AT_ENGINE: Final = frozenset({"request", "hook", "store", "finish", "overwrite"})
_CLOCK: Final = frozenset({"advance", "until"})
_SILENT: Final = frozenset({"mark", "try", "repeat", "prepare"})
_KINDS: Final[Mapping[str, ArrowKind]] = {
    "request": "request",
    "answer": "ack",
    "notice": "notice",
}
_WHY: Final = {
    "try": "A step that a correct implementation may have made impossible.",
    "room": "Would a save of so many blocks get room?",
    "idle": "May the engine stop stepping?",
    "load": "A step loads it on every rank, and every byte must be right.",
    "servable": "Would a step of its own be promised it?",
    "tick": "One node looks at its clock, the others stand still.",
    "until": "Time passes.",
    "advance": "Time passes, then every node's timers are asked.",
}


def story_of_history(case: Mapping[str, Any], history: Sequence[Record], outcome: Record) -> Story:
    """The story of a case that was played.

    Args:
        case: The case, as in its file.
        history: What the kit wrote down.
        outcome: ``verdict``, ``clause``, ``invariant``, ``detail`` and ``adapter``.
    """
    story = Story(
        title=str(case["id"]),
        subtitle=f"played against {outcome.get('adapter', 'an implementation')}",
        lanes=[],
        about=". ".join(
            part.rstrip(".")
            for part in (str(case.get("title", "")), str(case.get("note", "")))
            if part
        )
        + ".",
        time_unit="seconds",
    )
    picture = _Picture(story, case)
    for step, events in _rows(history):
        picture.add(step, events)
    picture.judge(outcome)
    return story


def _rows(history: Sequence[Record]) -> Iterator[tuple[Record, list[Record]]]:
    """Each step of the schedule, with what happened until the next."""
    step: Record | None = None
    events: list[Record] = []
    for record in history:
        if record.get("event") == "step":
            if step is not None:
                yield step, events
            step, events = record, []
        elif "event" in record and step is not None:
            events.append(record)
    if step is not None:
        yield step, events


class _Picture:
    def __init__(self, story: Story, case: Mapping[str, Any]) -> None:
        self.story = story
        self.nodes = list(case["setup"]["nodes"])
        self.bars = OpenBars(story)
        self.row = -1
        self._note = ""
        self._refused = False
        self._sent: dict[str, list[Arrow]] = {}
        self._time = ""
        for name in self.nodes:
            played = case["setup"]["nodes"][name].get("played") == "kit"
            group = f"{name} (played)" if played else name
            story.lanes += [
                Lane(f"{name}/engine", "host engine", group),
                Lane(f"{name}/ranks", "worker ranks", group),
                Lane(f"{name}/data", "data processes", group),
                Lane(f"{name}/dma", "DMA", group),
            ]

    # ------------------------------------------------------------------------ rows
    def add(self, record: Record, events: Sequence[Record]) -> None:
        """Add the row of one step of the schedule, unless nothing is to be seen of it."""
        raw: dict[str, Any] = record["step"]
        verb = next(iter(raw))
        if "note" in raw:
            self._note = str(raw["note"])
        refused = next((e for e in events if e["event"] == "impossible"), None)
        if verb in _SILENT and refused is None:
            return
        self.row += 1
        time = f"{float(record['t']):.3f}"
        lane, label, subject = self._words(verb, raw)
        kind: StepKind = "clock" if verb in _CLOCK else "environment"
        notes: list[str] = []
        if refused is not None:
            notes.append("not possible any more")
        step = Step(
            lane="" if kind == "clock" else lane,
            label=label,
            kind=kind if refused is None else "environment",
            subject=subject,
            notes=notes,
            time="" if time == self._time else time,
            why=f"{self._note}. {_WHY.get(verb, '')}".strip(". ") + ".",
            changes={},
        )
        self._time = time
        if kind == "clock":
            moment = next((float(e["t"]) for e in events if e["event"] == "time"), None)
            step.subject = f"to {moment:.3f} s" if moment is not None else subject
        changes: dict[str, str | None] = {"schedule|step": json_of(raw)}
        if refused is not None:
            changes[_REFUSED] = str(refused["why"])
        elif self._refused:
            changes[_REFUSED] = None
        self._refused = refused is not None
        for event in events:
            self._event(event, raw, notes, changes)
        step.changes = changes
        if kind != "clock" and notes and refused is None:
            step.kind = "protocol"
        self.story.steps.append(step)

    def _words(self, verb: str, raw: Mapping[str, Any]) -> tuple[str, str, str]:
        """Lane, name and subject of a step."""
        at = str(raw.get("at", self.nodes[0]))
        main = str(raw[verb])
        if verb == "step":
            return f"{main}/engine", "engine step", ", ".join(raw.get("run", []))
        if verb in _AT_ENGINE or verb in _CHECKS:
            node = main if verb in ("idle", "posted", "blocks") else at
            about = ", ".join(raw.get("items", [])) or (main if main != node else "")
            return f"{node}/engine", f"{verb}{'?' if verb in _CHECKS else ''}", about
        if verb in ("copy", "copied"):
            return f"{at}/ranks", str(raw.get("do", "land")), main
        if verb in ("deliver", "drop"):
            target = main.replace("~", ">").partition(">")[2]
            return f"{target}/data", "receives" if verb == "deliver" else "never gets", main
        if verb == "dma":
            return f"{main.partition('#')[0]}/dma", f"READ {raw.get('do')}", main
        if verb in ("tick", "crash", "restart", "stop", "start"):
            return f"{main}/{'data' if verb == 'tick' else 'engine'}", verb, ""
        if verb == "peer":
            return f"{at}/data", f"peer {main}", str(raw.get("of", ""))
        if verb in ("ask", "answer"):
            return f"{raw.get('by', self.nodes[0])}/data", verb, str(raw.get("hash", ""))
        node = main if main in self.nodes else at
        return f"{node if node in self.nodes else self.nodes[0]}/data", verb, main

    # ---------------------------------------------------------------------- events
    def _event(
        self,
        event: Record,
        raw: Mapping[str, Any],
        notes: list[str],
        changes: dict[str, str | None],
    ) -> None:
        name, node = event["event"], str(event.get("node", ""))
        if name in ("sent", "notice"):
            via = "notice" if name == "notice" else str(event["via"])
            mark = "~" if via == "notice" else ">"
            channel = f"{node}{mark}{event['to']}"
            label = {"request": "request", "answer": "answer", "notice": "notice"}[via]
            target = f"{event['to']}/data"
            arrow = Arrow(f"{node}/data", target, self.row, None, label, _KINDS[via])
            self._sent.setdefault(channel, []).append(arrow)
            self.story.arrows.append(arrow)
            notes.append(f"sends {label}")
            changes[f"messages {channel}|{label} {len(self._sent[channel])}"] = "sent"
        elif name == "delivered":
            mark = "~" if event["via"] == "notice" else ">"
            channel = f"{node}{mark}{event['to']}"
            self._delivered(channel, int(raw.get("nth", 1)), changes)
        elif name == "copy":
            notes.append(f"hands out {event['copy']}")
            changes[f"copies of {node}|{event['copy']}"] = "handed out"
        elif name == "moved":
            changes[f"copies of {node}|{event['copy']}"] = f"moved by rank {event['rank']}"
        elif name == "read":
            notes.append(f"posts READ {event['dma']}")
            changes[f"READs|{event['dma']}"] = f"posted, from {event['source']}"
            key = ("dma", event["dma"])
            self.bars.show(key, self.row, f"{node}/dma", f"READ {event['dma']}", "transfer")
            self.story.arrows.append(
                Arrow(f"{node}/data", f"{node}/dma", self.row, self.row, "post READ", "data")
            )
        elif name in _ENDS:
            said = name.removeprefix("read ")
            changes[f"READs|{event['dma']}"] = said
            self.bars.hide(("dma", event["dma"]), self.row)
            self.story.arrows.append(
                Arrow(f"{node}/dma", f"{node}/data", self.row, self.row, said, "data")
            )
        elif name in ("crash", "start", "stop"):
            notes.append({"crash": "killed", "start": "a new process", "stop": "stopped"}[name])

    def _delivered(self, channel: str, nth: int, changes: dict[str, str | None]) -> None:
        sent = self._sent.get(channel, [])
        if nth > len(sent):
            return
        arrow = sent[nth - 1]
        changes[f"messages {channel}|{arrow.label} {nth}"] = "received"
        if arrow.end is None:
            arrow.end = self.row
        else:
            again = f"{arrow.label} again"
            self.story.arrows.append(
                Arrow(arrow.source, arrow.target, arrow.start, self.row, again, arrow.kind)
            )

    # --------------------------------------------------------------------- verdict
    def judge(self, outcome: Record) -> None:
        """What the kit said of it."""
        verdict = str(outcome["verdict"])
        facts = [("adapter", str(outcome.get("adapter", "")))] if outcome.get("adapter") else []
        if verdict == "OK":
            self.story.verdict = StoryVerdict(
                "Survived",
                None,
                "Nothing that the kit watches broke, and the end was as expected.",
                bad=False,
                facts=facts,
                headline="Survived.",
            )
            return
        title = str(outcome.get("invariant") or outcome.get("clause") or verdict)
        self.story.verdict = StoryVerdict(
            title, self.row, str(outcome.get("detail", "")), bad=True, facts=facts
        )


def json_of(step: Mapping[str, Any]) -> str:
    """A step of the schedule in one line."""
    return json.dumps({k: v for k, v in step.items() if k != "note"}, ensure_ascii=False)


def drawing_of_result(result: Result, adapter: str) -> str:
    """The sequence diagram of a result as SVG; ``""`` if nothing was done."""
    if not any(record.get("event") == "step" for record in result.history):
        return ""
    outcome = {**result.row(), "invariant": result.invariant, "adapter": adapter}
    story = story_of_history(msgspec.to_builtins(result.case), result.history, outcome)
    return drawing(story) if story.steps else ""
