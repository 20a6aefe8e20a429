# SPDX-License-Identifier: Apache-2.0
"""The producer's limits: what one peer may pin, what an ack can say, and the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ec_protocol.names import stranger_name
from ec_protocol.p2p import wire
from ec_protocol.p2p.wire import XferStatus
from ec_protocol.trace import Trace
from tests.ec_protocol.p2p.test_producer import LEASE, A, B, Bench, old_request, request
from tests.world.core import BLOCK, COMPAT, START


@pytest.mark.clause("EC-5.10")
def test_f11_one_peer_cannot_pin_the_tier_solid() -> None:
    bench = Bench(blocks=16)
    names = ["h", *(f"h{i}" for i in range(1, 8))]
    for name in names[1:]:
        bench.producer.save(name, 100)
    got = [bench.ask(request(i, name), A).status for i, name in enumerate(names)]
    assert got == [XferStatus.OK] * 4 + [XferStatus.NACK_NOT_READY] * 4
    assert bench.grants.counters["over_quota"] == 4
    assert bench.producer.tier.evictable_blocks == 8
    assert bench.ask(request(99, names[7]), B).status == XferStatus.OK
    # What ends frees its share.
    bench.grants.on_notice(b"c.0:h", START)
    assert bench.ask(request(50, names[6]), A).status == XferStatus.OK
    assert bench.ask(request(51, names[5]), A).status == XferStatus.NACK_NOT_READY
    bench.grants.tick(START + LEASE)
    assert bench.holders() == 0
    assert bench.grants._peer_blocks == {}


@pytest.mark.clause("EC-5.10")
def test_f11_the_same_encoding_over_and_over_counts_each_time() -> None:
    bench = Bench(blocks=8)
    got = [bench.ask(old_request(), A).status for _ in range(4)]
    assert got == [XferStatus.OK] * 2 + [XferStatus.NACK_NOT_READY] * 2


@pytest.mark.clause("EC-5.10")
def test_what_is_larger_than_a_peers_share_is_its_only_grant() -> None:
    """Else it could never be read; others are served beside it. A peer may pin half."""
    bench = Bench(blocks=20)
    assert (bench.grants.quota_blocks, bench.grants.grant_quota_blocks) == (10, 18)
    bench.producer.save("large", 11 * BLOCK)
    assert bench.ask(request(1, "large"), A).status == XferStatus.OK
    assert bench.ask(request(2, "h"), A).status == XferStatus.NACK_NOT_READY
    assert bench.ask(request(3, "h"), B).status == XferStatus.OK
    assert bench.ask(request(4, "large"), B).status == XferStatus.NACK_NOT_READY
    assert bench.grants.counters["over_quota"] == 2
    bench.grants.on_notice(b"c.3:h", START)
    assert bench.ask(request(5, "large"), B).status == XferStatus.OK


@pytest.mark.clause("EC-8.8")
def test_an_entry_in_more_pieces_than_an_ack_may_name_is_refused_and_not_pinned() -> None:
    """The consumer would have to drop such an ack and wait for its timeout."""
    pieces = wire.MAX_EXTENTS + 1
    bench = Bench(blocks=2 * pieces + 2)
    tier = bench.producer.tier
    gaps = []
    for i in range(pieces):
        gap = tier.alloc(f"gap-{i}", BLOCK)
        assert gap is not None
        gaps.append(gap)
        assert tier.alloc(f"wall-{i}", BLOCK) is not None
    tier.pin(bench.entry, ("load", 1))
    for gap in gaps:
        tier.cancel(gap)
    scattered = bench.producer.save("scattered", pieces * BLOCK)
    assert len(scattered.extents) == pieces
    for attempt in (1, 2):
        ack = bench.ask(request(attempt, "scattered"))
        assert ack.status == XferStatus.NACK_INTERNAL
        assert (scattered.state, bench.grants.counters["too_many_extents"]) == ("ready", attempt)
    # The old form names blocks and has room for them.
    assert bench.ask(old_request("scattered")).status == XferStatus.OK


@pytest.mark.clause("EC-5.10")
def test_all_peers_together_pin_a_bounded_share() -> None:
    """Identities are the peers' own choice: many of them get no more than the rest."""
    bench = Bench(blocks=20)
    for number in range(18):
        bench.producer.save(f"e{number}", BLOCK)
    grants = bench.grants
    statuses = [
        grants.on_request(
            f"peer-{number}".encode(),
            wire.XferReq(
                mm_hash=f"e{number}",
                compatibility_hash=COMPAT,
                session_id=f"s{number}.1",
                attempt_id=1,
            ),
            START,
        ).status
        for number in range(18)
    ]
    # The fixture's own entry takes two of the 20 blocks; 0.9 of 20 are 18.
    assert statuses == [XferStatus.OK] * 18
    assert bench.ask(request(77, "h"), A).status == XferStatus.NACK_NOT_READY
    assert grants.counters["over_grant_quota"] == 1
    assert bench.entry.state == "ready"
    again = wire.XferReq(
        mm_hash="e0", compatibility_hash=COMPAT, session_id="other.1", attempt_id=1
    )
    assert grants.on_request(b"other", again, START).status == 0, "it pins nothing more"
    grants.tick(START + LEASE)
    assert (grants.granted_blocks, grants.open_grants) == (0, 0)


def with_large() -> Bench:
    """A region of 20 blocks, of which grants may pin 18, with an encoding of 19 and one of 1."""
    bench = Bench(blocks=20)
    assert bench.grants.grant_quota_blocks == 18
    bench.producer.save("large", 19 * BLOCK)
    bench.producer.save("small", BLOCK)
    return bench


@pytest.mark.clause("EC-5.10")
def test_what_is_larger_than_the_share_of_all_grants_is_the_only_grant() -> None:
    """Else it could never be read; a second reader would only prolong what it costs."""
    bench = with_large()
    assert bench.ask(request(1, "small"), A).status == XferStatus.OK
    assert bench.ask(request(2, "large"), B).status == XferStatus.NACK_NOT_READY
    bench.grants.on_notice(b"c.1:small", START)
    assert bench.ask(request(2, "large"), B).status == XferStatus.OK
    assert bench.grants.granted_blocks == 19
    assert bench.ask(request(3, "small"), A).status == XferStatus.NACK_NOT_READY
    assert bench.ask(request(4, "large"), A).status == XferStatus.NACK_NOT_READY
    assert bench.grants.counters["over_grant_quota"] == 3
    again = bench.ask(request(2, "large"), B, START + 1)
    assert (again.status, again.lease_s) == (XferStatus.OK, LEASE - 1)
    bench.grants.tick(START + LEASE)
    assert bench.ask(request(5, "small"), A, START + LEASE).status == XferStatus.OK
    assert bench.grants.granted_blocks == 1


@pytest.mark.clause("EC-5.10")
@pytest.mark.parametrize("ends", ["notice", "lease"])
def test_f11_whoever_asks_for_it_again_and_again_leaves_the_engine_its_room(ends: str) -> None:
    """Each grant ends, but another at once would pin the region for ever."""
    bench = with_large()
    bench.granted(request(1, "large"), A)
    end = START + 1 if ends == "notice" else START + LEASE
    if ends == "notice":
        bench.grants.on_notice(b"c.1:large", end)
    else:
        bench.grants.tick(end)
    for attempt, peer in enumerate((A, B), 2):
        for now in (end, end + LEASE - 0.001):
            ack = bench.ask(request(attempt, "large"), peer, now)
            assert ack.status == XferStatus.NACK_NOT_READY
    # Others are served meanwhile, and that they are makes the pause no longer.
    bench.granted(request(4, "small"), A, end + 1)
    bench.grants.on_notice(b"c.4:small", end + 2)
    bench.granted(request(5, "large"), B, end + LEASE)
    bench.grants.on_notice(b"c.5:large", end + LEASE + 1)
    assert bench.ask(request(6, "large"), A, end + LEASE + 1).status == XferStatus.NACK_NOT_READY
    assert bench.producer.tier.alloc("room", 2 * BLOCK) is not None


@pytest.mark.clause("EC-5.10")
def test_what_fills_the_share_of_all_grants_has_as_many_readers_as_ask() -> None:
    bench = Bench(blocks=20)
    bench.producer.save("full", 18 * BLOCK)
    bench.granted(request(1, "full"), A)
    bench.granted(request(2, "full"), B)
    assert bench.ask(request(3, "h"), b"third").status == XferStatus.NACK_NOT_READY
    bench.grants.tick(START + LEASE)
    bench.granted(request(4, "full"), A, START + LEASE)
    bench.granted(request(5, "full"), B, START + LEASE)
    assert bench.grants.granted_blocks == 18
    bench.grants.tick(START + 2 * LEASE)
    # It was within the bound, so nothing larger has to pause after it.
    bench.producer.save("large", 19 * BLOCK)
    bench.granted(request(6, "large"), A, START + 2 * LEASE)


@pytest.mark.clause("EC-5.10", "EC-9.5")
def test_the_number_of_grants_is_bounded_whatever_peers_call_themselves(monkeypatch) -> None:
    """Thousands of identities that read one small encoding pin nothing more, but are state."""
    monkeypatch.setattr("ec_protocol.p2p.grants.MAX_GRANTS", 5)
    bench = Bench(blocks=16)
    got = [bench.ask(request(i), b"peer-%d" % i).status for i in range(8)]
    assert got == [XferStatus.OK] * 5 + [XferStatus.NACK_NOT_READY] * 3
    assert bench.grants.counters["too_many_grants"] == 3
    # One that is outstanding is answered again, and one that ends makes room.
    assert bench.ask(request(0), b"peer-0").status == XferStatus.OK
    bench.grants.on_notice(b"c.0:h", START)
    assert bench.ask(request(9), b"peer-9").status == XferStatus.OK
    bench.grants.tick(START + LEASE)
    assert bench.holders() == 0


@pytest.mark.clause("EC-5.10", "EC-15.1")
def test_one_peer_has_its_share_of_the_number_too(monkeypatch) -> None:
    """Thousands of grants of one small encoding leave nothing to do for the others."""
    monkeypatch.setattr("ec_protocol.p2p.grants.MAX_GRANTS", 8)
    bench = Bench(blocks=64)
    got = [bench.ask(request(i), A).status for i in range(6)]
    assert got == [XferStatus.OK] * 4 + [XferStatus.NACK_NOT_READY] * 2
    assert bench.grants.counters["too_many_grants"] == 2
    bench.granted(request(9), B)
    bench.grants.on_notice(b"c.0:h", START)
    bench.granted(request(7), A)
    bench.grants.tick(START + LEASE)
    assert not bench.grants._peer_grants


@pytest.mark.clause("EC-5.7", "EC-15.1")
def test_who_says_another_peers_attempt_is_told_nothing_of_it() -> None:
    bench = Bench()
    bench.granted(request(1), A)
    ack = bench.ask(request(1), B, START + 1)
    assert (ack.status, ack.agent_metadata) == (XferStatus.NACK_INTERNAL, b"")
    assert bench.grants.counters["foreign_sessions"] == 1
    assert bench.granted(request(1), A, START + 1).lease_s == LEASE - 1
    bench.grants.on_notice(b"c.1:h", START + 2)
    assert bench.holders() == 0


@pytest.mark.clause("EC-15.8")
def test_what_a_stranger_has_sent_is_granted_to_nobody_by_whatever_name() -> None:
    bench = Bench()
    name = stranger_name("h", "10.0.0.7", 5601)
    bench.producer.save(name, BLOCK)
    assert bench.ask(request(1, name)).status == XferStatus.NACK_MISSING
    bench.granted(request(2, "h"))


@pytest.mark.clause("EC-8.6")
@pytest.mark.parametrize("session_id", ["", "a:b"])
def test_a_session_that_names_nothing_is_refused_and_counted(session_id: str) -> None:
    bench = Bench()
    req = wire.XferReq(mm_hash="h", compatibility_hash=COMPAT, session_id=session_id, attempt_id=1)
    for times in (1, 2):
        assert bench.grants.on_request(A, req, START).status == XferStatus.NACK_INTERNAL
        assert bench.grants.counters["bad_session_ids"] == times
    assert bench.holders() == 0


@pytest.mark.clause("EC-8.8")
def test_an_entry_in_as_many_pieces_as_an_ack_may_name_is_granted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "MAX_EXTENTS", 2)
    bench = Bench(blocks=8)
    tier = bench.producer.tier
    gaps = [tier.alloc(name, BLOCK) for name in ("gap-1", "wall", "gap-2", "rest")]
    tier.pin(bench.entry, ("load", 1))
    assert tier.alloc("all", 2 * BLOCK) is not None
    for gap in (gaps[0], gaps[2]):
        assert gap is not None
        tier.cancel(gap)
    scattered = bench.producer.save("scattered", 2 * BLOCK)
    assert len(scattered.extents) == 2
    assert bench.ask(request(1, "scattered")).status == XferStatus.OK


@pytest.mark.clause("EC-1.3")
def test_the_trace_tells_what_became_of_each_grant() -> None:
    records: list[Mapping[str, Any]] = []
    bench = Bench()
    bench.producer.tier.recorder.trace = Trace("n", lambda: START, records.append)
    bench.granted(request(1))
    bench.granted(request(2))
    bench.grants.on_notice(b"c.1:h", START + 1)
    bench.grants.tick(START + LEASE)
    assert [(r["action"], r["args"]["grant"], r["args"]["now"]) for r in records] == [
        ("Grant", 1, START),
        ("Grant", 2, START),
        ("Complete", 1, START + 1),
        ("Expire", 2, START + LEASE),
    ]
    fired = [(f["id"], f["to"]) for r in records for f in r["fired"] if f["lifecycle"] == "grant"]
    assert fired == [(1, "completed"), (2, "expired")]
    states = [r["vars"][f"grant:{r['args']['grant']}"]["state"] for r in records]
    assert states == ["granted", "granted", "completed", "expired"]


def test_shutdown_ends_every_grant() -> None:
    bench = Bench()
    bench.granted(request(1))
    bench.granted(request(2), B)
    bench.granted(old_request())
    bench.grants.shutdown(START + 1)
    assert bench.holders() == 0
    assert (bench.grants.counters["expired"], bench.grants.open_grants) == (3, 0)
    bench.grants.on_notice(b"c.1:h", START + 1)
    assert bench.grants.counters["stale_notices"] == 1
