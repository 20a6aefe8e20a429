# SPDX-License-Identifier: Apache-2.0
"""Schedules of behaviours of ``PeerRead.tla``: the consumer is C, the producer P."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ec_verify.behaviours.errors import NotExpressible
from ec_verify.behaviours.peer_read import ORIGIN, PeerReadEvent
from ec_verify.behaviours.reading import Message, Move, elements, read
from ec_verify.behaviours.reads import P_RATE, TIMERS, ReadTranslation
from ec_verify.behaviours.schedule import BLOCKS_EACH, Draft

#: What makes a schedule's allocation out of the model's.
_LATER_ALLOC: Final = ("RequestRead", "SaveBegin")


def schedule(
    moves: Sequence[Move], constants: Mapping[str, str] | None = None, broken: str = ""
) -> Draft:
    """As ``models.Model.schedule``.

    Most that breaks shows in wrong bytes or in blocks that are lost; for what does not,
    the end asks.
    """
    names = {str(n) for _, state in moves for n in elements(state, "names").values()}
    encodings = sorted(names - {"nothing"})
    # The model has no quotas: several grants may pin the one entry of the region.
    everything = {"peer": 8.0, "grants": 8.0, "holds": 1.0}
    blocks = len(elements(moves[-1][1], "retired"))
    nodes = {
        "C": {"blocks": blocks * BLOCKS_EACH, "quotas": everything},
        "P": {"blocks": BLOCKS_EACH, "quotas": everything, "rate": P_RATE},
    }
    draft = Draft(nodes, encodings, TIMERS)
    return _Translation(read(moves, PeerReadEvent), draft, encodings, broken).translate()


class _Translation(ReadTranslation[PeerReadEvent]):
    def __init__(
        self, events: Sequence[PeerReadEvent], draft: Draft, names: list[str], broken: str
    ) -> None:
        super().__init__(events, draft)
        self.names = names
        self.broken = broken
        self.wanted: dict[Any, str] = {}  # attempt -> encoding
        self.waiting: dict[Any, str] = {}  # slot -> request whose entry is kept for a retry
        self.saves: dict[Any, str] = {}  # slot -> request of a save
        #: Slot -> encoding and request of a save whose entry no other step names.
        self.passing: dict[Any, tuple[str, str]] = {}
        self.lost = False

    def take(self, event: PeerReadEvent) -> None:
        super().take(event)
        # A grant is given back without a READ: that notice is on its way as well.
        if event.action != "DmaFinish":
            for message in event.sent:
                if message.kind == "notice":
                    self.send(message)

    # --------------------------------------------------------------------- the end
    def end(self) -> None:
        self._ask_for_what_broke()
        for node in ("C", "P"):
            self.draft.whatever_is_loaded(node, self.names)
        self.draft.nothing_is_left()

    def _ask_for_what_broke(self) -> None:
        """The last step of the model is one that a correct consumer does not take."""
        last, draft = self.events[-1], self.draft
        posted = len(self.reads)
        if self.broken == "FencedPostProp":
            draft.note("too little of the lease is left: no READ")
            allowed = posted - 1 if last.action == "PostRead" else posted
            draft.must({"posted": "C", "count": allowed, "clause": "EC-5.2"})
        elif self.broken == "FencedAcceptInv":
            for name in self.names:
                draft.note("the READ ended after its fence: its bytes do not count")
                draft.must({"servable": name, "at": "C", "expect": False, "clause": "EC-5.3"})
        elif last.action == "ReadDone" and any(
            event.action == "ProducerRestart" for event in self.events
        ):
            # With the descriptors of its own ack the READ comes from the new process.
            draft.note("what the new process granted can be read from it")
            draft.must(
                {"servable": self.wanted[last.attempt], "at": "C",
                 "after": f"P>C#{self.answers[last.attempt]}", "expect": True, "clause": "EC-9.3"}
            )  # fmt: skip
        elif self.broken == "AttemptIdentityInv" and last.action == "AckOk":
            draft.note("the ack of another attempt: no READ")
            draft.must({"posted": "C", "count": posted, "clause": "EC-5.6"})

    # -------------------------------------------------------------- consumer's engine
    def on_requestread(self, event: PeerReadEvent) -> None:
        attempt = event.attempt
        slot = event.now("slot", attempt)
        name = self.wanted[attempt] = str(event.now("names", slot))
        if self.lost:
            self.draft.quiet_until("lost + lease_s")
            self.lost = False
        if slot in self.waiting:
            self.ask_again(attempt, self.waiting.pop(slot), event)
        else:
            self.ask(attempt, name, event)
        self.send(Message("request", attempt))

    def on_dmaalter(self, event: PeerReadEvent) -> None:
        raise NotExpressible("bytes change on their way: EC-8.11/10 is about that")

    def on_abort(self, event: PeerReadEvent) -> None:
        self.draft.give_up(self.requests.get(event.attempt))

    def on_settle(self, event: PeerReadEvent) -> None:
        if event.was("read", event.attempt) != "retryable":
            return
        slot = event.was("slot", event.attempt)
        if event.now("entry", slot) == "allocated" and slot:
            self.waiting[slot] = self.requests[event.attempt]
        else:
            self.draft.give_up(self.requests.get(event.attempt))

    def on_alloc(self, event: PeerReadEvent) -> None:
        if event.entry == ORIGIN:
            self._save_begins(event)
        elif not self._used_later(event):
            # All that the model has of it is the room that it takes.
            name = self.draft.spare(BLOCKS_EACH)
            self.passing[event.entry] = name, self.draft.request("C", [name])

    def _used_later(self, allocated: PeerReadEvent) -> bool:
        """Whether a READ or a save into the slot's entry follows, before it is freed."""
        slot = allocated.entry
        for event in self.events[allocated.number :]:
            if event.action == "RequestRead" and slot in elements(event.after, "slot").values():
                return True
            if slot in event.changed("entry"):
                return event.action in _LATER_ALLOC
        return False

    def _save_begins(self, event: PeerReadEvent) -> None:
        node = "P" if event.entry == ORIGIN else "C"
        name = str(event.now("names", event.entry))
        self.saves[event.entry] = self.draft.request(node, [name])

    def on_savebegin(self, event: PeerReadEvent) -> None:
        if event.entry not in self.saves:
            self._save_begins(event)

    def on_saveend(self, event: PeerReadEvent) -> None:
        node = "P" if event.entry == ORIGIN else "C"
        # Its request is not over yet: an announced encoding would be held for a while.
        self._land(str(event.now("names", event.entry)), node)
        self.saves.pop(event.entry, None)

    def on_evict(self, event: PeerReadEvent) -> None:
        self.draft.store_other("P" if event.entry == ORIGIN else "C")

    def on_cancel(self, event: PeerReadEvent) -> None:
        slot = event.entry
        if slot == ORIGIN and slot in self.saves:
            # No engine plans a save and leaves it out without a fault of its own, which
            # F7 is about and PeerRead is not: it lands, and gives way at once.
            self._land(str(event.was("names", slot)), "P")
            self.draft.give_up(self.saves.pop(slot))
            self.draft.store_other("P")
        elif slot in self.passing:
            name, request = self.passing.pop(slot)
            self._land(name, "C")
            self.draft.give_up(request)
        self.draft.give_up(self.waiting.pop(slot, None))

    def _land(self, name: str, node: str) -> None:
        self.draft.attempt({"copy": f"save {name}", "at": node, "do": "land"})

    # ---------------------------------------------------------------- consumer's reader
    def on_postread(self, event: PeerReadEvent) -> None:
        attempt = event.attempt
        ack = self.held.pop(attempt, Message("ok", attempt, 1))
        self.post(attempt, ack, posted=event.now("dma", attempt) == "posted")
        self.draft.mark(f"posted{attempt}")

    def on_readlost(self, event: PeerReadEvent) -> None:
        attempt = event.attempt
        events = {item.event for item in event.fired}
        if "peer_lost" in events:
            self.on_peerlost(event)
        elif "read_timeout" in events:
            self.draft.quiet_until(f"posted{attempt} + read_timeout_s + eps")
            self.draft.touch("C")
        elif attempt in self.reads:
            self.draft.attempt({"dma": self.reads[attempt], "do": "fail"})
        self.draft.mark(f"gone{attempt}")

    def on_peerlost(self, event: PeerReadEvent) -> None:
        if not self.lost:
            self.draft.must({"peer": "lost", "at": "C", "of": "P"})
            self.draft.mark("lost")
            self.lost = True

    def on_reclaim(self, event: PeerReadEvent) -> None:
        attempt = event.was("retired", event.changed("retired")[0])
        self.end_read(attempt, event.dma_ended(attempt), event)

    # ----------------------------------------------------- data plane, producer, clock
    def on_dmacopy(self, event: PeerReadEvent) -> None:
        self.move(event.attempt, blocks=1)

    on_answernotready = ReadTranslation.on_grant
    on_answermissing = ReadTranslation.on_grant

    def on_producerrestart(self, event: PeerReadEvent) -> None:
        self.draft.restart("P")
        self.saves.pop(ORIGIN, None)

    def on_tick(self, event: PeerReadEvent) -> None:
        bounds = {
            1: "asked{} + lease_s - lease_margin_s - min_read_s + eps",
            0: "asked{} + lease_s - lease_margin_s + eps",
        }
        for attempt in event.changed("fence"):
            if (left := event.now("fence", attempt)) in bounds:
                self.draft.quiet_until(bounds[left].format(attempt))
