# SPDX-License-Identifier: Apache-2.0
"""Turns behaviours of ``PeerRead.tla`` into schedules.

============================  =================================================
the model                     the schedule
============================  =================================================
``RequestRead``               a request at C, and an engine step
``Grant``, ``Answer…``        the request reaches P
``AckOk`` before ``PostRead``  nothing yet: the ack waits in C's socket
``PostRead``                  the ack reaches C, whose data plane posts at once
``DmaCopy``, ``DmaFinish``    the READ moves its first block, then the rest
``ReadDone``, ``DmaEnded``    the data plane tells C how the READ ended
``Complete``                  the notice reaches P
``Expire``                    P's lease is over by P's clock, which is ahead
``Evict``                     another encoding wants the space
``Tick``                      time passes up to the next bound of C's clock
============================  =================================================

The model counts ticks; what matters of them is on which side of the fence and of the
lease a moment lies, and that is what the times of the schedule keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ec_verify.behaviours.draft import BLOCKS_EACH, Draft
from ec_verify.behaviours.reading import State, changed_keys, fired_by, gained
from ec_verify.models.tla_value import as_function

#: One model state with the action that led to it.
Move = tuple[str, State]

#: Generous against each other, so that a schedule may dwell between any two bounds.
TIMERS: Final = {
    "lease_s": 300.0,
    "lease_margin_s": 3.0,
    "ack_timeout_s": 100.0,
    "read_timeout_s": 100.0,
    "quarantine_s": 200.0,
    "fetch_budget_s": 2000.0,
}
#: P's clock is ahead by two thirds of the margin within a lease (EC-A.2).
P_RATE: Final = 300.0 / 298.0

ORIGIN: Final = 0
_ANSWERS: Final = ("Grant", "AnswerNotReady", "AnswerMissing")
_ACKS: Final = {"AckRetry": "retry", "AckRefused": "refused", "DropAck": "ok"}
_LATER_ALLOC: Final = ("RequestRead", "SaveBegin")


def schedule(moves: Sequence[Move], broken: str = "") -> Draft:
    """The schedule of a behaviour.

    Args:
        moves: The behaviour.
        broken: The property that its last step broke. Most show in wrong bytes or in
            blocks that are lost; for those that do not, the end asks for it.
    """
    return _Translation(moves, broken).translate()


class _Translation:
    def __init__(self, moves: Sequence[Move], broken: str) -> None:
        self.moves = moves
        self.broken = broken
        last = moves[-1][1]
        blocks = len(as_function(last["retired"]) or {})
        encodings = sorted(
            {
                str(name)
                for _, state in moves
                for name in (as_function(state["names"]) or {}).values()
                if name != "nothing"
            }
        )
        # The model has no quotas: several grants may pin the one entry of the region.
        everything = {"peer": 8.0, "grants": 8.0, "holds": 1.0}
        self.draft = Draft(
            {
                "C": {"blocks": blocks * BLOCKS_EACH, "quotas": everything},
                "P": {"blocks": BLOCKS_EACH, "quotas": everything,
                      "rate": P_RATE},
            },
            encodings,
            TIMERS,
        )  # fmt: skip
        self.names = encodings
        self.sent: dict[str, list[tuple[Any, ...]]] = {"C>P": [], "P>C": [], "C~P": []}
        self.request_of: dict[Any, str] = {}  # attempt -> request
        self.wanted: dict[Any, str] = {}  # attempt -> encoding
        self.waiting: dict[Any, str] = {}  # slot -> request whose entry is kept for a retry
        self.saves: dict[Any, str] = {}  # slot -> request of a save
        #: Slot -> encoding and request of a save whose entry no other step names.
        self.passing: dict[Any, tuple[str, str]] = {}
        self.reads: dict[Any, int] = {}  # attempt -> number of its READ
        self.answers: dict[Any, int] = {}  # attempt -> number of the ack that its READ is of
        self.told: set[Any] = set()  # attempts whose READ was seen to end
        self.held_acks: dict[Any, tuple[Any, ...]] = {}
        self.lost = False

    def translate(self) -> Draft:
        before = self.moves[0][1]
        for number, (action, after) in enumerate(self.moves[1:], 2):
            self.draft.note(f"state {number}: {action}")
            self.number = number
            getattr(self, f"_on_{action.lower()}", self._on_other)(action, before, after)
            self._released(action, before, after)
            before = after
        self._end()
        return self.draft

    def _end(self) -> None:
        draft = self.draft
        self._expect()
        for node in ("C", "P"):
            draft.whatever_is_loaded(node, self.names)
        draft.nothing_is_left()

    def _expect(self) -> None:
        """The last step of the model is one that a correct consumer does not take."""
        last = self.moves[-1][0]
        posted = len(self.reads)
        if self.broken == "FencedPostProp":
            self.draft.note("too little of the lease is left: no READ")
            allowed = posted - 1 if last == "PostRead" else posted
            self.draft.must({"posted": "C", "count": allowed, "clause": "EC-5.2"})
        elif self.broken == "FencedAcceptInv":
            for name in self.names:
                self.draft.note("the READ ended after its fence: its bytes do not count")
                self.draft.must({"servable": name, "at": "C", "expect": False, "clause": "EC-5.3"})
        elif last == "ReadDone" and any(action == "ProducerRestart" for action, _ in self.moves):
            # With the descriptors of its own ack the READ comes from the new process.
            attempt = self._attempt("read", self.moves[-2][1], self.moves[-1][1])
            self.draft.note("what the new process granted can be read from it")
            self.draft.must(
                {"servable": self.wanted[attempt], "at": "C",
                 "after": f"P>C#{self.answers[attempt]}", "expect": True, "clause": "EC-9.3"}
            )  # fmt: skip
        elif self.broken == "AttemptIdentityInv" and last == "AckOk":
            self.draft.note("the ack of another attempt: no READ")
            self.draft.must({"posted": "C", "count": posted, "clause": "EC-5.6"})

    # -------------------------------------------------------------------- helpers
    def _attempt(self, variable: str, before: State, after: State) -> Any:
        keys = changed_keys(variable, before, after)
        return keys[0] if keys else None

    def _deliver(self, channel: str, message: tuple[Any, ...]) -> None:
        """A message arrives. It stays in the channel: the model's network repeats."""
        if message in self.sent[channel]:
            nth = self.sent[channel].index(message) + 1
            self.draft.attempt({"deliver": channel, "nth": nth, "keep": True})

    def _released(self, action: str, before: State, after: State) -> None:
        """A grant is given back without a READ: that notice is on its way as well."""
        if action not in ("DmaFinish", "DropAck"):
            for message in gained("net", before, after):
                if message["type"] == "notice":
                    self.sent["C~P"].append(("notice", message["of"]))

    def _later(self, attempt: Any, action: str) -> bool:
        """Whether the attempt takes the action later on."""
        states = [state for _, state in self.moves]
        for index in range(self.number, len(self.moves)):
            name, state = self.moves[index]
            if name == action and self._attempt("read", states[index - 1], state) == attempt:
                return True
        return False

    def _ack_of(self, attempt: Any, kind: str, before: State, after: State) -> tuple[Any, ...]:
        """The ack that a step took: the attempt's own, or with a broken identity another's."""
        acks = [m for m in before["net"] if m["type"] == kind]
        source = (as_function(after["src"]) or {}).get(attempt)
        own = [m for m in acks if m["of"] == attempt]
        chosen = [m for m in own if m["inc"] == source] or own or acks
        return (kind, chosen[-1]["of"], chosen[-1]["inc"]) if chosen else (kind, attempt, 0)

    def _tell(self, attempt: Any, how: str) -> None:
        """C's data plane says how a READ ended, once."""
        if attempt in self.reads and attempt not in self.told:
            self.told.add(attempt)
            self.draft.attempt({"dma": f"C#{self.reads[attempt]}", "do": how})
            if how == "done":
                self.sent["C~P"].append(("notice", attempt))

    # -------------------------------------------------------------- consumer's engine
    def _on_requestread(self, action: str, before: State, after: State) -> None:
        attempt = self._attempt("read", before, after)
        slot = (as_function(after["slot"]) or {})[attempt]
        name = str((as_function(after["names"]) or {})[slot])
        if self.lost:
            self.draft.quiet_until("lost + lease_s")
            self.lost = False
        if slot in self.waiting:
            request = self.waiting.pop(slot)
            self.draft.mark(f"again{attempt}")
            self.draft.quiet_until(f"again{attempt} + retry_max_interval_s")
            self.draft.mark(f"asked{attempt}")
            self.draft.touch("C")
        else:
            request = self.draft.declare("C", [name], "P")
            self.draft.mark(f"asked{attempt}")
            self.draft.must({"step": "C", "run": [request]})
        self.request_of[attempt] = request
        self.wanted[attempt] = name
        self.sent["C>P"].append(("req", attempt))

    def _on_abort(self, action: str, before: State, after: State) -> None:
        self.draft.give_up(self.request_of.get(self._attempt("read", before, after)))

    def _on_settle(self, action: str, before: State, after: State) -> None:
        attempt = self._attempt("read", before, after)
        slot = (as_function(before["slot"]) or {}).get(attempt)
        was = (as_function(before["read"]) or {}).get(attempt)
        kept = (as_function(after["entry"]) or {}).get(slot) == "allocated"
        if was == "retryable" and kept and slot:
            self.waiting[slot] = self.request_of[attempt]
        elif was == "retryable":
            self.draft.give_up(self.request_of.get(attempt))

    def _on_alloc(self, action: str, before: State, after: State) -> None:
        slot = self._attempt("entry", before, after)
        if slot == ORIGIN:
            self._save_begins(slot, after)
        elif not self._used_later(slot):
            # All that the model has of it is the room that it takes.
            name = self.draft.spare(BLOCKS_EACH)
            self.passing[slot] = name, self.draft.request("C", [name])

    def _used_later(self, slot: Any) -> bool:
        """Whether a READ or a save into the slot's entry follows, before it is freed."""
        before = self.moves[self.number - 1][1]
        for action, state in self.moves[self.number :]:
            if action == "RequestRead" and slot in (as_function(state["slot"]) or {}).values():
                return True
            if slot in changed_keys("entry", before, state):
                return action in _LATER_ALLOC
            before = state
        return False

    def _save_begins(self, slot: Any, state: State) -> None:
        name = str((as_function(state["names"]) or {})[slot])
        node = "P" if slot == ORIGIN else "C"
        self.saves[slot] = self.draft.request(node, [name])

    def _on_savebegin(self, action: str, before: State, after: State) -> None:
        slot = self._attempt("entry", before, after)
        if slot not in self.saves:
            self._save_begins(slot, after)

    def _on_saveend(self, action: str, before: State, after: State) -> None:
        slot = self._attempt("entry", before, after)
        name = (as_function(after["names"]) or {})[slot]
        node = "P" if slot == ORIGIN else "C"
        # Its request is not over yet: an announced encoding would be held for a while.
        self.draft.attempt({"copy": f"save {name}", "at": node, "do": "land"})
        self.saves.pop(slot, None)

    def _on_evict(self, action: str, before: State, after: State) -> None:
        slot = self._attempt("entry", before, after)
        self.draft.store_other("P" if slot == ORIGIN else "C")

    def _on_cancel(self, action: str, before: State, after: State) -> None:
        slot = self._attempt("entry", before, after)
        if slot == ORIGIN and slot in self.saves:
            # No engine plans a save and leaves it out without a fault of its own, which
            # F7 is about and PeerRead is not: it lands, and gives way at once.
            name = (as_function(before["names"]) or {})[slot]
            self.draft.attempt({"copy": f"save {name}", "at": "P", "do": "land"})
            self.draft.give_up(self.saves.pop(slot))
            self.draft.store_other("P")
        elif slot in self.passing:
            name, request = self.passing.pop(slot)
            self.draft.attempt({"copy": f"save {name}", "at": "C", "do": "land"})
            self.draft.give_up(request)
        self.draft.give_up(self.waiting.pop(slot, None))

    # ---------------------------------------------------------------- consumer's pump
    def _on_ackok(self, action: str, before: State, after: State) -> None:
        attempt = self._attempt("read", before, after)
        message = self._ack_of(attempt, "ok", before, after)
        if (as_function(after["read"]) or {})[attempt] == "granted" and self._later(
            attempt, "PostRead"
        ):
            self.held_acks[attempt] = message
        else:
            self._deliver("P>C", message)

    def _on_ackretry(self, action: str, before: State, after: State) -> None:
        attempt = self._attempt("read", before, after)
        self._deliver("P>C", self._ack_of(attempt, _ACKS[action], before, after))

    _on_ackrefused = _on_ackretry

    def _on_dropack(self, action: str, before: State, after: State) -> None:
        for notice in gained("net", before, after):
            self._deliver("P>C", ("ok", notice["of"], notice["inc"]))
            self.sent["C~P"].append(("notice", notice["of"]))

    def _on_acktimeout(self, action: str, before: State, after: State) -> None:
        attempt = self._attempt("read", before, after)
        self.draft.quiet_until(f"asked{attempt} + ack_timeout_s + eps")
        self.draft.touch("C")

    def _on_postread(self, action: str, before: State, after: State) -> None:
        attempt = self._attempt("read", before, after)
        message = self.held_acks.pop(attempt, ("ok", attempt, 1))
        posted = (as_function(after["dma"]) or {}).get(attempt) == "posted"
        if posted:
            self.reads[attempt] = len(self.reads) + 1
        if message in self.sent["P>C"]:
            self.answers[attempt] = self.sent["P>C"].index(message) + 1
        self._deliver("P>C", message)
        self.draft.mark(f"posted{attempt}")

    def _on_readdone(self, action: str, before: State, after: State) -> None:
        self._tell(self._attempt("read", before, after), "done")

    def _on_readlost(self, action: str, before: State, after: State) -> None:
        attempt = self._attempt("read", before, after)
        events = {item.event for item in fired_by(after)}
        if "peer_lost" in events:
            self._peer_lost()
        elif "read_timeout" in events:
            self.draft.quiet_until(f"posted{attempt} + read_timeout_s + eps")
            self.draft.touch("C")
        elif attempt in self.reads:
            self.draft.attempt({"dma": f"C#{self.reads[attempt]}", "do": "fail"})
        self.draft.mark(f"gone{attempt}")

    def _on_peerlost(self, action: str, before: State, after: State) -> None:
        self._peer_lost()

    def _peer_lost(self) -> None:
        if not self.lost:
            self.draft.must({"peer": "lost", "at": "C", "of": "P"})
            self.draft.mark("lost")
            self.lost = True

    def _on_dmaended(self, action: str, before: State, after: State) -> None:
        attempt = self._attempt("read", before, after)
        ended = (as_function(before["dma"]) or {}).get(attempt)
        # Without a proof nothing is told: a correct consumer goes on waiting.
        if ended == "completed":
            self._tell(attempt, "done")
        elif ended == "stopped":
            self._tell(attempt, "closed")

    def _on_retire(self, action: str, before: State, after: State) -> None:
        attempt = self._attempt("read", before, after)
        self.draft.quiet_until(f"gone{attempt} + quarantine_s + eps")
        self.draft.touch("C")

    def _on_reclaim(self, action: str, before: State, after: State) -> None:
        block = self._attempt("retired", before, after)
        attempt = (as_function(before["retired"]) or {}).get(block)
        ended = (as_function(before["dma"]) or {}).get(attempt)
        if ended in ("completed", "stopped"):
            self._tell(attempt, "done" if ended == "completed" else "closed")

    # --------------------------------------------------------------------- data plane
    def _on_dmacopy(self, action: str, before: State, after: State) -> None:
        self._move(self._attempt("dma", before, after), {"blocks": 1})

    def _on_dmafinish(self, action: str, before: State, after: State) -> None:
        self._move(self._attempt("dma", before, after), {})

    def _move(self, attempt: Any, how: dict[str, Any]) -> None:
        if attempt in self.reads:
            self.draft.attempt({"dma": f"C#{self.reads[attempt]}", "do": "move", **how})

    # ----------------------------------------------------------------------- producer
    def _on_grant(self, action: str, before: State, after: State) -> None:
        for message in gained("net", before, after):
            self._deliver("C>P", ("req", message["of"]))
            self.sent["P>C"].append((message["type"], message["of"], message["inc"]))
            if message["type"] == "ok":
                self.draft.mark(f"granted{message['of']}")

    _on_answernotready = _on_grant
    _on_answermissing = _on_grant

    def _on_complete(self, action: str, before: State, after: State) -> None:
        attempt = self._attempt("grant", before, after)
        own = ("notice", attempt)
        notices = [m["of"] for m in before["net"] if m["type"] == "notice"]
        source = attempt if attempt in notices or not notices else notices[-1]
        if ("notice", source) not in self.sent["C~P"]:
            self._tell(source, "done")
        self._deliver("C~P", own if source == attempt else ("notice", source))

    def _on_expire(self, action: str, before: State, after: State) -> None:
        attempt = self._attempt("grant", before, after)
        # With the fence still open P's clock must be ahead; else the lease is just over.
        ahead = (as_function(before["fence"]) or {}).get(attempt, 0) > 0
        self.draft.quiet_until(
            f"granted{attempt} + lease_s" + (" - 0.5 * lease_margin_s" if ahead else "")
        )
        self.draft.touch("P")

    def _on_producerrestart(self, action: str, before: State, after: State) -> None:
        self.draft.restart("P")
        self.saves.pop(ORIGIN, None)

    # -------------------------------------------------------------------------- clock
    def _on_tick(self, action: str, before: State, after: State) -> None:
        bounds = {
            1: "asked{} + lease_s - lease_margin_s - min_read_s + eps",
            0: "asked{} + lease_s - lease_margin_s + eps",
        }
        for attempt in changed_keys("fence", before, after):
            left = (as_function(after["fence"]) or {})[attempt]
            if left in bounds:
                self.draft.quiet_until(bounds[left].format(attempt))

    def _on_other(self, action: str, before: State, after: State) -> None:
        """``DmaStop``, ``PostFailed``: nothing that could be seen from outside."""
