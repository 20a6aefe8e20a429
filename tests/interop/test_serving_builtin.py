# SPDX-License-Identifier: Apache-2.0
"""vLLM's own consumer reads from our producer: real sockets, NIXL and regions, two processes.

It asks without a version, with one session for all its requests, and expects a
description of every block of our region. Our bytes, our pins and our answers must be
right for it; what it does with them afterwards is its own affair.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nixl")
pytest.importorskip("zmq")

import zmq

from ec_connector.items import make_item
from ec_protocol import wire
from ec_protocol.wire import XferAck, XferReq, XferStatus
from tests.ec_connector.pair import BLOCK, wait_for
from tests.interop.driver import FACTS, RELEASE, Builtin, Ours, fresh, marks

pytestmark = marks

ROWS = 40
NBYTES = ROWS * BLOCK
COMPAT = wire.compatibility_hash(RELEASE, FACTS.model, "torch.bfloat16", BLOCK)


@pytest.fixture(scope="module")
def pool() -> Iterator[list[Builtin]]:
    made: list[Builtin] = []
    yield made
    for consumer in made:
        consumer.close()


@pytest.fixture
def builtin(pool: list[Builtin]) -> Iterator[Builtin]:
    """A consumer that lives and steps; a test may kill it, the next one gets another."""
    if not pool or pool[-1].process.poll() is not None:
        pool.append(Builtin("ec_consumer", ack=2.0))
    pool[-1].tell("run", on=True)
    yield pool[-1]
    pool[-1].resume()


@pytest.fixture
def ours() -> Iterator[Callable[..., Ours]]:
    made: list[Ours] = []

    def make(blocks: int = 128, **timing: float) -> Ours:
        made.append(Ours("ec_producer", blocks, **timing))
        return made[-1]

    yield make
    for node in made:
        node.close()


def save(node: Ours, rows: int = ROWS) -> tuple[str, bytes]:
    name = fresh()
    data = random.Random(name).randbytes(rows * BLOCK)
    node.save(name, data)
    return name, data


def announced(node: Ours, name: str, rows: int = ROWS) -> dict[str, Any]:
    """What we say of an encoding, without the engine around it."""
    host, port = node.address
    told = {"peer_host": host, "peer_port": port, "size_bytes": rows * BLOCK}
    return {name: {"metadata": {}, **told, "shape": [rows, BLOCK // 2]}}


class Asked:
    """One request of theirs."""

    def __init__(self, builtin: Builtin, name: str, params: Any, rows: int = ROWS) -> None:
        self.builtin, self.name, self.request = builtin, name, fresh()
        builtin.tell("ask", name=name, rows=rows, request=self.request, params=params)

    @property
    def state(self) -> dict[str, Any]:
        return self.builtin.tell("state", name=self.name, request=self.request)

    def admitted(self) -> dict[str, Any]:
        wait_for(lambda: self.state["admitted"], "the admission of their request", 60.0)
        return self.state


def count(node: Ours, counter: str, at_least: int = 1) -> None:
    wait_for(lambda: node.counters().get(counter, 0) >= at_least, counter, 60.0)


def no_pins(node: Ours) -> bool:
    with node.lock:
        node.tier.check()
        assert node.p2p.producer is not None
        grants = node.p2p.producer.open_grants
        return grants == 0 and all(entry.state == "ready" for entry in node.tier.entries())


@pytest.mark.clause("EC-5.5", "EC-8.7")
def test_bytes_arrive_bit_for_bit_and_its_notices_end_our_grants(builtin, ours):
    node = ours()
    for rows in (1, 2, 39):
        name, data = save(node, rows)
        state = Asked(builtin, name, announced(node, name, rows), rows).admitted()
        assert bytes.fromhex(state["bytes"]) == data
    count(node, "completed", 3)
    assert no_pins(node)
    assert node.counters().get("expired", 0) == 0


def test_an_encoding_in_two_extents_arrives_in_order(builtin, ours):
    """Our order of bytes is the order of our extents, and its blocks are ours one by one."""
    node = ours(blocks=8)
    names = [save(node, 2)[0] for _ in range(4)]
    with node.lock:
        kept = node.tier.get(names[1])
        assert kept is not None
        node.tier.hold(kept, ("test", 1))
    name, data = save(node, 4)
    with node.lock:
        entry = node.tier.get(name)
        assert entry is not None
        assert len(entry.extents) == 2
    state = Asked(builtin, name, announced(node, name, 4), 4).admitted()
    assert bytes.fromhex(state["bytes"]) == data


@pytest.mark.clause("EC-11.1")
def test_our_announcement_is_understood(builtin, ours):
    node = ours()
    name, data = save(node, 3)
    scheduler = node.instance.scheduler
    scheduler.items = lambda request: request.items
    items = [make_item(name, 3, BLOCK // 2, 2, metadata={"image_grid_thw": [1, 2, 3]})]
    _, params = scheduler.request_finished(SimpleNamespace(request_id="r", items=items))
    state = Asked(builtin, name, params, 3).admitted()
    assert bytes.fromhex(state["bytes"]) == data


@pytest.mark.clause("EC-5.4", "EC-8.5")
def test_a_save_that_has_not_landed_is_asked_for_again(builtin, ours):
    node = ours()
    name = fresh()
    with node.lock:
        save = node.begin_save(name, NBYTES)
    asked = Asked(builtin, name, announced(node, name))
    count(node, "nack_not_ready", 3)
    assert not asked.state["admitted"]
    data = random.Random(name).randbytes(NBYTES)
    with node.lock:
        node.end_save(save, data)
    assert bytes.fromhex(asked.admitted()["bytes"]) == data


@pytest.mark.clause("EC-8.5")
def test_what_we_do_not_have_it_encodes_itself(builtin, ours):
    node = ours()
    state = Asked(builtin, fresh(), announced(node, "another")).admitted()
    assert not state["ready"]
    name = fresh()
    state = Asked(builtin, name, announced(node, name)).admitted()
    assert not state["ready"]
    assert node.counters()["nack_missing"] == 1


@pytest.mark.clause("EC-8.4")
def test_another_model_is_refused(builtin, ours):
    node = ours()
    assert node.p2p.producer is not None
    node.p2p.producer.compat_hash = wire.compatibility_hash(RELEASE, "other", "x", BLOCK)
    name, _ = save(node)
    state = Asked(builtin, name, announced(node, name)).admitted()
    assert not state["ready"]
    assert node.counters()["nack_incompat"] == 1


@pytest.mark.clause("EC-5.5")
def test_the_same_encoding_again_is_another_grant(builtin, ours):
    """Its notice is the same for every attempt; each still ends the grant it belongs to."""
    node = ours()
    name, data = save(node)
    for number in range(1, 4):
        state = Asked(builtin, name, announced(node, name)).admitted()
        assert bytes.fromhex(state["bytes"]) == data
        count(node, "completed", number)
        assert builtin.tell("evict", name=name)["gone"]
    assert no_pins(node)


@pytest.mark.clause("EC-5.5")
def test_a_notice_that_could_be_an_older_grants_changes_nothing(builtin, ours):
    """F2. Grant 1 runs out unread, grant 2 is given: one notice could be either's."""
    node = ours(pin_lease_s=1.5, consumer_ack_timeout_s=0.2, read_timeout_s=0.5)
    name, data = save(node)
    asked = Asked(builtin, name, announced(node, name))
    count(node, "grants")
    builtin.tell("run", on=False)
    count(node, "expired")
    builtin.tell("run", on=True)
    # It posts the READ of the grant that is over, which moves with the next grant only.
    other, other_data = save(node)
    assert bytes.fromhex(Asked(builtin, other, announced(node, other)).admitted()["bytes"]) == (
        other_data
    )
    # The entry is still there.
    assert bytes.fromhex(asked.admitted()["bytes"]) == data
    count(node, "stale_notices")
    assert builtin.tell("evict", name=name)["gone"]
    asked = Asked(builtin, name, announced(node, name))
    assert bytes.fromhex(asked.admitted()["bytes"]) == data
    count(node, "ambiguous_notices")
    count(node, "expired", 2)
    assert no_pins(node)


@pytest.mark.clause("EC-5.5")
def test_killed_in_mid_read_it_costs_one_lease(builtin, ours):
    node = ours(pin_lease_s=1.5, consumer_ack_timeout_s=0.2, read_timeout_s=0.5)
    name, _ = save(node)
    builtin.tell("run", on=False)
    Asked(builtin, name, announced(node, name))
    builtin.tell("run", on=True)
    count(node, "grants")
    builtin.kill()
    wait_for(lambda: no_pins(node), "the end of its grant", 20.0)
    assert node.p2p.healthy


# ------------------------------------------------------------ versions, sizes, frames
class Dealer:
    """A peer that says exactly what a test wants."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(f"tcp://{address[0]}:{address[1]}")

    def ask(self, request: XferReq) -> tuple[XferAck, int]:
        """The answer, and its length."""
        self.socket.send_multipart([b"", wire.encode(request)])
        assert self.socket.poll(20_000), "no answer"
        frames = self.socket.recv_multipart()
        return wire.decode_ack(frames), len(frames[1])

    def close(self) -> None:
        self.socket.close()
        self.context.term()


@pytest.fixture
def dealers() -> Iterator[Callable[[tuple[str, int]], Dealer]]:
    made: list[Dealer] = []

    def make(address: tuple[str, int]) -> Dealer:
        made.append(Dealer(address))
        return made[-1]

    yield make
    for dealer in made:
        dealer.close()


@pytest.fixture(scope="module")
def their_producer() -> Iterator[Builtin]:
    made = Builtin("ec_producer", 4096)
    yield made
    made.close()


def plain(name: str, version: int) -> XferReq:
    """A request of the old form; version 0 leaves the version out."""
    return XferReq(
        mm_hash=name, compatibility_hash=COMPAT, session_id="s", connector_version=version
    )


@pytest.mark.clause("EC-8.2")
@pytest.mark.parametrize(
    ("version", "ours_says", "theirs_says"),
    [
        (0, XferStatus.OK, XferStatus.OK),
        (1, XferStatus.OK, XferStatus.NACK_VERSION),
        (2, XferStatus.OK, XferStatus.OK),
        (3, XferStatus.NACK_VERSION, XferStatus.NACK_VERSION),
    ],
)
def test_versions(their_producer, ours, dealers, version, ours_says, theirs_says):
    node = ours()
    name, _ = save(node, 1)
    ack, _ = dealers(node.address).ask(plain(name, version))
    assert ack.status == ours_says
    name, _, _ = their_producer.save(1)
    ack, _ = dealers(their_producer.address).ask(plain(name, version))
    assert ack.status == theirs_says
    # The fact that ``Unanswered`` is for: only an OK says whose answer it is.
    assert ack.session_id == ("s" if ack.status == XferStatus.OK else "")


@pytest.mark.clause("EC-8.7")
def test_sizes_of_an_answer(their_producer, ours, dealers, record_property):
    """Theirs describes every block of the region; ours does so only for who cannot do else."""
    node = ours(blocks=4096)
    name, _ = save(node, 2)
    old, old_size = dealers(node.address).ask(plain(name, 2))
    new, new_size = dealers(node.address).ask(
        XferReq(mm_hash=name, compatibility_hash=COMPAT, session_id="n.1", attempt_id=1)
    )
    assert new_size < len(new.agent_metadata) + 1024
    name, _, _ = their_producer.save(2)
    theirs, their_size = dealers(their_producer.address).ask(plain(name, 2))
    assert len(theirs.mem_descriptor) == their_producer.hello["descriptor"]
    assert len(theirs.agent_metadata) == their_producer.hello["metadata"] < 600
    # The same form, so the same size but for the addresses and the agents' names.
    assert abs(old_size - their_size) < 200 + len(old.agent_metadata)
    assert their_size > 4096 * 10
    for what, size in (("ours", new_size), ("ours, old form", old_size), ("theirs", their_size)):
        record_property(f"answer bytes, 4096 blocks, {what}", size)


def test_both_drop_garbage_and_go_on(their_producer, ours, dealers):
    node = ours()
    name, _ = save(node, 1)
    their_name, _, _ = their_producer.save(1)
    for address, known in ((node.address, name), (their_producer.address, their_name)):
        dealer = dealers(address)
        for payload in (b"", b"\xc1", b"\x81\xa4type\xa3req", wire.encode(plain("x", 2))[:-1]):
            dealer.socket.send_multipart([b"", payload])
        ack, _ = dealer.ask(plain(known, 2))
        assert ack.status == XferStatus.OK
