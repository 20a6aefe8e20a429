# SPDX-License-Identifier: Apache-2.0
"""The guide's orchestration flow, steps 1 to 5: a producer and a consumer engine.

Whole engine steps on both sides, with real regions, ZMQ and NIXL between them, and data
processes that are processes where nothing of them is to be broken or moved; the test is
the orchestrator.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.needs import needs

needs("nixl", "zmq")

from ec_connector.engine.facts import ModelFacts
from ec_protocol.p2p import wire
from ec_protocol.p2p.grants import ProducerGrants
from tests.guide.inside_peers import InsidePeers
from tests.world.engine import Engine, engine
from tests.world.host import BLOCK, ELEMENT, WIDTH, request
from tests.world.instance import wait_for
from tests.world.peers import RealPeers, Remote, announcement

pytestmark = pytest.mark.timeout(120)


def producer(**settings: Any) -> Any:
    return engine(role="ec_producer", p2p=InsidePeers(), **settings)


def consumer(**settings: Any) -> Any:
    return engine(role="ec_consumer", p2p=InsidePeers(), **settings)


@contextmanager
def both(**settings: Any) -> Iterator[tuple[Engine, Engine]]:
    with producer(**settings) as p, consumer(**settings) as c:
        yield p, c


@contextmanager
def both_in_processes() -> Iterator[tuple[Engine, Engine]]:
    """With servers and readers of their own."""
    with (
        engine(role="ec_producer", p2p=RealPeers()) as p,
        engine(role="ec_consumer", p2p=RealPeers()) as c,
    ):
        yield p, c


def announce(p: Engine, *pieces: int | tuple[str, int], name: str = "encode") -> dict[str, Any]:
    """Run a request on the producer; what its answer carries as ec_transfer_params.

    Only until it has finished: the announcement is held for those who come soon.
    """
    r = request(name, *pieces)
    p.host.add(r)
    while not r.finished:
        p.step()
    assert r.announced is not None
    return r.announced


def settle(p: Engine) -> None:
    """Let the producer report its saves, without letting its holds run out."""
    while p.host.wants_step:
        p.step()


# --------------------------------------------------------------------------- step 1
def test_step_1_request_finished_announces_every_resident_encoding():
    with engine(role="ec_producer", p2p=RealPeers()) as p:
        announced = announce(p, 2, ("a", 3), ("b", 2))
        host, port = p.p2p.address
        assert announced == {
            "a": {
                "item_indices": [0],
                "metadata": {"rows": [3]},
                "peer_host": host,
                "peer_port": port,
                "size_bytes": 3 * BLOCK,
                "shape": [3, WIDTH],
            },
            "b": {
                "item_indices": [1],
                "metadata": {"rows": [2]},
                "peer_host": host,
                "peer_port": port,
                "size_bytes": 2 * BLOCK,
                "shape": [2, WIDTH],
            },
        }
        p.drain()


def test_step_1_an_encoding_used_twice_is_announced_once_with_both_places():
    with producer() as p:
        assert announce(p, ("a", 3), ("b", 1), ("a", 3))["a"]["item_indices"] == [0, 2]
        p.drain()


def test_step_1_metadata_and_address_together_or_not_at_all_region_was_full():
    with producer(blocks=4) as p:
        announced = announce(p, ("a", 3), ("b", 3))
        assert announced["a"]["peer_port"]
        assert announced["b"] == {"item_indices": [1], "metadata": {}}
        p.drain()


def test_step_1_metadata_and_address_together_or_not_at_all_evicted_since():
    with producer(blocks=4, tokens=4, encoder_rows=4) as p:
        slow = request("slow", ("a", 3), output_len=20)
        p.host.add(slow)
        p.step()
        settle_copies(p)
        p.host.add(request("other", ("b", 4)))
        while not slow.finished or p.host.running:
            p.step()
        assert slow.announced == {"a": {"item_indices": [0], "metadata": {}}}
        p.drain()


def settle_copies(p: Engine) -> None:
    while len(p.node.copies):
        p.step()


def test_step_1_a_consumer_announces_nothing():
    with consumer() as c:
        r = request("r", ("a", 3))
        c.run(r)
        assert r.announced is None


# --------------------------------------------------------------------------- step 2
@pytest.mark.parametrize("has_media", [True, False])
def test_step_2_the_consumer_takes_the_producers_params_with_or_without_media(has_media):
    with both_in_processes() as (p, c):
        params = announce(p, 1, ("a", 3))
        settle(p)
        r = request("decode", 7, ("a", 3), params=params, has_media=has_media, output_len=3)
        c.run(r)
        assert r.finished == "length"
        assert c.encoded == []
        p.drain()


# --------------------------------------------------------------------------- step 3
def test_step_3_ensure_cache_available_defers_until_the_read_has_landed():
    with both() as (p, c):
        params = announce(p, ("a", 3))
        settle(p)
        r = request("decode", ("a", 3), params=params, has_media=False)
        delegate = c.scheduler
        assert delegate.ensure_cache_available(r, 0) is False
        wait_for(lambda: delegate.ensure_cache_available(r, 0), "the READ to land")
        assert c.tier.get("a").servable
        assert c.p2p.counters()["reads_done"] == 1
        assert c.p2p.counters()["bytes_read"] == 3 * BLOCK
        c.run(r)
        assert r.finished == "length"
        p.drain()


def test_step_3_what_is_cached_locally_is_not_asked_for():
    with both() as (p, c):
        params = announce(p, ("a", 3), ("b", 2))
        settle(p)
        c.run(request("first", ("a", 3), params=params))
        c.reset_encoder_cache()
        c.run(request("second", ("a", 3), ("b", 2), params=params))
        assert c.p2p.counters()["fetches"] == 2
        assert c.encoded == []
        p.drain()


def test_step_3_media_that_the_prompt_has_passed_is_not_asked_for():
    with consumer() as c:
        r = request("r", ("a", 3), params={"a": {"peer_host": "127.0.0.1", "peer_port": 9}})
        assert c.scheduler.ensure_cache_available(r, 3)
        assert not c.p2p.counters()
        c.scheduler.request_finished(r)
        c.drain()


# --------------------------------------------------------------------------- step 4
@pytest.mark.clause("EC-5.8")
def test_step_4_not_ready_is_asked_again_with_the_same_blocks_and_costs_no_recompute():
    with both() as (p, c):
        p.host.add(r := request("encode", ("a", 3)))
        p.schedule()
        p.work()
        # The model has run, the save has not landed: announced all the same.
        for op in [op for op in p.ranks[0].device.queued if op.kind == "compute"]:
            p.ranks[0].device.run(op)
        assert p.complete()
        assert r.announced["a"]["peer_port"]
        assert p.tier.get("a").state == "saving"

        waiting = request("decode", ("a", 3), params=r.announced, has_media=False)
        delegate = c.scheduler
        assert not delegate.ensure_cache_available(waiting, 0)
        blocks = c.tier.get("a").extents
        deadline = time.monotonic() + 20
        while c.p2p.counters()["retries"] < 3:
            assert not delegate.ensure_cache_available(waiting, 0)
            assert c.tier.get("a").extents == blocks
            assert time.monotonic() < deadline
            c.p2p.play(c)
        settle(p)  # the save lands
        c.run(waiting)
        assert waiting.finished == "length"
        assert c.encoded == []
        assert c.p2p.counters()["fallbacks"] == 0
        p.drain()


# --------------------------------------------------------------------------- step 5
def failing(c: Engine, params: dict[str, Any]) -> None:
    """The request with its media encodes locally; the one without fails alone."""
    with_media = request("with", ("a", 3), params=params)
    without = request("without", ("a", 3), params=params, has_media=False)
    c.host.add(without)
    c.drain()
    assert without.finished == "failed"
    c.run(with_media)
    assert with_media.finished == "length"
    assert c.encoded == ["a"]


def test_step_5_nack_missing_falls_back():
    with both() as (p, c):
        params = announce(p, ("a", 3))
        p.drain()
        p.run(request("x", ("c", 8)), request("y", ("d", 8)))  # evicts a
        assert p.tier.get("a") is None
        failing(c, params)
        assert p.p2p.counters()["nack_missing"] >= 1


def test_step_5_nack_incompat_falls_back():
    other = ModelFacts("0", "another-model", "bfloat16", ELEMENT)
    with producer() as p, engine(role="ec_consumer", p2p=InsidePeers(facts=other)) as c:
        failing(c, announce(p, ("a", 3)))
        assert p.p2p.counters()["nack_incompat"] >= 1
        p.drain()


def test_step_5_nack_version_falls_back(monkeypatch):
    with both() as (p, c):
        params = announce(p, ("a", 3))
        monkeypatch.setattr(wire, "VERSIONS", (7,))
        failing(c, params)
        assert p.p2p.counters()["nack_version"] >= 2, "asked once in each version"
        monkeypatch.undo()
        p.drain()


def test_step_5_nack_internal_falls_back(monkeypatch):
    with both() as (p, c):
        params = announce(p, ("a", 3))
        judge = ProducerGrants._judge

        def broken(self: Any, identity: bytes, req: Any, now: float, *, again: bool) -> Any:
            judge(self, identity, req, now, again=again)
            return wire.XferStatus.NACK_INTERNAL

        monkeypatch.setattr(ProducerGrants, "_judge", broken)
        failing(c, params)
        assert p.p2p.counters()["nack_internal"] >= 1
        monkeypatch.undo()
        p.drain()


def test_step_5_ack_timeout_falls_back():
    with producer() as p:
        params = announce(p, ("a", 3))
        peers = InsidePeers(consumer_ack_timeout_s=0.3)
        with engine(role="ec_consumer", p2p=peers) as c:
            p.p2p.stands = True  # the producer's server cannot answer
            started = time.monotonic()
            failing(c, params)
            p.p2p.stands = False
            assert time.monotonic() - started < 10
            assert c.p2p.counters()["ack_timeouts"] >= 1
        p.drain()


class NeverSeen:
    """A data plane of which no READ is seen to end, as towards a stopped process."""

    def __init__(self) -> None:
        self.reader: Any = None
        self.blind = True

    def wrap(self, reader: Any) -> NeverSeen:
        self.reader = reader
        return self

    def poll(self) -> Any:
        return [] if self.blind else self.reader.poll()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reader, name)


def test_step_5_read_timeout_falls_back_and_the_blocks_are_quarantined():
    plane = NeverSeen()
    with producer() as p:
        params = announce(p, ("a", 3))
        settle(p)
        peers = InsidePeers(wrap_reader=plane.wrap, read_timeout_s=0.3)
        with engine(role="ec_consumer", p2p=peers) as c:
            without = request("without", ("a", 3), params=params, has_media=False)
            c.host.add(without)
            deadline = time.monotonic() + 30
            while not without.finished:
                assert time.monotonic() < deadline
                c.step()
                c.p2p.play(c)
            assert without.finished == "failed"
            assert c.p2p.counters()["read_timeouts"] == 1
            assert c.p2p.counters()["quarantined"] == 1
            assert c.tier.quarantined_blocks == 3
            plane.blind = False
            while c.tier.quarantined_blocks:  # the proof comes: endpoint closed, or DONE
                assert time.monotonic() < deadline
                c.p2p.play(c)
            assert c.tier.retired_blocks == 0
            c.drain()
        p.drain()


def test_step_5_peer_disconnect_falls_back_in_heartbeat_time():
    """A dead producer costs what its heartbeats take, not the 60 s of a quarantine."""
    with consumer() as c:
        with engine(role="ec_producer", p2p=RealPeers()) as p:
            params = announce(p, ("a", 3))
            p.drain()
        started = time.monotonic()
        failing(c, params)
        assert time.monotonic() - started < 8.0


@pytest.mark.clause("EC-5.9")
@pytest.mark.parametrize("outcome", ["not_ready", "silent", "breaks", "missing"])
def test_step_5_no_failure_blocks_a_request_for_ever(outcome):
    """A producer that says "not yet" for ever costs the budget of one encoding."""
    with engine(role="ec_consumer", p2p=Remote()) as c:
        c.p2p.outcomes["a"] = outcome
        r = request("r", ("a", 3), params=announcement("a", 3))
        c.host.add(r)
        started = c.now
        while not r.finished:
            c.step()
            c.p2p.play(c)
        assert c.now - started <= c.node.timing.fetch_budget_s + 2 * c.p2p.patience_s
        assert c.encoded == ["a"]
        c.drain()
