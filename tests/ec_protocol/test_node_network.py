# SPDX-License-Identifier: Apache-2.0
"""``Node`` as those see it who do the network, and its time."""

from __future__ import annotations

import pytest

from ec_protocol import RemoteProtocolError
from ec_protocol.announcements import PeerRules
from ec_protocol.p2p import wire
from ec_protocol.p2p.commands import AbandonRead, ClosePeer, ReleaseGrant
from tests.world.core import BLOCK, PRODUCER, ROWS, START, Pair, node, states


# --------------------------------------------------------------------- the network
@pytest.mark.clause("EC-8.1")
def test_frames_that_are_none_raise_and_are_counted_by_side() -> None:
    pair = Pair()
    with pytest.raises(RemoteProtocolError):
        pair.producer.read_request([b"", b"\xc1"])
    with pytest.raises(RemoteProtocolError):
        pair.consumer.read_answer([b""])
    pair.producer.malformed("request")
    for _ in range(2):
        pair.consumer.malformed("answer")
    assert pair.producer.grants.counters["malformed_frames"] == 1
    assert pair.consumer.reads.counters["malformed_frames"] == 2


def test_a_request_of_the_old_form_makes_the_region_described_before_it_is_judged() -> None:
    pair = Pair()
    assert pair.producer.grants is not None
    request = wire.XferReq(mm_hash="a", compatibility_hash="x", session_id="s")
    pair.producer.read_request([b"", wire.encode(request)])
    assert pair.producer.grants._old_descriptor
    other = Pair()
    other.want()
    other.ask()
    assert not other.producer.grants._old_descriptor


def test_an_answer_of_the_old_form_keeps_only_the_rows_that_it_names() -> None:
    n = node("consumer")
    ack = wire.XferAck(
        mm_hash="a",
        status=0,
        session_id="s",
        src_block_indices=[6],
        mem_descriptor=wire.mem_descriptor(4096, 8, BLOCK),
    )
    assert n.read_answer([b"", wire.encode(ack)]).src_block_indices == [0]


def test_nothing_is_granted_before_the_data_plane_offers_the_region() -> None:
    pair = Pair()
    pair.producer.offer(b"")
    pair.want()
    assert pair.ask().status == wire.XferStatus.NACK_NOT_READY


def test_an_answer_that_names_nothing_acts_on_nothing() -> None:
    pair = Pair()
    pair.want()
    ack = pair.ask()
    assert pair.deliver(wire.XferAck(mm_hash="a", status=0, session_id="other.1")) is None
    assert pair.deliver(ack) == 1
    assert pair.deliver(ack) is None, "a duplicate"


def test_a_read_that_cannot_be_prepared_gives_its_grant_back() -> None:
    pair = Pair()
    command = pair.prepared()
    pair.consumer.post_failed(command.attempt_id, pair.now)
    (release,) = pair.consumer.commands()
    assert isinstance(release, ReleaseGrant)
    assert release.notice == command.notice
    assert pair.want() == "failed"
    assert not pair.consumer.may_post(command.attempt_id, pair.now)


@pytest.mark.clause("EC-6.2")
def test_a_read_that_failed_is_quarantined_until_it_is_proven_over() -> None:
    pair = Pair()
    command = pair.posted()
    pair.consumer.read_failed(command.attempt_id, pair.now)
    assert pair.consumer.commands() == [AbandonRead(command.attempt_id)]
    assert pair.consumer.tier.quarantined_blocks == ROWS
    assert pair.want() == "failed"
    pair.consumer.proven([99, command.attempt_id], pair.now)
    assert pair.consumer.tier.free_blocks == 8
    assert pair.consumer.reads.counters["quarantine_ended_endpoint_closed"] == 1


def test_a_lost_peer_fails_what_waits_and_a_heard_one_does_not() -> None:
    pair = Pair()
    pair.want()
    assert pair.consumer.has_commands
    peer = pair.consumer.reads.attempts.peers.current(PRODUCER)
    assert peer.state == "connecting"
    pair.consumer.heard(PRODUCER, pair.now)
    assert peer.state == "live"
    assert pair.want() == "pending"
    pair.consumer.commands()
    pair.consumer.lost(PRODUCER, pair.now)
    assert pair.consumer.commands() == [ClosePeer(PRODUCER)]
    assert pair.want() == "failed"


def test_nothing_is_fetched_while_nobody_carries_commands_out() -> None:
    pair = Pair()
    pair.consumer.online = False
    assert pair.want() == "failed"
    assert not pair.consumer.has_commands
    assert pair.consumer.counters["fetches_while_offline"] == 1


def test_a_host_that_is_not_allowed_is_not_asked() -> None:
    pair = Pair()
    pair.consumer = node("consumer", rules=PeerRules(lambda host: host != PRODUCER[0], shared=True))
    assert pair.want() == "failed"
    assert pair.consumer.counters["params_foreign_peer_host"] == 1


def test_who_leaves_waits_no_more() -> None:
    pair = Pair()
    pair.want()
    pair.consumer.leave("r", pair.now)
    assert pair.consumer.reads.idle
    assert pair.consumer.tier.free_blocks == 8


# --------------------------------------------------------------------------- time
@pytest.mark.clause("EC-7.3")
def test_the_next_deadline_is_the_earliest_of_all_parts_and_tick_lets_them_run_out() -> None:
    pair = Pair()
    timing = pair.producer.timing
    assert node().next_deadline() is None
    assert pair.producer.next_deadline() == START + timing.announce_hold_s
    pair.want()
    assert pair.consumer.next_deadline() == START + timing.ack_timeout_s
    pair.ask()
    assert pair.producer.next_deadline() == min(
        START + timing.announce_hold_s, START + timing.lease_s
    )
    pair.producer.tick(START + max(timing.announce_hold_s, timing.lease_s))
    assert states(pair.producer) == {"a": "ready"}
    pair.now = START + timing.ack_timeout_s
    pair.consumer.tick(pair.now)
    assert pair.want() == "failed"


def test_the_end_fails_what_waits_and_ends_what_was_granted() -> None:
    pair = Pair("a", "b")
    command = pair.posted()
    pair.want("b")
    pair.consumer.shutdown(pair.now)
    assert not pair.consumer.online
    assert pair.want("b") == "failed"
    assert pair.consumer.tier.quarantined_blocks == ROWS, "its READ may go on"
    assert AbandonRead(command.attempt_id) in pair.consumer.commands()
    assert pair.producer.transferring
    pair.producer.shutdown(pair.now)
    assert not pair.producer.transferring
