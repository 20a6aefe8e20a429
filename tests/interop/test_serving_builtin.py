# SPDX-License-Identifier: Apache-2.0
"""vLLM's own consumer reads from our producer: real sockets, NIXL and regions, two processes.

It asks without a version, with one session for all its requests, and expects a
description of every block of our region. Our bytes, our pins and our answers must be
right for it; what it does with them afterwards is its own affair.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ec_protocol.items import make_item
from ec_protocol.p2p import wire
from ec_protocol.p2p.wire import XferReq, XferStatus
from tests.interop.driver import (
    COMPAT,
    NBYTES,
    RELEASE,
    ROWS,
    Asked,
    Ours,
    content,
    fresh,
    marks,
    plain,
    until,
)
from tests.world.instance import BLOCK

pytestmark = marks


def lease_of(node: Ours) -> float:
    return node.grants.timing.lease_s


def no_room(node: Ours, rows: int = ROWS) -> bool:
    """Whether everything that is in the tier is in use."""
    node.turn()  # the engine knows what time it is
    return node.node.copies.plan_save(fresh(), rows * BLOCK) is None


@pytest.mark.clause("EC-5.5", "EC-8.7")
@pytest.mark.parametrize("version", [None, 1], ids=["says no version", "says version 1"])
def test_bytes_arrive_bit_for_bit_and_its_notices_end_our_grants(builtins, our_producer, version):
    consumer, node = builtins("ec_consumer", version=version), our_producer
    for rows in (1, 2, 39):
        name, data, params = node.saved(rows)
        assert Asked(consumer, name, params, rows).admitted()["bytes"] == data
    node.count("completed", 3)
    node.whole()
    assert node.counters().get("expired", 0) == 0


def test_an_encoding_in_two_extents_arrives_in_order(their_consumer, ours):
    """Our order of bytes is the order of our extents, and its blocks are ours one by one."""
    node = ours("ec_producer", blocks=8)
    names = [node.saved(2)[0] for _ in range(4)]
    kept = node.tier.get(names[1])
    assert kept is not None
    node.tier.hold(kept, ("hold", 1))
    name, data, params = node.saved(4)
    entry = node.tier.get(name)
    assert entry is not None
    assert len(entry.extents) == 2
    assert Asked(their_consumer, name, params, 4).admitted()["bytes"] == data


@pytest.mark.clause("EC-11.1")
def test_our_announcement_is_understood(their_consumer, our_producer):
    name, data, _ = our_producer.saved(3)
    scheduler = our_producer.scheduler
    items = [make_item(name, 3, BLOCK // 2, 2, metadata={"image_grid_thw": [1, 2, 3]})]
    _, params = scheduler.request_finished(SimpleNamespace(request_id="r", items=items))
    assert Asked(their_consumer, name, params, 3).admitted()["bytes"] == data


# --------------------------------------------------------------------------- refusals
@pytest.mark.clause("EC-5.4", "EC-8.5")
def test_a_save_that_has_not_landed_is_asked_for_again(their_consumer, our_producer):
    node = our_producer
    name = fresh()
    save = node.begin_save(name, NBYTES)
    asked = Asked(their_consumer, name, node.announced(name))
    node.count("nack_not_ready", 3)
    assert not asked.state["admitted"]
    data = content(name)
    node.end_save(save, data)
    assert asked.admitted()["bytes"] == data


@pytest.mark.clause("EC-8.5")
def test_what_we_do_not_have_it_encodes_itself(their_consumer, our_producer):
    node = our_producer
    assert not Asked(their_consumer, fresh(), node.announced("another")).admitted()["ready"]
    name = fresh()
    assert not Asked(their_consumer, name, node.announced(name)).admitted()["ready"]
    assert node.counters()["nack_missing"] == 1


@pytest.mark.clause("EC-8.4")
def test_another_model_is_refused(their_consumer, our_producer):
    node = our_producer
    node.grants.compat_hash = wire.compatibility_hash(RELEASE, "other", "x", BLOCK)
    name, _, params = node.saved()
    assert not Asked(their_consumer, name, params).admitted()["ready"]
    assert node.counters()["nack_incompat"] == 1


@pytest.mark.clause("EC-8.2")
def test_another_version_is_refused(builtins, our_producer):
    consumer, node = builtins("ec_consumer", version=3), our_producer
    name, _, params = node.saved()
    assert not Asked(consumer, name, params).admitted()["ready"]
    assert node.counters()["nack_version"] == 1


# ------------------------------------------------------------------------------ leases
@pytest.mark.clause("EC-5.4", "EC-7.3")
def test_what_it_was_granted_stays_where_it_is_until_the_lease_is_over(
    their_consumer, ours, dealers
):
    """F1 from our side. Its step is long; our region is full, and has room only afterwards."""
    node = ours("ec_producer", blocks=ROWS)
    name, data, params = node.saved()
    granted_at = node.clock.stand_still(at=1000.0)
    their_consumer.hold()
    asked = Asked(their_consumer, name, params)
    asked.sent()
    node.count("grants")

    def looked_at(now: float) -> None:
        """The server has let every timer run out that has by then: it answers twice."""
        node.clock.stand_still(now)
        dealer = dealers(node.address)
        for _ in range(2):
            dealer.ask(plain("another"))

    looked_at(granted_at + lease_of(node) - 1e-6)
    assert no_room(node)
    # It wakes up just in time.
    their_consumer.go_on()
    assert asked.admitted()["bytes"] == data
    node.count("completed")
    assert not no_room(node)


@pytest.mark.clause("EC-5.4", "EC-7.3")
def test_a_grant_that_nobody_uses_ends_with_its_lease(their_consumer, ours):
    node = ours("ec_producer", blocks=ROWS)
    name, _, params = node.saved()
    node.clock.stand_still(at=1000.0)
    their_consumer.hold()
    Asked(their_consumer, name, params).sent()
    node.count("grants")
    assert no_room(node)
    node.after(lease_of(node))
    node.count("expired")
    node.whole()
    assert not no_room(node)


@pytest.mark.clause("EC-5.5")
def test_the_same_encoding_again_is_another_grant(their_consumer, our_producer):
    """Its notice is the same for every attempt; each still ends the grant it belongs to."""
    node = our_producer
    name, data, params = node.saved()
    for number in range(1, 4):
        assert Asked(their_consumer, name, params).admitted()["bytes"] == data
        node.count("completed", number)
        assert their_consumer.tell("evict", name=name)
    node.whole()


@pytest.mark.clause("EC-5.5")
def test_a_notice_that_could_be_an_older_grants_changes_nothing(their_consumer, ours, dealers):
    """F2. Grant 1 runs out unread, grant 2 is given: one notice could be either's."""
    # Consumer and dealer are of one host, without keys one peer, and hold more than its share.
    consumer, node = their_consumer, ours("ec_producer", ec_peer_quota=1.0)
    name, data, params = node.saved()
    consumer.hold()
    asked = Asked(consumer, name, params)
    asked.sent()
    node.count("grants")
    node.after(lease_of(node))
    node.count("expired")
    # Now it takes the answer, and posts the READ of a grant that is over.
    consumer.step_until(lambda: consumer.tell("account")["reading"], "its READ")
    # The READ moves only while we progress our agent: as long as any grant is open.
    other, _, _ = node.saved()
    dealers(node.address).ask(plain(other))
    consumer.step_until(lambda: node.counters().get("stale_notices"), "its notice")
    # The entry is still where it was.
    consumer.go_on()
    assert asked.admitted()["bytes"] == data
    assert consumer.tell("evict", name=name)
    assert Asked(consumer, name, params).admitted()["bytes"] == data
    node.count("ambiguous_notices")
    assert node.counters().get("completed", 0) == 0
    node.after(lease_of(node))
    node.count("expired", 3)
    node.whole()


@pytest.mark.clause("EC-5.10")
def test_it_cannot_pin_more_than_its_share_and_gets_everything_in_the_end(
    their_consumer, our_producer
):
    """F11. Three at once, a share for one: the others wait, and nobody else is shut out."""
    node = our_producer
    saved = [node.saved() for _ in range(3)]
    their_consumer.hold()
    asked = [Asked(their_consumer, name, params) for name, _, params in saved]
    for one in asked:
        one.sent()
    node.count("over_quota", 2)
    assert node.counters()["grants"] == 1
    their_consumer.go_on()
    for one, (_, data, _) in zip(asked, saved, strict=True):
        assert one.admitted()["bytes"] == data
    node.count("completed", 3)
    node.whole()


# -------------------------------------------------------------------- loss and restart
@pytest.mark.clause("EC-5.5")
def test_killed_under_its_read_it_costs_one_lease(their_consumer, our_producer, dealers):
    consumer, node = their_consumer, our_producer
    name, _, params = node.saved()
    consumer.hold()
    asked = Asked(consumer, name, params)
    asked.sent()
    node.count("grants")
    # Our agent stands still, so the READ cannot move.
    with node.standing_still():
        consumer.step_until(lambda: consumer.tell("account")["reading"], "its READ")
        consumer.kill()
    assert not node.is_whole()
    node.after(lease_of(node))
    node.count("expired")
    node.whole()
    ack, _ = dealers(node.address).ask(plain(name))
    assert ack.status == XferStatus.OK


@pytest.mark.clause("EC-9.2")
def test_a_successor_at_our_address_serves_it(their_consumer, ours):
    """F8 from our side: another incarnation, another agent, the same port."""
    first = ours("ec_producer")
    name, data, params = first.saved()
    assert Asked(their_consumer, name, params).admitted()["bytes"] == data
    _, port = first.address
    first.close()

    def missed() -> bool:
        # It looks after its connections only while a request waits.
        Asked(their_consumer, fresh(), None).admitted()
        return not their_consumer.tell("account")["sessions"]

    until(missed, "the loss of the first")
    second = ours("ec_producer", port=port)
    # It cannot always connect again at once: the address of its monitor may be in use
    # still. Then the request falls back, and the next one is served.
    name, data, params = second.saved()
    until(lambda: Asked(their_consumer, name, params).admitted()["ready"], "the second's bytes")
    assert Asked(their_consumer, name, params).admitted()["bytes"] == data
    second.count("completed")
    second.whole()


# ------------------------------------------------------------ versions, sizes, frames
@pytest.mark.clause("EC-8.2")
def test_versions(their_producer, our_producer, dealers):
    ok, refused = XferStatus.OK, XferStatus.NACK_VERSION
    name, _, _ = our_producer.saved(1)
    their_name, _, _ = their_producer.save(1)
    for version, ours_says, theirs_says in (
        (0, ok, ok),
        (1, ok, refused),
        (2, ok, ok),
        (3, refused, refused),
    ):
        ack, _ = dealers(our_producer.address).ask(plain(name, version))
        assert ack.status == ours_says, version
        ack, _ = dealers(their_producer.address).ask(plain(their_name, version))
        assert ack.status == theirs_says, version
        # The fact that ``Unanswered`` is for: only an OK says whose answer it is.
        assert ack.session_id == ("s" if ack.status == ok else "")


@pytest.mark.clause("EC-8.7")
def test_sizes_of_an_answer(builtins, ours, dealers, record_property):
    """Theirs describes every block of the region; ours does so only for who cannot do else."""
    node, their_producer = ours("ec_producer", 4096), builtins("ec_producer", 4096)
    name, _, _ = node.saved(2)
    old, old_size = dealers(node.address).ask(plain(name))
    new, new_size = dealers(node.address).ask(
        XferReq(mm_hash=name, compatibility_hash=COMPAT, session_id="n.1", attempt_id=1)
    )
    assert new_size < len(new.agent_metadata) + 1024
    name, _, _ = their_producer.save(2)
    theirs, their_size = dealers(their_producer.address).ask(plain(name))
    assert len(theirs.mem_descriptor) == their_producer.hello["descriptor"]
    assert len(theirs.agent_metadata) == their_producer.hello["metadata"] < 600
    # The same form, so the same size but for the addresses and the agents' names.
    assert abs(old_size - their_size) < 200 + len(old.agent_metadata)
    assert their_size > 4096 * 10
    for what, size in (("ours", new_size), ("ours, old form", old_size), ("theirs", their_size)):
        record_property(f"answer bytes, 4096 blocks, {what}", size)


def test_both_drop_garbage_and_go_on(their_producer, our_producer, dealers):
    name, _, _ = our_producer.saved(1)
    their_name, _, _ = their_producer.save(1)
    for address, known in ((our_producer.address, name), (their_producer.address, their_name)):
        dealer = dealers(address)
        for payload in (b"", b"\xc1", b"\x81\xa4type\xa3req", wire.encode(plain("x"))[:-1]):
            dealer.socket.send_multipart([b"", payload])
        ack, _ = dealer.ask(plain(known))
        assert ack.status == XferStatus.OK
