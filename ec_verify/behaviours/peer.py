# SPDX-License-Identifier: Apache-2.0
"""Turns behaviours of ``Peer.tla`` into schedules: a producer that dies and comes back.

Each read of the model is one of an encoding of its own. The process that takes the
address saves them in the reverse order of the one before, so that addresses of the old
one name other bytes in the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ec_verify.behaviours.draft import BLOCKS_EACH, Draft
from ec_verify.behaviours.peer_read import TIMERS
from ec_verify.behaviours.reading import State, changed_keys, fired_by, gained
from ec_verify.models.tla_value import as_function

Move = tuple[str, State]


def schedule(moves: Sequence[Move], broken: str = "") -> Draft:
    """The schedule of a behaviour.

    Args:
        moves: The behaviour.
        broken: The property that its last step broke.
    """
    return _Translation(moves).translate(broken)


class _Translation:
    def __init__(self, moves: Sequence[Move]) -> None:
        self.moves = moves
        self.names = {read: f"A{read}" for read in as_function(moves[0][1]["read"]) or {}}
        blocks = len(self.names) * BLOCKS_EACH
        bounds = {"peer": 1.0, "grants": 1.0, "holds": 1.0}
        self.draft = Draft(
            {
                "C": {"blocks": blocks, "quotas": bounds},
                "P": {"blocks": blocks, "quotas": bounds},
            },
            self.names.values(),
            TIMERS,
        )
        self.requests: list[Any] = []
        self.acks: list[tuple[Any, Any]] = []
        self.reads: dict[Any, int] = {}
        self.answers: dict[Any, int] = {}
        self.turned = False

    def translate(self, broken: str) -> Draft:
        self._save_all()
        before = self.moves[0][1]
        for number, (action, after) in enumerate(self.moves[1:], 2):
            self.draft.note(f"state {number}: {action}")
            self._take(action, before, after)
            before = after
        if broken == "DownFailsInv":
            self._fall_back()
        if broken == "NoWrongBytesInv" and self.moves[-1][0] == "ReadDone":
            (read,) = changed_keys("read", self.moves[-2][1], self.moves[-1][1])
            self.draft.note("what the new process granted can be read from it")
            self.draft.must(
                {"servable": self.names[read], "at": "C", "after": f"P>C#{self.answers[read]}",
                 "expect": True, "clause": "EC-9.3"}
            )  # fmt: skip
        self.draft.whatever_is_loaded("C", self.names.values())
        if not before["alive"]:
            self.draft.note("somebody has to answer what is asked of P at the end")
            self.draft.restart("P")
        self.draft.nothing_is_left()
        return self.draft

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

    def _take(self, action: str, before: State, after: State) -> None:
        for read in changed_keys("read", before, after):
            self._read(action, read, before)
        for read, process in gained("acks", before, after):
            self.draft.attempt(
                {"deliver": "C>P", "nth": self.requests.index(read) + 1, "keep": True}
            )
            self.acks.append((read, process))
        if action == "PeerDown":
            if {item.event for item in fired_by(after)} & {"lost", "close"}:
                self.draft.must({"peer": "lost", "at": "C", "of": "P"})
        elif action == "ProcDies":
            self.draft.must({"crash": "P"})
        elif action == "ProcStarts":
            self.draft.restart("P")
            self._save_all()

    def _read(self, action: str, read: Any, before: State) -> None:
        draft = self.draft
        if action == "RequestRead":
            name = draft.declare("C", [self.names[read]], "P")
            draft.mark(f"asked{read}")
            draft.must({"step": "C", "run": [name]})
            self.requests.append(read)
        elif action == "AckOk":
            # The data plane posts as soon as the ack is there.
            self.reads[read] = len(self.reads) + 1
            nth = next(n for n, ack in enumerate(self.acks, 1) if ack[0] == read)
            self.answers[read] = nth
            draft.attempt({"deliver": "P>C", "nth": nth, "keep": True})
        elif action == "AckTimeout":
            draft.quiet_until(f"asked{read} + ack_timeout_s + eps")
            draft.touch("C")
        elif action == "Completes":
            draft.attempt({"dma": f"C#{self.reads[read]}", "do": "move"})
        elif action in ("ReadDone", "DmaEnded"):
            over = before["read"][read - 1]["dma"] == "over"
            draft.attempt({"dma": f"C#{self.reads[read]}", "do": "done" if over else "closed"})
        elif action == "ReadLost":
            draft.attempt({"dma": f"C#{self.reads[read]}", "do": "fail"})
            draft.mark(f"gone{read}")
        elif action == "Retire":
            draft.quiet_until(f"gone{read} + quarantine_s + eps")
            draft.touch("C")
