# SPDX-License-Identifier: Apache-2.0
"""Schedules of READs between a consumer and a producer, whatever model they come from.

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

Models count ticks; what matters of them is on which side of the fence and of the lease a
moment lies, and that is what the times of the schedule keep.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeVar

from ec_verify.behaviours.reading import Event, Message
from ec_verify.behaviours.schedule import Draft, Translation

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


class ReadEvent(Event):
    """A step of a model in which consumers READ from producers."""

    @property
    def attempt(self) -> Any:
        """The attempt that the step is about; None if it is about none."""
        raise NotImplementedError

    def ends(self, attempt: Any) -> tuple[str, str]:
        """Consumer and producer of an attempt, as schedules call them."""
        return "C", "P"

    def dma_ended(self, attempt: Any) -> Literal["done", "closed"] | None:
        """How the READ of an attempt had ended before the step; None: there is no proof."""
        raise NotImplementedError

    def fence_was_open(self, attempt: Any) -> bool:
        """Whether the consumer's fence was open before the step."""
        return False


E = TypeVar("E", bound=ReadEvent)


class ReadTranslation(Translation[E]):
    """Writes requests, answers, READs and notices."""

    def __init__(self, events: Sequence[E], draft: Draft) -> None:
        super().__init__(events, draft)
        self.sent: defaultdict[str, list[Message]] = defaultdict(list)
        self.requests: dict[Any, str] = {}  # attempt -> request
        self.reads: dict[Any, str] = {}  # attempt -> its READ, as in "C#1"
        self.posted: Counter[str] = Counter()  # READs of each consumer
        self.answers: dict[Any, int] = {}  # attempt -> number of the ack that its READ is of
        self.seen: set[Any] = set()  # attempts whose READ was seen to end
        self.held: dict[Any, Message] = {}  # attempt -> ack that waits in the socket

    # ----------------------------------------------------------------- messages
    def send(self, message: Message) -> None:
        """A message is on its way. It stays there: the models' network repeats."""
        self.sent[message.channel].append(message)

    def deliver(self, message: Message) -> None:
        """A message arrives, if an implementation has sent it."""
        if message in self.sent[message.channel]:
            nth = self.sent[message.channel].index(message) + 1
            self.draft.attempt({"deliver": message.channel, "nth": nth, "keep": True})

    def notice(self, attempt: Any, event: E) -> Message:
        """The notice of an attempt."""
        return Message("notice", attempt, None, *event.ends(attempt))

    def ask(self, attempt: Any, name: str, event: E) -> None:
        """A request of its own, which sets off the attempt."""
        consumer, producer = event.ends(attempt)
        request = self.requests[attempt] = self.draft.declare(consumer, [name], producer)
        self.draft.mark(f"asked{attempt}")
        self.draft.must({"step": consumer, "run": [request]})

    def ask_again(self, attempt: Any, request: str, event: E) -> None:
        """A request that waits asks once more."""
        self.requests[attempt] = request
        self.draft.mark(f"again{attempt}")
        self.draft.quiet_until(f"again{attempt} + retry_max_interval_s")
        self.draft.mark(f"asked{attempt}")
        self.draft.touch(event.ends(attempt)[0])

    def on_grant(self, event: E) -> None:
        """The producer answers."""
        for message in event.taken:
            self.deliver(message)
        for message in event.sent:
            self.send(message)
            if message.kind == "ok":
                self.draft.mark(f"granted{message.of}")

    def on_ackok(self, event: E) -> None:
        """An ack arrives; in the model the READ may be posted later than that."""
        attempt, (ack,) = event.attempt, event.taken
        later = (e for e in self.events[event.number :] if e.action == "PostRead")
        if any(e.attempt == attempt for e in later):
            self.held[attempt] = ack
        else:
            self.deliver(ack)

    def on_ackretry(self, event: E) -> None:
        """Any other answer, or one that nobody waits for, arrives."""
        for message in event.taken:
            self.deliver(message)

    on_ackrefused = on_ackretry
    on_dropack = on_ackretry

    def on_acktimeout(self, event: E) -> None:
        """No answer came in time."""
        self.draft.quiet_until(f"asked{event.attempt} + ack_timeout_s + eps")
        self.draft.touch(event.ends(event.attempt)[0])

    # -------------------------------------------------------------------- READs
    def post(self, attempt: Any, ack: Message, *, posted: bool = True) -> None:
        """An ack arrives, and the data plane posts the READ as soon as it is there."""
        if posted:
            self.posted[ack.consumer] += 1
            self.reads[attempt] = f"{ack.consumer}#{self.posted[ack.consumer]}"
        if ack in self.sent[ack.channel]:
            self.answers[attempt] = self.sent[ack.channel].index(ack) + 1
        self.deliver(ack)

    def end_read(self, attempt: Any, how: str | None, event: E) -> None:
        """The data plane says how a READ ended, once."""
        if how is not None and attempt in self.reads and attempt not in self.seen:
            self.seen.add(attempt)
            self.draft.attempt({"dma": self.reads[attempt], "do": how})
            if how == "done":
                self.send(self.notice(attempt, event))

    def move(self, attempt: Any, **how: Any) -> None:
        """Bytes of a READ move."""
        if attempt in self.reads:
            self.draft.attempt({"dma": self.reads[attempt], "do": "move", **how})

    def on_dmafinish(self, event: E) -> None:
        """All bytes have moved."""
        self.move(event.attempt)

    def on_readdone(self, event: E) -> None:
        """The consumer sees that its READ is done."""
        self.end_read(event.attempt, "done", event)

    def on_dmaended(self, event: E) -> None:
        """The consumer gets the proof that a READ has ended."""
        # Without one nothing is told: a correct consumer goes on waiting.
        self.end_read(event.attempt, event.dma_ended(event.attempt), event)

    def on_readlost(self, event: E) -> None:
        """The data plane gives a READ up."""
        if event.attempt in self.reads:
            self.draft.attempt({"dma": self.reads[event.attempt], "do": "fail"})
        self.draft.mark(f"gone{event.attempt}")

    def on_retire(self, event: E) -> None:
        """The quarantine is over without a proof."""
        self.draft.quiet_until(f"gone{event.attempt} + quarantine_s + eps")
        self.draft.touch(event.ends(event.attempt)[0])

    # ------------------------------------------------------------------- grants
    def on_complete(self, event: E) -> None:
        """A notice ends a grant."""
        for message in event.taken:
            if message not in self.sent[message.channel]:
                self.end_read(message.of, "done", event)
            self.deliver(message)

    def on_expire(self, event: E) -> None:
        """A lease is over."""
        # With the fence still open P's clock must be ahead; else the lease is just over.
        ahead = event.fence_was_open(event.attempt)
        self.draft.quiet_until(
            f"granted{event.attempt} + lease_s" + (" - 0.5 * lease_margin_s" if ahead else "")
        )
        self.draft.touch(event.ends(event.attempt)[1])
