# SPDX-License-Identifier: Apache-2.0
"""Behaviours of ``Peer.tla``: sessions with a peer that dies and comes back.

In a schedule each read of the model is one of an encoding of its own. The process that
takes the address saves them in the reverse order of the one before, so that addresses of
the old one name other bytes in the new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

from ec_verify.behaviours.picture import STATE_STYLE, Picture
from ec_verify.behaviours.reading import Message, Move, State, elements, read
from ec_verify.behaviours.reads import TIMERS, ReadEvent, ReadTranslation
from ec_verify.behaviours.schedule import BLOCKS_EACH, Draft
from ec_verify.behaviours.story import Lane, Step
from ec_verify.models.tla_value import as_text


class PeerEvent(ReadEvent):
    """A step of the consumer, of the data plane, or of the process behind the address."""

    needs: ClassVar = frozenset({"peer", "inc", "current", "read", "proc", "acks"})

    @property
    def lane(self) -> str:
        """Where an action of the module happens."""
        if self.action in ("ProcDies", "ProcStarts", "Answer"):
            return "peer"
        if self.action in ("Completes", "Breaks"):
            return "dma"
        return "engine" if self.action in ("PeerOpen", "RequestRead", "Settle") else "reader"

    @cached_property
    def attempts(self) -> list[Any]:
        """The reads that the step is about."""
        return [ack.of for ack in self.sent if ack.kind == "ok"][-1:] or self.changed("read")

    @property
    def attempt(self) -> Any:
        """The first of them."""
        return self.attempts[0] if self.attempts else None

    @cached_property
    def sent(self) -> Sequence[Message]:
        """Requests and acks."""
        if self.action == "RequestRead":
            return [Message("request", attempt) for attempt in self.changed("read")]
        return [Message("ok", attempt, process) for attempt, process in self.gained("acks")]

    @property
    def taken(self) -> Sequence[Message]:
        """The request that was answered, the ack that arrived."""
        if self.action == "AckOk":
            return [Message("ok", r, self.now("read", r)["meta"]) for r in self.changed("read")]
        return [Message("request", message.of) for message in self.sent if message.kind == "ok"]

    def dma_ended(self, attempt: Any) -> Literal["done", "closed"] | None:
        """All bytes have come, or none will."""
        return "done" if self.was("read", attempt)["dma"] == "over" else "closed"


class PeerPicture(Picture[PeerEvent]):
    """The consumer and its sessions, the process behind the address."""

    environment: ClassVar = {
        "ProcDies": "The process behind the address dies.",
        "ProcStarts": "Another process takes the address.",
        "Answer": "The process answers the request with OK.",
        "Completes": "All bytes of the READ have come.",
        "Breaks": "The process that the READ names is gone: it will not complete.",
    }

    def lanes(self, first: State) -> list[Lane]:
        """Consumer, data plane, peer."""
        return [
            Lane("engine", "engine", "consumer"),
            Lane("reader", "reader", "consumer"),
            Lane("sessions", "sessions", "consumer", "bars"),
            Lane("reads", "reads", "consumer", "bars"),
            Lane("dma", "DMA", "data plane"),
            Lane("life", "process", "peer", "bars"),
            Lane("peer", "server", "peer"),
        ]

    def place(self, variable: str, key: Any) -> str:
        """Groups by session and by read."""
        if key is None:
            return f"{'peer' if variable in ('proc', 'alive') else 'consumer'}|{variable}"
        return f"{'read' if variable == 'read' else 'session'} {as_text(key)}|{variable}"

    def label(self, message: Message) -> str:
        """An ack says which process gave it."""
        label = super().label(message)
        return label if message.process is None else f"{label} from process {message.process}"

    def draw(self, event: PeerEvent, step: Step) -> None:
        """Requests, acks, and the states of sessions and reads."""
        for message in event.sent:
            self.send(message, event.lane, "peer" if message.kind == "request" else "reader")
        for message in event.taken:
            self.receive(message)
        if event.action == "PostRead":
            self.arrow("reader", "dma", "post READ", "data")
        subjects = [f"read {as_text(r)}" for r in event.attempts]
        subjects += [f"session {as_text(s)}" for s in event.changed("peer")]
        step.subject = ", ".join(subjects)
        self._bars(event.after)

    def _bars(self, state: State) -> None:
        for session, peer in elements(state, "peer").items():
            style = "ready" if peer == "live" else STATE_STYLE.get(str(peer), "allocated")
            known = elements(state, "inc").get(session)
            label = f"{as_text(session)}: {peer}" + (f", process {known}" if known else "")
            self.bar(("session", session), peer != "drained", "sessions", label, style)
        for number, record in elements(state, "read").items():
            st = str(record["st"])
            there, style = st not in ("none", "settled"), STATE_STYLE.get(st, "lease")
            self.bar(("read", number), there, "reads", f"read {as_text(number)}: {st}", style)
        self.bar("process", state["alive"], "life", f"process {state['proc']}", "state")


def schedule(
    moves: Sequence[Move], constants: Mapping[str, str] | None = None, broken: str = ""
) -> Draft:
    """As ``models.Model.schedule``."""
    names = {attempt: f"A{attempt}" for attempt in elements(moves[0][1], "read")}
    node = {
        "blocks": len(names) * BLOCKS_EACH,
        "quotas": {"peer": 1.0, "grants": 1.0, "holds": 1.0},
    }
    draft = Draft({"C": node, "P": node}, names.values(), TIMERS)
    return _Translation(read(moves, PeerEvent), draft, names, broken).translate()


class _Translation(ReadTranslation[PeerEvent]):
    def __init__(
        self, events: Sequence[PeerEvent], draft: Draft, names: dict[Any, str], broken: str
    ) -> None:
        super().__init__(events, draft)
        self.names = names
        self.broken = broken
        self.turned = False
        self._save_all()

    def end(self) -> None:
        last = self.events[-1]
        if self.broken == "DownFailsInv":
            self._fall_back()
        if self.broken == "NoWrongBytesInv" and last.action == "ReadDone":
            self.draft.note("what the new process granted can be read from it")
            self.draft.must(
                {"servable": self.names[last.attempt], "at": "C",
                 "after": f"P>C#{self.answers[last.attempt]}", "expect": True, "clause": "EC-9.3"}
            )  # fmt: skip
        self.draft.whatever_is_loaded("C", self.names.values())
        if not last.after["alive"]:
            self.draft.note("somebody has to answer what is asked of P at the end")
            self.draft.restart("P")
        self.draft.nothing_is_left()

    def _fall_back(self) -> None:
        """What waited for a peer that is down is encoded in the next step (EC-9.1)."""
        for name, node in self.draft.open_requests.items():
            if node == "C":
                self.draft.note("its peer is down: nothing waits for it")
                self.draft.must(
                    {"step": "C", "run": [name], "expect": {name: "encode"}, "clause": "EC-9.1"}
                )

    def _save_all(self) -> None:
        names = list(self.names.values())
        for name in reversed(names) if self.turned else names:
            self.draft.must({"store": name, "at": "P"})
        self.turned = not self.turned

    # ------------------------------------------------------------------ consumer
    def on_requestread(self, event: PeerEvent) -> None:
        self.ask(event.attempt, self.names[event.attempt], event)
        for message in event.sent:
            self.send(message)

    def on_ackok(self, event: PeerEvent) -> None:
        (ack,) = event.taken
        self.post(event.attempt, ack)

    def on_peerdown(self, event: PeerEvent) -> None:
        if {item.event for item in event.fired} & {"lost", "close"}:
            self.draft.must({"peer": "lost", "at": "C", "of": "P"})

    def on_completes(self, event: PeerEvent) -> None:
        self.move(event.attempt)

    def on_readdone(self, event: PeerEvent) -> None:
        self.end_read(event.attempt, event.dma_ended(event.attempt), event)

    # ---------------------------------------------------------------------- peer
    def on_answer(self, event: PeerEvent) -> None:
        for message in event.taken:
            self.deliver(message)
        for message in event.sent:
            self.send(message)

    def on_procdies(self, event: PeerEvent) -> None:
        self.draft.must({"crash": "P"})

    def on_procstarts(self, event: PeerEvent) -> None:
        self.draft.restart("P")
        self._save_all()
