# SPDX-License-Identifier: Apache-2.0
"""The work of a reader, step by step: what it asks of plane, connections and engine, and when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.needs import needs

needs("zmq", "msgspec")

from ec_connector.network.data.base import DataPlaneError, ReadEvent
from ec_connector.processes import reader as reader_module
from ec_connector.processes import reading as reading_module
from ec_connector.processes.reader import ReaderWork
from ec_protocol.p2p import words
from ec_protocol.p2p.wire import XferReq, XferStatus
from ec_protocol.tables.timing import Timing
from tests.ec_connector.network.played import BLOCK, PEER, Client, End, ReaderPlane, data_spec

TIMING = Timing()


class Bench:
    """A reader's work with everything beside it played, on a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.plane = ReaderPlane()
        self.engine, self.parent = End(), End()
        self.work = ReaderWork(
            data_spec("reader", TIMING),
            self.engine,  # type: ignore[arg-type]
            self.parent,  # type: ignore[arg-type]
            self.plane,
            clock=lambda: self.now,
        )
        self.client = Client()
        self.work._reading._client = self.client  # type: ignore[assignment]
        self.counters = self.work.reader.counters

    def lend(self, name: str = "h", loan: int = 1) -> XferReq | None:
        """The engine lends a block; the request that follows."""
        before = len(self.client.requests)
        deadline = self.now + TIMING.fetch_budget_s
        self.engine.coming.append(words.Lend(loan, name, *PEER, BLOCK, [(loan, 1)], deadline))
        self.work.turn()
        asked = self.client.requests[before:]
        return asked[0] if asked else None

    def granted(self, name: str = "h", loan: int = 1) -> int:
        """A fetch up to the posted READ, or as far as it gets; the attempt."""
        request = self.lend(name, loan)
        assert request is not None
        self.client.grant(request)
        self.work.turn()
        assert request.attempt_id is not None
        return request.attempt_id

    def ends(self, attempt: int, outcome: Any) -> None:
        self.plane.events.append(ReadEvent(attempt, outcome, ""))
        self.work.turn()

    def told(self) -> list[tuple[str, int]]:
        """What the engine was told."""
        return [word for message in self.engine.said for word in message.words]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.work.close()


# --------------------------------------------------------------------------- READs
def test_a_fetch_from_beginning_to_end(bench: Bench) -> None:
    attempt = bench.granted()
    assert bench.plane.calls == [("prepare", attempt), ("post", attempt)]
    bench.ends(attempt, "done")
    assert bench.told() == [("landed", 1)]
    assert bench.plane.calls[2:] == [("release", attempt)]


@pytest.mark.clause("EC-5.2")
def test_a_read_whose_fence_closes_while_it_is_prepared_is_not_posted(bench: Bench) -> None:
    def slow() -> None:
        bench.now += TIMING.lease_s

    bench.plane.meanwhile = slow
    attempt = bench.granted()
    assert [call for call in bench.plane.calls if call[0] != "notify"] == [
        ("prepare", attempt),
        ("discard", attempt),
    ]


@pytest.mark.clause("EC-5.2")
def test_an_answer_is_judged_by_the_time_at_which_it_is_read(bench: Bench) -> None:
    """The process stood still between its last look at the timers and the answer."""
    request = bench.lend()
    assert request is not None
    bench.now += TIMING.lease_s
    bench.client.grant(request)
    bench.work.turn()
    assert [what for what, _ in bench.plane.calls] == ["notify"], "given back, never prepared"


@pytest.mark.clause("EC-6.1", "EC-6.4", "EC-14.9")
def test_a_read_that_fails_is_abandoned_and_told_once(bench: Bench) -> None:
    attempt = bench.granted()
    bench.ends(attempt, "error")
    assert bench.plane.calls[2:] == [("abandon", attempt)]
    assert bench.told() == [("lost", 1)]
    bench.work.turn()
    assert bench.parent.said == [words.Drain("a READ is lost")]
    bench.ends(attempt, "done")
    assert bench.told() == [("lost", 1), ("proven", 1)]
    assert bench.plane.calls[-1] == ("release", attempt)


@pytest.mark.clause("EC-6.1", "EC-14.9")
def test_a_read_that_cannot_be_posted_is_lost_at_once(bench: Bench) -> None:
    """Nobody knows whether a byte of it is under way; nobody waits for it to time out."""
    bench.plane.errors["post"] = DataPlaneError("no")
    attempt = bench.granted()
    assert bench.plane.calls == [(what, attempt) for what in ("prepare", "post", "abandon")]
    assert bench.told() == [("lost", 1)]


@pytest.mark.clause("EC-5.11")
def test_what_cannot_be_prepared_is_given_back_in_the_same_turn(bench: Bench) -> None:
    bench.plane.errors["prepare"] = DataPlaneError("no")
    bench.granted()
    assert [what for what, _ in bench.plane.calls] == ["prepare", "notify"]
    assert bench.told() == [("failed", 1)]


def test_a_notice_that_cannot_be_sent_costs_nothing_else(bench: Bench) -> None:
    bench.plane.errors = {"prepare": DataPlaneError("no"), "notify": DataPlaneError("gone")}
    bench.granted()
    assert bench.work.figures()["stats"]["releases_dropped"] == 1
    assert bench.told() == [("failed", 1)]


def test_a_notice_that_may_be_under_way_is_progressed(bench: Bench) -> None:
    assert not bench.work.transferring(bench.now)
    bench.work.turn()
    assert bench.plane.polls == 0
    bench.plane.is_sending = True
    assert bench.work.transferring(bench.now)
    bench.work.turn()
    assert bench.plane.polls == 1


# ---------------------------------------------------------------- answers, connections
@pytest.mark.clause("EC-5.9")
def test_an_answer_that_does_not_come_is_not_waited_for(bench: Bench) -> None:
    bench.lend()
    assert bench.work.next_deadline() == bench.now + TIMING.ack_timeout_s
    bench.now += TIMING.ack_timeout_s
    bench.work.turn()
    assert bench.told() == [("failed", 1)]


@pytest.mark.clause("EC-9.1")
def test_an_answer_counts_although_its_connection_ends_behind_it(bench: Bench) -> None:
    request = bench.lend()
    assert request is not None
    bench.client.answer(request, int(XferStatus.NACK_MISSING), attempt_id=request.attempt_id)
    bench.client.changed = [(PEER, False)]
    bench.work.turn()
    assert bench.counters["refused"] == 1
    assert bench.told() == [("unreachable", 1)], "which it is by now"
    assert PEER in bench.client.closed


@pytest.mark.clause("EC-9.1")
def test_who_is_lost_is_closed_and_its_fetches_fail(bench: Bench) -> None:
    bench.lend()
    bench.client.changed = [(PEER, False)]
    bench.work.turn()
    assert bench.told() == [("unreachable", 1)]
    assert PEER in bench.client.closed


@pytest.mark.clause("EC-9.5")
def test_a_connection_that_nobody_knows_of_is_closed_when_it_is_lost(bench: Bench) -> None:
    """It would be lost again at every turn."""
    stranger = ("stranger", 1)
    bench.client.changed = [(stranger, False)]
    bench.work.turn()
    assert bench.client.closed == [stranger]


@pytest.mark.clause("EC-9.5")
def test_requests_that_are_never_answered_are_bounded(bench: Bench, monkeypatch) -> None:
    monkeypatch.setattr(reading_module, "_MAX_UNANSWERED", 3)
    for loan in range(1, 8):
        bench.lend(f"h{loan}", loan)
    assert len(bench.client.requests) == 7
    assert len(bench.work._reading._sent_at) <= 3


@pytest.mark.clause("EC-8.6")
def test_each_process_asks_under_a_session_of_its_own(bench: Bench) -> None:
    request = bench.lend()
    assert request is not None
    assert request.session_id.startswith("i-7.")


# ----------------------------------------------------------------------------- the engine
def test_what_nobody_waits_for_any_more_is_not_asked_for(bench: Bench) -> None:
    bench.lend()
    bench.engine.coming.append(words.TakeBack(1))
    bench.work.turn()
    assert bench.told() == [("failed", 1)]


@pytest.mark.clause("EC-14.4")
def test_words_that_the_engine_does_not_take_wait_in_order(bench: Bench, monkeypatch) -> None:
    monkeypatch.setattr(reader_module, "_WORDS", 2)
    bench.engine.full = True
    for loan in range(1, 6):
        bench.lend(f"h{loan}", loan)
        bench.engine.coming.append(words.TakeBack(loan))
        bench.work.turn()
    assert bench.told() == []
    assert bench.work.next_deadline() == bench.now + reader_module._AGAIN_S
    bench.engine.full = False
    bench.work.turn()
    assert bench.told() == [("failed", loan) for loan in range(1, 6)]
    assert [len(message.words) for message in bench.engine.said] == [2, 2, 1]


@pytest.mark.clause("EC-14.9")
def test_a_parent_that_does_not_hear_of_a_lost_read_is_told_again(bench: Bench) -> None:
    bench.parent.full = True
    bench.ends(bench.granted(), "error")
    assert bench.parent.said == []
    bench.parent.full = False
    for _ in range(3):
        bench.work.turn()
    assert bench.parent.said == [words.Drain("a READ is lost")]


# -------------------------------------------------------------------------------- the end
def test_the_last_words_are_of_what_was_not_posted(bench: Bench) -> None:
    bench.lend("asked", 1)
    attempt = bench.granted("reading", 2)
    bench.work.goodbye()
    assert sorted(bench.told()) == [("failed", 1), ("lost", 2)]
    assert ("abandon", attempt) not in bench.plane.calls, "it ends with the process"


def test_closing_lets_go_of_everything_whatever_the_plane_says(bench: Bench) -> None:
    bench.lend()
    bench.plane.errors["close"] = RuntimeError("no")
    bench.work.close()
    assert bench.client.ended
    assert bench.work.reader.words() == [("failed", 1)]
    del bench.plane.errors["close"]
