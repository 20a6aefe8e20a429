# SPDX-License-Identifier: Apache-2.0
"""The producer: who gets a grant, for how long, and what ends it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ec_protocol.p2p import wire
from ec_protocol.p2p.grants import _AMBIGUOUS_LEASES, ProducerGrants
from ec_protocol.p2p.wire import XferAck, XferReq, XferStatus
from ec_protocol.tier.entry import Entry
from tests.world.core import BLOCK, COMPAT, START, World

A, B = b"peer-a", b"peer-b"
LEASE = 30.0


def request(attempt: int = 1, mm_hash: str = "h", **changes: Any) -> XferReq:
    fields = {
        "mm_hash": mm_hash,
        "compatibility_hash": COMPAT,
        "session_id": f"c.{attempt}",
        "connector_version": 2,
        "attempt_id": attempt,
        "incarnation": "c",
    }
    return XferReq(**{**fields, **changes})  # type: ignore[arg-type]


def old_request(mm_hash: str = "h", session_id: str = "old", version: int = 0) -> XferReq:
    return XferReq(mm_hash, COMPAT, session_id, version)


class Bench:
    """A producer with one saved encoding, ``h``, of 100 bytes in two blocks."""

    def __init__(self, blocks: int = 16) -> None:
        self.producer = World(producer_blocks=blocks).producer
        self.grants: ProducerGrants = self.producer.grants
        self.entry: Entry = self.producer.save("h", 100)

    def ask(self, req: XferReq, identity: bytes = A, now: float = START) -> XferAck:
        """The ack as it arrives on the other side."""
        ack = self.grants.on_request(identity, req, now)
        return wire.decode_ack([b"", wire.encode(ack)])

    def granted(self, req: XferReq, identity: bytes = A, now: float = START) -> XferAck:
        ack = self.ask(req, identity, now)
        assert ack.status == XferStatus.OK
        return ack

    def holders(self) -> int:
        self.producer.check()
        pins = sum(len(e.holders) for e in self.producer.tier.entries())
        assert pins == self.grants.open_grants
        return pins


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ------------------------------------------------------------------------ answers
@pytest.mark.clause("EC-8.7", "EC-5.4")
def test_a_grant_pins_the_entry_and_says_where_it_is(bench: Bench) -> None:
    ack = bench.granted(request(7))
    assert (ack.mm_hash, ack.session_id, ack.attempt_id) == ("h", "c.7", 7)
    assert (ack.lease_s, ack.incarnation) == (LEASE, bench.grants.incarnation)
    assert (ack.base_addr, ack.block_size) == (bench.producer.base_addr, BLOCK)
    assert (ack.extents, ack.nbytes) == ([(0, 2)], 100)
    assert ack.agent_metadata == bench.producer.metadata
    assert (ack.mem_descriptor, ack.src_block_indices) == (b"", [])
    assert (bench.entry.state, bench.grants.open_grants) == ("pinned", 1)
    pieces, _ = wire.source_pieces(ack, 100, BLOCK)
    assert pieces == ((bench.producer.base_addr, 100),)


@pytest.mark.clause("EC-8.7")
def test_an_old_peer_gets_the_old_form_and_nothing_else(bench: Bench) -> None:
    ack = bench.granted(old_request())
    assert (ack.mm_hash, ack.session_id) == ("h", "old")
    assert ack.agent_metadata == bench.producer.metadata
    assert ack.src_block_indices == [0, 1]
    assert (ack.extents, ack.attempt_id, ack.lease_s, ack.incarnation) == ([], None, None, "")
    pieces, _ = wire.source_pieces(ack, 100, BLOCK)
    assert pieces == ((bench.producer.base_addr, 100),)
    assert ack.mem_descriptor == wire.mem_descriptor(bench.producer.base_addr, 16, BLOCK)


@pytest.mark.clause("EC-8.2")
@pytest.mark.parametrize("version", [0, 1, 2])
def test_versions_that_are_served(bench: Bench, version: int) -> None:
    assert bench.ask(request(connector_version=version)).status == XferStatus.OK
    assert bench.ask(old_request(version=version)).status == XferStatus.OK


@pytest.mark.clause("EC-8.2")
@pytest.mark.parametrize("version", [3, 4, 255, (1 << 63) - 1])
def test_versions_that_are_not(bench: Bench, version: int) -> None:
    ack = bench.ask(request(connector_version=version))
    assert ack.status == XferStatus.NACK_VERSION
    assert bench.grants.counters["nack_version"] == 1
    assert bench.holders() == 0


def not_landed(bench: Bench, state: str) -> None:
    entry = bench.producer.tier.alloc("other", 64)
    assert entry is not None
    if state == "saving":
        bench.producer.tier.begin_write(entry, ("save", 99))


def refusals() -> list[Any]:
    incompat = request(compatibility_hash="0" * 64)
    return [
        pytest.param(incompat, "NACK_INCOMPAT", id="another model"),
        pytest.param(request(compatibility_hash=""), "NACK_INCOMPAT", id="no hash"),
        pytest.param(request(mm_hash="unknown"), "NACK_MISSING", id="unknown"),
        pytest.param(request(session_id=""), "NACK_INTERNAL", id="no session"),
        pytest.param(request(session_id="a:b"), "NACK_INTERNAL", id="colon in the session"),
        pytest.param(old_request(session_id=""), "NACK_INTERNAL", id="old, no session"),
    ]


@pytest.mark.clause("EC-8.4", "EC-8.6")
@pytest.mark.parametrize(("req", "status"), refusals())
def test_refusals_pin_nothing_and_name_the_attempt(bench: Bench, req: XferReq, status: str) -> None:
    ack = bench.ask(req)
    assert XferStatus(ack.status).name == status
    assert (ack.mm_hash, ack.session_id, ack.attempt_id) == (
        req.mm_hash,
        req.session_id,
        req.attempt_id,
    )
    assert ack.incarnation == (bench.grants.incarnation if req.attempt_id is not None else "")
    assert bench.grants.counters[status.lower()] == 1
    assert (ack.agent_metadata, ack.extents, ack.src_block_indices) == (b"", [], [])
    assert bench.holders() == 0


@pytest.mark.clause("EC-5.4", "EC-11.2")
@pytest.mark.parametrize("state", ["allocated", "saving"])
def test_what_has_not_landed_is_not_ready(bench: Bench, state: str) -> None:
    not_landed(bench, state)
    assert bench.ask(request(mm_hash="other")).status == XferStatus.NACK_NOT_READY
    assert bench.holders() == 0


def test_a_quarantined_encoding_is_missing(bench: Bench) -> None:
    not_landed(bench, "saving")
    entry = bench.producer.tier.get("other")
    assert entry is not None
    bench.producer.tier.write_lost(entry, ("save", 99))
    assert bench.ask(request(mm_hash="other")).status == XferStatus.NACK_MISSING


def test_without_a_data_plane_nothing_is_ready_yet(bench: Bench) -> None:
    made = bench.grants
    bench.grants = ProducerGrants(
        made.shelf,
        timing=made.timing,
        compat_hash=COMPAT,
        incarnation=made.incarnation,
        base_addr=made.base_addr,
    )
    assert bench.ask(request()).status == XferStatus.NACK_NOT_READY
    bench.grants.agent_metadata = b"now"
    assert bench.granted(request()).agent_metadata == b"now"


def test_each_answer_and_each_notice_is_counted(bench: Bench) -> None:
    for attempt in (1, 2):
        bench.granted(request(attempt))
        bench.granted(request(attempt))
        bench.ask(request(attempt, "unknown"))
        bench.grants.on_notice(b"another", START)
    wanted = ("grants", "duplicate_requests", "nack_missing", "stale_notices")
    assert [bench.grants.counters[name] for name in wanted] == [2, 2, 2, 2]


# ------------------------------------------------------------------------- leases
@pytest.mark.clause("EC-5.5", "EC-7.3")
@pytest.mark.parametrize("end", [START + LEASE, math.nextafter(START + LEASE, math.inf)])
def test_a_lease_ends_at_its_bound_and_not_before(bench: Bench, end: float) -> None:
    bench.granted(request())
    assert bench.grants.next_deadline() == START + LEASE
    bench.grants.tick(math.nextafter(START + LEASE, 0.0))
    assert bench.holders() == 1
    bench.grants.tick(end)
    assert bench.holders() == 0
    assert (bench.entry.state, bench.grants.next_deadline()) == ("ready", None)
    assert bench.grants.counters["expired"] == 1


def test_each_grant_has_a_lease_of_its_own(bench: Bench) -> None:
    bench.granted(request(1))
    bench.granted(request(2), now=START + 10)
    assert bench.grants.next_deadline() == START + LEASE
    bench.grants.tick(START + LEASE)
    assert bench.holders() == 1
    assert bench.grants.next_deadline() == START + 10 + LEASE
    bench.grants.tick(START + 10 + LEASE)
    assert bench.holders() == 0


@pytest.mark.clause("EC-5.7")
def test_the_same_request_again_gets_the_same_pin_and_what_is_left(bench: Bench) -> None:
    bench.granted(request())
    again = bench.granted(request(), now=START + 12)
    assert again.lease_s == LEASE - 12
    assert bench.holders() == 1
    assert bench.grants.counters["duplicate_requests"] == 1
    assert bench.grants.counters["grants"] == 1
    bench.grants.tick(START + LEASE)
    assert bench.holders() == 0, "the lease was not prolonged"


@pytest.mark.clause("EC-5.7")
def test_the_same_request_at_the_last_moment_gets_no_lease(bench: Bench) -> None:
    bench.granted(request())
    assert bench.granted(request(), now=START + LEASE + 5).lease_s == 0.0
    assert bench.holders() == 1


def test_the_same_request_after_its_grant_ended_is_a_new_one(bench: Bench) -> None:
    bench.granted(request())
    bench.grants.tick(START + LEASE)
    assert bench.granted(request(), now=START + LEASE).lease_s == LEASE
    assert bench.holders() == 1


# ------------------------------------------------------------------------ notices
@pytest.mark.clause("EC-5.5")
def test_the_notice_of_the_attempt_ends_its_grant(bench: Bench) -> None:
    bench.granted(request(1))
    bench.grants.on_notice(b"c.1:h", START + 1)
    assert bench.holders() == 0
    assert (bench.entry.state, bench.grants.counters["completed"]) == ("ready", 1)
    bench.grants.on_notice(b"c.1:h", START + 1)
    assert bench.grants.counters["stale_notices"] == 1


@pytest.mark.clause("EC-5.5")
@pytest.mark.parametrize(
    "notice", [b"", b":", b"c.1", b"c.1:", b"c.1:h2", b"c.2:h", b"C.1:h", b"c.1:h\0", b"\xff\xfe"]
)
def test_a_notice_that_names_no_grant_changes_nothing(bench: Bench, notice: bytes) -> None:
    bench.granted(request(1))
    bench.grants.on_notice(notice, START + 1)
    assert bench.holders() == 1
    assert bench.grants.counters["stale_notices"] == 1


@pytest.mark.clause("EC-5.5")
def test_f2_the_notice_of_attempt_1_does_not_end_grant_2(bench: Bench) -> None:
    bench.granted(request(1))
    bench.grants.tick(START + LEASE)
    bench.granted(request(2), now=START + LEASE)
    bench.grants.on_notice(b"c.1:h", START + LEASE + 1)
    assert bench.holders() == 1
    assert bench.grants.counters["stale_notices"] == 1
    bench.grants.on_notice(b"c.2:h", START + LEASE + 2)
    assert bench.holders() == 0


# ---------------------------------------------------------------------- old peers
@pytest.mark.clause("EC-5.5")
def test_an_old_peer_whose_notice_can_mean_one_grant_only_is_heard(bench: Bench) -> None:
    for i in range(3):
        bench.granted(old_request(), now=START + i)
        bench.grants.on_notice(b"old:h", START + i)
        assert bench.holders() == 0
    assert bench.grants.counters["completed"] == 3


@pytest.mark.clause("EC-5.5")
def test_with_two_grants_of_an_old_peer_no_notice_ends_either(bench: Bench) -> None:
    bench.granted(old_request())
    bench.granted(old_request(), now=START + 5)
    assert bench.holders() == 2
    for _ in range(2):
        bench.grants.on_notice(b"old:h", START + 6)
    assert bench.holders() == 2
    assert bench.grants.counters["ambiguous_notices"] == 2
    assert bench.grants.counters["completed"] == 0
    bench.grants.tick(START + LEASE)
    bench.grants.on_notice(b"old:h", START + LEASE)
    assert bench.holders() == 1, "one is left, but the notice may be the other's"
    bench.grants.tick(START + 5 + LEASE)
    assert bench.holders() == 0


@pytest.mark.clause("EC-5.5")
def test_f2_after_an_expired_lease_an_old_peers_notice_is_not_trusted(bench: Bench) -> None:
    """Attempt 1's notice may still be on its way when grant 2 is made."""
    bench.granted(old_request())
    bench.grants.tick(START + LEASE)
    bench.granted(old_request(), now=START + LEASE + 1)
    bench.grants.on_notice(b"old:h", START + LEASE + 2)
    assert bench.holders() == 1
    assert bench.grants.counters["ambiguous_notices"] == 1


@pytest.mark.clause("EC-5.5")
def test_f2_a_late_notice_does_not_end_the_grant_of_an_old_peer_of_the_same_name(
    bench: Bench,
) -> None:
    """Two processes that chose one session name; only the first names its attempts."""
    bench.granted(request(1))
    bench.granted(old_request(session_id="c.1"), B, now=START + 5)
    bench.grants.tick(START + LEASE)
    assert bench.holders() == 1
    bench.grants.on_notice(b"c.1:h", START + LEASE)
    assert bench.holders() == 1
    assert bench.grants.counters["ambiguous_notices"] == 1
    bench.grants.tick(START + 5 + LEASE)
    assert bench.holders() == 0


@pytest.mark.clause("EC-5.7", "EC-5.5")
@pytest.mark.parametrize("first", [old_request(session_id="c.1"), request(2, session_id="c.1")])
def test_only_the_same_attempt_is_a_repetition(bench: Bench, first: XferReq) -> None:
    """Another one under its session has a lease of its own, and no notice ends either."""
    bench.granted(first, B)
    ack = bench.granted(request(1), now=START + 5)
    assert (ack.attempt_id, ack.lease_s, bench.holders()) == (1, LEASE, 2)
    again = bench.granted(request(1), now=START + 6)
    assert (again.lease_s, bench.holders()) == (LEASE - 1, 2)
    assert bench.grants.counters["duplicate_requests"] == 1
    bench.grants.on_notice(b"c.1:h", START + 7)
    assert bench.holders() == 2
    bench.grants.tick(START + LEASE)
    assert bench.holders() == 1
    bench.grants.on_notice(b"c.1:h", START + LEASE)
    assert bench.holders() == 1


def test_other_encodings_of_the_old_peer_are_not_ambiguous(bench: Bench) -> None:
    bench.producer.save("h2", 64)
    bench.granted(old_request())
    bench.grants.tick(START + LEASE)
    bench.granted(old_request("h2"), now=START + LEASE)
    bench.grants.on_notice(b"old:h2", START + LEASE)
    assert bench.holders() == 0


@pytest.mark.clause("EC-9.5")
def test_ambiguity_is_forgotten_after_some_leases(bench: Bench) -> None:
    bench.granted(old_request())
    bench.grants.tick(START + LEASE)
    end = START + LEASE + _AMBIGUOUS_LEASES * LEASE
    bench.grants.tick(math.nextafter(end, 0.0))
    assert len(bench.grants._ambiguous) == 1
    bench.grants.tick(end)
    assert bench.grants._ambiguous == {}
    bench.granted(old_request(), now=end)
    bench.grants.on_notice(b"old:h", end)
    assert bench.holders() == 0


@pytest.mark.clause("EC-9.5")
def test_all_ambiguities_that_are_over_are_forgotten_at_once(bench: Bench) -> None:
    for session in ("one", "two", "three"):
        bench.granted(old_request(session_id=session))
    bench.grants.tick(START + LEASE)
    assert len(bench.grants._ambiguous) == 3
    bench.grants.tick(START + LEASE + _AMBIGUOUS_LEASES * LEASE)
    assert bench.grants._ambiguous == {}


def test_the_description_for_old_peers_is_made_once(bench: Bench) -> None:
    """For a large region it takes seconds, under the lock when a request is answered."""
    bench.grants.describe_region()
    made = bench.grants._old_descriptor
    bench.granted(old_request())
    assert bench.grants._old_descriptor is made


def test_ambiguity_outlives_its_time_while_a_grant_is_open(bench: Bench) -> None:
    bench.granted(old_request())
    bench.granted(old_request())
    end = START + (_AMBIGUOUS_LEASES + 1) * LEASE
    # The server slept through everything; the notice comes before the tick.
    bench.grants.on_notice(b"old:h", end)
    assert bench.holders() == 2
    bench.grants.tick(end)
    assert bench.holders() == 0


def test_a_new_peers_expired_lease_makes_nothing_ambiguous(bench: Bench) -> None:
    bench.granted(request(1))
    bench.grants.tick(START + LEASE)
    assert bench.grants._ambiguous == {}
