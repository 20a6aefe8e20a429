# SPDX-License-Identifier: Apache-2.0
"""Checksums in the data processes: pieces, turns, and whole instances whose bytes are changed."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest

from tests.needs import needs

needs("nixl", "zmq", "xxhash")

import xxhash
import zmq

from ec_connector.network.checksum import PIECE, Digest
from ec_connector.processes import checksums
from ec_connector.processes.checksums import Answers, Comparing
from ec_protocol.errors import LocalProtocolError
from ec_protocol.p2p import wire
from ec_protocol.p2p.commands import PrepareRead
from ec_protocol.p2p.wire import XferAck, XferReq, XferStatus
from ec_protocol.terms import XXH3_128, Terms
from tests.world.core import BLOCK as CORE_BLOCK
from tests.world.core import COMPAT, START, Producer, World
from tests.world.instance import BLOCK, Node, wait_for

pytestmark = pytest.mark.clause("EC-8.11")
CHECKED = {"ec_integrity": "checksum"}


def checksum(data: bytes) -> str:
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(data)}"


# ------------------------------------------------------------------------- pieces
def test_pieces_are_the_bytes_in_their_order_however_they_are_cut() -> None:
    memory = memoryview(random.Random(1).randbytes(1000))
    pieces = ((500, 300), (0, 7), (100, 0), (20, 60))
    data = b"".join(bytes(memory[at : at + size]) for at, size in pieces)
    for budget in (1, 7, 300, 1 << 20):
        digest = Digest(memory, pieces)
        steps = 1
        while not digest.step(budget):
            steps += 1
        assert digest.text == checksum(data)
        assert steps == max(1, -(-len(data) // budget))


@pytest.mark.parametrize("piece", [(-1, 2), (999, 2), (0, 1001)])
def test_nothing_beside_the_region_is_looked_at(piece: tuple[int, int]) -> None:
    with pytest.raises(LocalProtocolError):
        Digest(memoryview(bytes(1000)), (piece,))


# ------------------------------------------------------------------------- answers
class Bench:
    """A producer's grants, and acks that wait for checksums of its bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
        self.producer: Producer = World().producer
        self.grants = self.producer.grants
        self.grants.terms = Terms(checksum=XXH3_128)
        self.answers = Answers(self.grants, memoryview(self.producer.bytes))
        make = Digest.step
        monkeypatch.setattr(Digest, "step", lambda digest: make(digest, piece))

    def ask(self, who: bytes, name: str, attempt: int) -> None:
        asked = XferReq(
            name, COMPAT, f"{who.decode()}.{attempt}", 2, attempt, "c", checksum=XXH3_128
        )
        ack = self.grants.on_request(who, asked, START)
        found = self.grants.unhashed(asked, ack)
        assert found is not None
        self.answers.wait(who, who, found, ack)

    def turns(self) -> list[tuple[bytes, str, str]]:
        """Until nothing waits: who was answered, for what, with which checksum."""
        told = []
        for _ in range(1000):
            told += [(who, ack.mm_hash, ack.checksum) for who, ack in self.answers.turn()]
            if not len(self.answers):
                return told
        raise AssertionError("answers wait for ever")


@pytest.mark.parametrize("modest_first", [True, False])
def test_peers_take_turns(monkeypatch: pytest.MonkeyPatch, modest_first: bool) -> None:
    bench = Bench(monkeypatch, CORE_BLOCK)
    for number in range(3):
        bench.producer.save(f"greedy{number}", 4 * CORE_BLOCK)
    bench.producer.save("small", 2 * CORE_BLOCK)
    bench.grants.quota_blocks = 16
    if modest_first:
        bench.ask(b"modest", "small", 9)
    for number in range(3):
        bench.ask(b"greedy", f"greedy{number}", number)
    if not modest_first:
        bench.ask(b"modest", "small", 9)
    told = bench.turns()
    assert [name for _, name, _ in told] == ["small", "greedy0", "greedy1", "greedy2"]
    for _, name, said in told:
        entry = bench.producer.tier.get(name)
        assert entry is not None
        pieces = wire.local_pieces(entry.extents, entry.nbytes, CORE_BLOCK)
        data = b"".join(bytes(bench.producer.bytes[at : at + size]) for at, size in pieces)
        assert said == checksum(data)


def test_one_checksum_answers_all_who_wait_for_it_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, CORE_BLOCK)
    bench.producer.save("h", 2 * CORE_BLOCK)
    for who in (b"a", b"b", b"a"):
        bench.ask(who, "h", 1)
    assert len(bench.answers) == 2, "the same request again waits no second time"
    assert [who for who, _, _ in bench.turns()] == [b"a", b"b"]
    assert bench.grants.counters["checksums_made"] == 1


def test_a_grant_that_ends_takes_its_checksum_along(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, CORE_BLOCK)
    bench.producer.save("h", 4 * CORE_BLOCK)
    bench.ask(b"a", "h", 1)
    list(bench.answers.turn())
    bench.grants.on_notice(b"a.1:h", START)
    assert list(bench.answers.turn()) == []
    assert len(bench.answers) == 0, "nothing more of it is looked at"
    bench.ask(b"a", "h", 3)
    bench.grants.on_notice(b"a.3:h", START)
    # Granted anew, and in between its blocks were nobody's.
    bench.ask(b"a", "h", 2)
    assert [who for who, _, _ in bench.turns()] == [b"a"]
    assert bench.grants.counters["checksums_dropped"] == 2
    assert bench.grants.counters["checksums_made"] == 1


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "MAX_WAITING", 2)
    bench = Bench(monkeypatch, CORE_BLOCK)
    bench.producer.save("h", 10)
    for who in (b"a", b"b", b"c"):
        bench.ask(who, "h", 1)
    assert len(bench.turns()) == 2
    assert bench.grants.counters["checksums_dropped"] == 1


# ----------------------------------------------------------------------- comparing
def test_a_read_is_compared_piece_by_piece_and_by_the_time_at_which_it_ended() -> None:
    data = random.Random(2).randbytes(2 * PIECE + 5)
    comparing = Comparing(memoryview(data))

    def posted(attempt: int, said: str) -> None:
        pieces = ((0, len(data)),)
        command = PrepareRead(attempt, ("p", 1), b"a", "", pieces, pieces, 0, b"n", said)
        comparing.posted(command)

    posted(1, checksum(data))
    posted(2, checksum(data[:-1]))
    posted(3, checksum(data))
    comparing.forget(3)
    assert comparing.done(1, 5.0)
    assert comparing.done(2, 6.0)
    assert not comparing.done(3, 7.0), "nobody waits for it"
    turns = [comparing.turn() for _ in range(6)]
    assert turns == [None, None, (1, 5.0, True), None, None, (2, 6.0, False)]
    assert not comparing


# ----------------------------------------------------------------- whole instances


def pair(producer: dict[str, Any], consumer: dict[str, Any]) -> tuple[Node, Node]:
    return Node("ec_producer", extra=producer), Node("ec_consumer", extra=consumer)


def flip(node: Node, name: str, at: int) -> None:
    """Change one bit of an encoding where it lies in shared memory."""
    entry = node.tier.get(name)
    assert entry is not None
    block, offset = divmod(at, BLOCK)
    blocks = [b for start, count in entry.extents for b in range(start, start + count)]
    view = node.region.view((blocks[block], 1))
    view[offset] = int(view[offset]) ^ 1


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.parametrize("nbytes", [1, BLOCK, 5 * BLOCK + 3])
def test_right_bytes_arrive(nbytes: int) -> None:
    data = random.Random(nbytes).randbytes(nbytes)
    producer, consumer = pair(CHECKED, CHECKED)
    with producer, consumer:
        producer.save("picture", data)
        assert consumer.fetch("picture", producer.address, nbytes) == "ready"
        assert consumer.bytes_of("picture") == data
        wait_for(lambda: producer.counters()["checksums_made"] == 1, "the counter")
        assert consumer.counters()["checksum_mismatches"] == 0


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.parametrize("at", [0, 3 * BLOCK + 1])
def test_bytes_that_flip_between_grant_and_read_are_found(
    at: int, caplog: pytest.LogCaptureFixture
) -> None:
    nbytes = 3 * BLOCK + 2
    data = random.Random(7).randbytes(nbytes)
    producer, consumer = pair(CHECKED, CHECKED)
    context = zmq.Context()
    with producer, consumer, caplog.at_level(logging.INFO):
        producer.save("picture", data)
        # Somebody has a grant, with which the checksum is made and kept.
        peer = context.socket(zmq.DEALER)
        peer.connect("tcp://{}:{}".format(*producer.address))
        compat = producer.data._spec.compat_hash
        asked = XferReq("picture", compat, "s.1", 2, 1, "s", checksum=XXH3_128)
        peer.send_multipart([b"", wire.encode(asked)])
        wait_for(lambda: bool(peer.poll(0)), "the answer")
        ack: XferAck = wire.decode_ack(peer.recv_multipart())
        context.destroy(linger=0)
        assert (ack.status, ack.checksum) == (XferStatus.OK, checksum(data))
        flip(producer, "picture", at)
        assert consumer.fetch("picture", producer.address, nbytes) == "failed"
        wait_for(lambda: consumer.counters()["checksum_mismatches"] == 1, "the counter")
        wait_for(lambda: "brought other bytes" in caplog.text, "the alarm")
        assert any(r.levelno == logging.ERROR for r in caplog.records)
        assert consumer.tier.get("picture") is None
        assert consumer.tier.free_blocks == consumer.tier.num_blocks
        # Nobody was killed for it, and what is right arrives.
        producer.save("other", data)
        assert consumer.fetch("other", producer.address, nbytes) == "ready"
        assert consumer.bytes_of("other") == data
        assert consumer.data.figures.exits["reader"] == 0


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_a_consumer_that_demands_one_reads_from_nobody_who_gives_none() -> None:
    producer, consumer = pair({}, CHECKED)
    with producer, consumer, Node("ec_consumer") as lenient:
        producer.save("picture", b"\x01" * BLOCK)
        assert consumer.fetch("picture", producer.address, BLOCK) == "failed"
        wait_for(lambda: consumer.counters()["acks_without_checksum"] == 1, "the counter")
        assert lenient.fetch("picture", producer.address, BLOCK) == "ready"


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_who_demands_none_gets_none_and_flipped_bytes_pass() -> None:
    producer, consumer = pair(CHECKED, {})
    with producer, consumer:
        producer.save("picture", b"\x01" * BLOCK)
        flip(producer, "picture", 0)
        assert consumer.fetch("picture", producer.address, BLOCK) == "ready"
        assert consumer.bytes_of("picture")[0] == 0
        assert producer.counters()["checksums_made"] == 0
