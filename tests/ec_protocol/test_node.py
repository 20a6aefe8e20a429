# SPDX-License-Identifier: Apache-2.0
"""``Node`` through its front door: two of them, linked by nothing but what they return."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from ec_protocol import ConfigError, LocalProtocolError, Node, Peering, Timing, make_item
from ec_protocol.p2p import wire
from ec_protocol.p2p.commands import ForgetRead, PrepareRead
from ec_protocol.parts import Parts
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.holds import HoldTable
from tests import ROOT
from tests.world.core import (
    AGENT,
    BLOCK,
    ELEMENT,
    PRODUCER,
    ROWS,
    START,
    WIDTH,
    Pair,
    item,
    node,
    save,
    states,
)


# ---------------------------------------------------------------- from end to end
def test_an_encoding_travels_from_one_node_to_another() -> None:
    pair = Pair()
    assert pair.announced == {
        "a": {
            "item_indices": [0],
            "metadata": {},
            "peer_host": PRODUCER[0],
            "peer_port": PRODUCER[1],
            "size_bytes": ROWS * BLOCK,
            "shape": [ROWS, WIDTH],
        }
    }
    assert pair.want() == "pending"
    ack = pair.ask()
    assert ack.status == wire.XferStatus.OK
    assert pair.producer.transferring
    assert pair.deliver(ack) == 1
    (prepare,) = pair.consumer.commands()
    assert isinstance(prepare, PrepareRead)
    assert prepare.remote == ((4096, ROWS * BLOCK),)
    assert prepare.agent_metadata == AGENT
    assert not pair.consumer.transferring
    assert pair.consumer.may_post(prepare.attempt_id, pair.now)
    assert pair.consumer.transferring
    pair.consumer.read_done(prepare.attempt_id, pair.now)
    assert not pair.consumer.transferring
    assert pair.consumer.commands() == [ForgetRead(prepare.attempt_id)]
    pair.producer.notice(prepare.notice, pair.now)
    assert not pair.producer.transferring
    assert pair.want() == "ready"
    assert pair.consumer.promise("a", [item()])
    load = pair.consumer.plan(item(), "r")
    assert load is not None
    assert pair.consumer.build_step(pair.now) == (load,)
    assert states(pair.consumer) == {"a": "pinned"}
    pair.consumer.report(load.copy_id, 0, landed=True)
    assert states(pair.consumer) == {"a": "ready"}


@pytest.mark.clause("EC-1.2")
def test_what_a_role_does_not_do_is_a_mistake_of_who_asks_for_it() -> None:
    producer, consumer = node("producer"), node("consumer")
    ack = wire.XferAck(mm_hash="a", status=0, session_id="s")
    request = wire.XferReq(mm_hash="a", compatibility_hash="x", session_id="s")
    for call in (
        lambda: producer.answer(PRODUCER, ack, START),
        lambda: producer.heard(PRODUCER, START),
        lambda: producer.may_post(1, START),
        lambda: producer.malformed("answer"),
    ):
        with pytest.raises(LocalProtocolError, match="role producer reads from nobody"):
            call()
    for call in (
        lambda: consumer.request(b"x", request, START),
        lambda: consumer.notice(b"s:a", START),
        lambda: consumer.offer(AGENT),
        lambda: consumer.malformed("request"),
    ):
        with pytest.raises(LocalProtocolError, match="role consumer serves nobody"):
            call()
    assert producer.commands() == []
    assert not producer.has_commands
    said = {"peer_host": "p", "peer_port": 1, "size_bytes": ROWS * BLOCK}
    assert producer.want(item(), {"a": said}, "r", START) == "failed"
    assert consumer.announce([item()], PRODUCER, START) == {}
    save(producer, item())
    assert not producer.promise("a")
    assert consumer.plan(item("b"), "r") is None, "a consumer saves nothing"


# --------------------------------------------------------------------- the engine
@pytest.mark.clause("EC-3.3")
def test_a_promise_is_for_one_step_and_its_load_is_planned_once() -> None:
    n = node(peers=False)
    save(n, item())
    assert n.promise("a")
    first = n.plan(item(), "r1")
    assert first is not None
    assert n.plan(item(), "r2") is None, "the same step loads it already"
    assert n.build_step(START) == (first,)
    n.report(first.copy_id, 0, landed=True)
    assert n.counters["hits"] == 1
    assert n.plan(item(), "r3") is None, "not promised: it is encoded, and there already"
    assert n.counters["misses"] == 2
    assert n.build_step(START) == ()


def test_a_promise_to_one_is_none_to_who_means_something_else_by_the_name() -> None:
    n = node(peers=False)
    save(n, item())
    other = item(rows=3)
    assert not n.promise("a", [item(), other])
    assert n.promise("a", [item()])
    assert n.plan(other, "r") is None
    assert n.build_step(START) == ()
    assert n.counters == {"misses": 2}
    assert n.want(other, None, "r", START) == "failed"
    assert n.want(item(), None, "r", START) == "ready"


@pytest.mark.clause("EC-11.3")
def test_what_was_announced_before_it_landed_is_held_when_it_does() -> None:
    """Forgetting it would lose the hold without a sound."""
    n = node("producer", blocks=ROWS)
    copy = n.plan(item(), "r")
    assert copy is not None
    n.build_step(START)
    assert n.announce([item()], PRODUCER, START)["a"]["peer_port"] == PRODUCER[1]
    n.report(copy.copy_id, 0, landed=True)
    assert states(n) == {"a": "ready"}, "it is larger than what holds may keep"
    n = node("producer", blocks=2 * ROWS)
    copy = n.plan(item(), "r")
    assert copy is not None
    n.build_step(START)
    n.announce([item()], PRODUCER, START)
    n.report(copy.copy_id, 0, landed=True)
    assert states(n) == {"a": "pinned"}
    n.build_step(START + n.timing.announce_hold_s)
    assert states(n) == {"a": "ready"}, "a step lets holds run out"


@pytest.mark.clause("EC-11.1")
@pytest.mark.parametrize(
    ("wanted", "address"),
    [(item("b"), PRODUCER), (item(), None), (item(rows=3), PRODUCER), (item("x" * 513), PRODUCER)],
)
def test_what_cannot_be_served_is_announced_with_nothing(wanted: Any, address: Any) -> None:
    n = node("producer", blocks=16)
    save(n, item(), item("x" * 513))
    said = n.announce([wanted], address, START)
    assert said == {wanted.mm_hash: {"item_indices": [0], "metadata": {}}}
    assert n.counters["announced_without_address"] == 1
    assert len(n.holds) == 0


def test_a_counted_name_is_neither_saved_nor_loaded_nor_fetched() -> None:
    """Also if something lies there: a hash that another request brought with it."""
    pair = Pair()
    unsure = item(named_by_content=False)
    both = node("both")
    save(both, item())
    assert both.want(unsure, None, "r", START) == "failed"
    assert not both.promise("a", [unsure])
    assert both.promise("a", [item()])
    assert both.plan(unsure, "r") is None
    assert both.counters["not_named_by_content"] == 1
    assert both.build_step(START) == ()
    assert both.announce([unsure], PRODUCER, START) == {}
    empty = node("both")
    assert empty.plan(unsure, "r") is None
    assert list(empty.tier.entries()) == []
    assert pair.consumer.want(unsure, pair.announced, "r", START) == "failed"
    assert pair.consumer.commands() == []


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (item(), True),
        (make_item("a", ROWS * 2, WIDTH // 2, ELEMENT), False),
        (make_item("a", ROWS + 1, WIDTH, ELEMENT), False),
        (item("b"), True),
    ],
)
def test_bytes_and_shape_must_both_be_what_the_request_expects(wanted: Any, fits: bool) -> None:
    n = node(peers=False)
    save(n, item())
    assert n.contradicts(wanted) is not fits
    (entry,) = n.tier.entries()
    entry.shape = None
    assert n.contradicts(wanted) is (wanted.nbytes != ROWS * BLOCK), "a shape that nobody told"


def test_an_entry_that_nobody_writes_is_not_announced() -> None:
    """A fetch of one's own that is under way, for example: it may never land."""
    n = node("both")
    n.tier.alloc("a", ROWS * BLOCK)
    assert n.announce([item()], PRODUCER, START)["a"] == {"item_indices": [0], "metadata": {}}


def test_positions_of_one_encoding_come_together_and_counted_names_not_at_all() -> None:
    n = node("producer")
    save(n, item(metadata={"k": 1}))
    counted = item("renderer0-mm-1-image-0")
    said = n.announce([item(metadata={"k": 1}), counted, item(), item("b")], PRODUCER, START)
    assert {name: row["item_indices"] for name, row in said.items()} == {"a": [0, 2], "b": [3]}
    assert said["a"]["metadata"] == {"k": 1}
    assert n.counters["announced"] == 1


def test_an_item_of_no_bytes_and_one_without_room_are_not_saved() -> None:
    n = node("producer", blocks=1)
    assert n.plan(item(rows=0), "r") is None
    assert n.counters["saves_without_room"] == 0
    assert n.plan(item(rows=2), "r") is None
    assert n.counters["saves_without_room"] == 1
    assert n.plan(make_item("one", 1, 1, 1), "r") is not None, "one byte is enough"
    assert n.plan(make_item("one", 1, 1, 1), "r") is None
    assert n.counters["saves_without_room"] == 1, "it has its room already"


@pytest.mark.clause("EC-5.9")
@pytest.mark.parametrize("peers", [False, True])
def test_a_reference_waits_for_a_save_within_its_budget(peers: bool) -> None:
    n = node(peers=peers)
    reference = item(has_media=False)
    assert n.want(reference, None, "r", START) == "failed", "nobody will bring it"
    n.tier.alloc("b", BLOCK)
    half = item("b", rows=1, has_media=False)
    assert n.want(half, None, "r", START) == "failed", "no save brings it either"
    n.leave("r", START)
    copy = n.plan(item(), "saver")
    assert copy is not None
    n.build_step(START)
    assert n.want(item(), None, "r", START) == "failed", "with media it is encoded at once"
    assert n.want(reference, None, "r", START) == "pending"
    end = START + n.timing.fetch_budget_s
    assert n.want(reference, None, "r", end) == "failed"
    waits = n._deferrals if n.reads is None else n.waiters.deferrals
    assert len(waits) == 1, "one budget for whatever it waits for"
    n.leave("r", end)
    assert n.want(reference, None, "r", end) == "pending", "another request of that name"
    n.report(copy.copy_id, 0, landed=True)
    assert n.want(reference, None, "r", end) == "ready"


@pytest.mark.clause("EC-5.9")
def test_the_budget_begins_anew_with_what_was_served() -> None:
    n = node(peers=False)
    reference = item(has_media=False)
    copy = n.plan(item(), "saver")
    assert copy is not None
    n.build_step(START)
    assert n.want(reference, None, "r", START) == "pending"
    n.report(copy.copy_id, 0, landed=True)
    assert n.promise("a")
    n.plan(reference, "r")
    assert len(n._deferrals) == 0


def test_a_fetched_encoding_is_held_until_its_load_is_planned() -> None:
    pair = Pair()
    command = pair.posted()
    pair.consumer.read_done(command.attempt_id, pair.now)
    assert states(pair.consumer) == {"a": "pinned"}
    assert pair.consumer.promise("a")
    copy = pair.consumer.plan(item(), "r")
    pair.consumer.build_step(pair.now)
    assert pair.consumer.report(copy.copy_id, 0, landed=True) is copy
    assert states(pair.consumer) == {"a": "ready"}


@pytest.mark.parametrize(("kind", "landed"), [("load", True), ("save", False)])
def test_only_a_save_that_landed_starts_a_hold(kind: str, landed: bool) -> None:
    n = node("both", blocks=16)
    save(n, item("loaded"))
    n.promise("loaded")
    copy = n.plan(item("loaded" if kind == "load" else "saved"), "r")
    assert copy is not None
    n.build_step(START)
    started: list[object] = []
    n.holds.landed = started.append  # type: ignore[method-assign]
    n.report(copy.copy_id, 0, landed)
    assert started == []


def test_a_load_can_be_planned_again_in_the_next_step() -> None:
    n = node(peers=False)
    save(n, item())
    for _ in range(2):
        assert n.promise("a")
        copy = n.plan(item(), "r")
        assert n.build_step(START) == (copy,)
        n.report(copy.copy_id, 0, landed=True)
    assert not n.promise("nothing")
    assert n.plan(item("nothing"), "r") is not None
    assert n.counters["hits"] == 2


@pytest.mark.clause("EC-4.4")
def test_a_report_of_nothing_changes_nothing() -> None:
    n = node()
    with pytest.raises(LocalProtocolError, match="no such copy"):
        n.report(7, 0, landed=True)


# ------------------------------------------------------------------------- making it
def test_both_sides_mean_the_same_by_the_same_facts_only() -> None:
    facts = ("version", "model", "torch.bfloat16")
    peering = Peering(
        vllm_version=facts[0], model=facts[1], dtype=facts[2], incarnation="i", base_addr=0
    )
    n = Node(blocks=1, block_bytes=BLOCK, peering=peering)
    expected = wire.compatibility_hash(*facts, BLOCK)
    assert n.reads.attempts.compat_hash == n.grants.compat_hash == expected
    assert (n.reads.attempts.session, n.grants.incarnation) == ("i", "i")


def test_an_answer_is_a_sign_of_life() -> None:
    pair = Pair()
    pair.want()
    pair.deliver(wire.XferAck(mm_hash="z", status=0, session_id="s.9"))
    peer = pair.consumer.reads.attempts.peers.current(PRODUCER)
    assert peer.state == "live"


def test_parts_may_be_others() -> None:
    class Small(HoldTable):
        def __init__(self, tier: EncodingTier, share: float) -> None:
            super().__init__(tier, share / 2)

    assert Node(blocks=8, block_bytes=1, parts=Parts(holds=Small)).holds.max_blocks == 2
    assert Node(blocks=8, block_bytes=1).holds.max_blocks == 4


def test_timers_are_those_that_were_given() -> None:
    timing = Timing(fetch_budget_s=77.0)
    assert Node(blocks=1, block_bytes=1, timing=timing).timing is timing
    assert Node(blocks=1, block_bytes=1).timing == Timing()


@pytest.mark.parametrize("role", ["ec_both", "", None])
def test_a_role_that_is_none_is_named(role: Any) -> None:
    with pytest.raises(ConfigError, match=r"role=.*producer, consumer or both"):
        Node(blocks=1, block_bytes=1, role=role)


def test_every_rank_reports_a_load_and_the_first_alone_a_save() -> None:
    n = node(peers=False, ranks=2, timing=Timing(), hold_share=0.0)
    save(n, item())
    assert n.promise("a")
    copy = n.plan(item(), "r")
    n.build_step(START)
    n.report(copy.copy_id, 1, landed=True)
    assert states(n) == {"a": "pinned"}
    n.report(copy.copy_id, 0, landed=True)
    assert states(n) == {"a": "ready"}
    assert n.holds.max_blocks == 0


@pytest.mark.clause("EC-12.2")
def test_without_peering_nothing_of_peer_to_peer_is_imported() -> None:
    code = (
        "import json, sys; from ec_protocol import Node, make_item\n"
        "n = Node(blocks=4, block_bytes=16)\n"
        "n.want(make_item('a', 1, 8, 2), {}, 'r', 0.0); n.plan(make_item('a', 1, 8, 2), 'r')\n"
        "n.build_step(0.0); n.announce([], None, 0.0); n.tick(0.0); n.commands(); n.shutdown(0.0)\n"
        "print(json.dumps([m for m in sys.modules if 'msgspec' in m or '.p2p' in m]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
