# SPDX-License-Identifier: Apache-2.0
"""Whole engine steps in the host's order, scripted: real delegates, real region.

Every forward pass checks the bits of every encoding that it looks at, and every test
ends with an idle engine in which nothing may be left.
"""

from __future__ import annotations

import pytest

from tests.world.engine import engine
from tests.world.host import request
from tests.world.peers import Remote, announcement

KINDS = ["device", "cpu"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [1, 2])
def test_saved_then_reloaded_after_a_reset_of_the_encoder_cache(kind, depth):
    with engine(kind=kind, depth=depth) as e:
        e.run(request("r1", 2, ("a", 3), ("b", 2)))
        assert e.encoded == ["a", "b"]
        e.reset_encoder_cache()
        e.run(request("r2", ("a", 3), 5, ("b", 2)))
        assert e.encoded == ["a", "b"], "the second request encodes nothing"
        assert e.scheduler.stats()["loads_landed"] == 2


@pytest.mark.parametrize("depth", [1, 2])
def test_a_hit_in_the_hosts_own_cache_needs_no_load(depth):
    with engine(depth=depth) as e:
        e.run(request("r1", ("a", 3)))
        e.run(request("r2", ("a", 3)))
        assert e.encoded == ["a"]
        assert e.scheduler.stats()["loads_landed"] == 0


def test_the_hosts_cache_evicts_and_the_tier_brings_it_back():
    with engine(cache_rows=4) as e:
        e.run(request("r1", ("a", 3)))
        e.run(request("r2", ("b", 3)))
        e.run(request("r3", ("a", 3)))
        assert e.encoded == ["a", "b"]
        assert e.scheduler.stats()["loads_landed"] == 1


def test_the_same_encoding_twice_in_one_request():
    with engine() as e:
        e.run(request("r1", ("a", 3), 2, ("a", 3)))
        e.reset_encoder_cache()
        e.run(request("r2", ("a", 3), ("a", 3), ("a", 3)))
        assert e.encoded == ["a"]
        assert e.scheduler.stats()["loads_landed"] == 1


@pytest.mark.parametrize("depth", [1, 2])
def test_the_same_encoding_in_requests_of_one_step(depth):
    with engine(depth=depth) as e:
        e.run(*[request(f"r{n}", n, ("a", 3)) for n in range(4)])
        e.reset_encoder_cache()
        e.run(*[request(f"s{n}", n, ("a", 3)) for n in range(4)])
        assert e.encoded == ["a"]
        assert e.scheduler.stats()["loads_landed"] == 1


def test_asked_for_again_while_its_save_is_under_way():
    """Neither loaded nor saved twice: the second request encodes for itself."""
    with engine(depth=2) as e:
        e.host.add(request("r1", ("a", 3)))
        e.schedule()
        e.work()
        while e.complete() or e.device():
            if e.ranks[0].device.queued and not e.flight:
                break
        assert [copy.state for copy in e.node.copies] == ["in_flight"]
        e.reset_encoder_cache()
        e.run(request("r2", ("a", 3)))
        assert e.encoded == ["a", "a"]
        assert e.scheduler.stats()["saves_landed"] == 1


def test_asynchronous_scheduling_plans_a_load_before_the_output_of_the_step_before():
    with engine(depth=2, cache_rows=3) as e:
        e.run(request("r1", ("a", 3)))
        e.run(request("r2", ("b", 3)))
        # Step n loads a; step n + 1 is built while a's load has not even begun.
        e.host.add(request("r3", ("a", 3), output_len=3))
        assert e.schedule()
        assert e.schedule()
        assert not e.schedule(), "two steps may be in flight"
        assert e.tier.get("a").state == "pinned"
        e.drain()
        assert e.encoded == ["a", "b"]


def test_an_entry_that_is_being_loaded_survives_an_allocation_of_the_next_step():
    """A device may copy long after the scheduler has gone on."""
    with engine(depth=2, blocks=6, cache_rows=6) as e:
        e.run(request("r1", ("a", 3)))
        e.run(request("r2", ("b", 3)))
        e.reset_encoder_cache()
        e.host.add(request("r3", ("a", 3)))
        e.schedule()
        e.work()  # submitted, not copied
        e.host.add(request("r4", ("c", 3)))
        e.schedule()  # c takes b's blocks, never a's
        assert e.tier.get("a").state == "pinned"
        assert e.tier.get("b") is None
        e.drain()
        assert e.encoded == ["a", "b", "c"]


def test_chunked_prefill_asks_for_each_item_when_its_turn_comes():
    with engine(tokens=4, encoder_rows=4, blocks=12) as e:
        e.run(request("r1", 3, ("a", 4), 2, ("b", 4), 1, output_len=2))
        e.reset_encoder_cache()
        e.run(request("r2", 3, ("a", 4), 2, ("b", 4), 1, output_len=2))
        assert e.encoded == ["a", "b"]
        assert e.scheduler.stats()["loads_landed"] == 2


@pytest.mark.parametrize("depth", [1, 2])
def test_preempted_after_its_load_was_planned(depth):
    with engine(depth=depth) as e:
        e.run(request("r1", ("a", 3)))
        e.reset_encoder_cache()
        victim = request("r2", ("a", 3), output_len=4)
        e.host.add(victim)
        e.schedule()
        if depth == 1:
            e.settle()
        e.host.preempt(victim)
        e.drain()
        assert victim.finished == "length"
        assert e.encoded == ["a"]


def test_preempted_between_the_question_and_the_allocation():
    """The promise was not used; it ends with the step."""
    with engine(tokens=4, cache_rows=3, encoder_rows=4) as e:
        e.run(request("r1", ("a", 3)))
        e.run(request("r2", ("b", 3)))
        running = request("r3", 4, ("a", 3), output_len=2)
        e.host.add(running)
        e.step()
        assert running in e.host.running
        e.step(preempt=running)
        assert running.num_preemptions == 1
        assert e.tier.get("a").state == "ready"
        e.drain()
        assert running.finished == "length"


@pytest.mark.parametrize("when", ["scheduled", "worked", "computed"])
@pytest.mark.parametrize("what", ["load", "save"])
def test_abort_between_steps(when, what):
    with engine(depth=2) as e:
        if what == "load":
            e.run(request("r0", ("a", 3)))
            e.reset_encoder_cache()
        victim = request("r1", ("a", 3), output_len=5)
        e.host.add(victim)
        e.schedule()
        if when != "scheduled":
            e.work()
        if when == "computed":
            while e.device():
                pass
        e.host.abort(victim)
        e.drain()
        assert victim.finished == "aborted"
        assert [entry.mm_hash for entry in e.tier.entries()] == ["a"]


def test_abort_before_anything_was_scheduled():
    with engine() as e:
        victim = request("r1", ("a", 3))
        e.host.add(victim)
        e.host.abort(victim)
        e.drain()
        assert e.encoded == []


@pytest.mark.clause("EC-4.3")
def test_an_encoder_that_does_not_run_leaves_no_entry():
    with engine(blocks=4) as e:
        e.ranks[0].skip_encoder = True
        e.run(request("r1", ("a", 3)))
        assert list(e.tier.entries()) == []
        e.ranks[0].skip_encoder = False
        e.reset_encoder_cache()
        e.run(request("r2", ("b", 4)))
        assert [entry.mm_hash for entry in e.tier.entries()] == ["b"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.clause("EC-4.7")
def test_what_the_host_evicts_and_allocates_again_in_one_pass_is_saved(kind):
    with engine(kind=kind, blocks=6, cache_rows=7) as e:
        e.run(request("r1", ("a", 3)))
        e.run(request("r2", ("c", 4)))
        assert e.tier.get("a") is None
        e.run(request("r3", ("b", 3), ("a", 3)))
        assert e.encoded == ["a", "c", "b"]
        assert {entry.mm_hash: entry.state for entry in e.tier.entries()} == {
            "b": "ready",
            "a": "ready",
        }
        e.reset_encoder_cache()
        e.run(request("r4", ("a", 3)))
        assert e.encoded == ["a", "c", "b"]


@pytest.mark.parametrize("kind", KINDS)
def test_early_return_steps_carry_the_last_reports(kind):
    """Nothing to compute, yet the host goes on stepping until every copy is reported."""
    with engine(kind=kind) as e:
        e.host.add(request("r1", ("a", 3)))
        e.schedule()
        e.work()
        if kind == "device":
            # The model is done, the save is not: only an empty step can bring its report.
            for op in [op for op in e.ranks[0].device.queued if op.kind == "compute"]:
                e.ranks[0].device.run(op)
        assert e.complete()
        assert not e.host.running
        e.drain()
        assert e.tier.get("a").state == "ready"


@pytest.mark.clause("EC-4.2")
def test_two_ranks_one_of_them_late():
    with engine(world_size=2, depth=2, blocks=3, cache_rows=3) as e:
        e.run(request("r1", ("a", 3)))
        e.reset_encoder_cache()
        e.host.add(request("r2", ("a", 3)))
        e.schedule()
        e.work(0)
        while e.device(0):
            pass
        assert not e.complete(), "the late rank has not computed"
        assert e.tier.get("a").state == "pinned"
        e.work(1)
        # Rank 1 computes, so its load has run; only its report is still to come.
        while e.device(1):
            pass
        assert e.complete()
        assert e.tier.get("a").state == "pinned"
        e.run(request("r3", ("b", 3)))
        assert e.encoded == ["a", "b"]


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_load_and_one_saves(kind):
    with engine(world_size=2, kind=kind) as e:
        e.run(request("r1", ("a", 3), ("b", 2)))
        e.reset_encoder_cache()
        e.run(request("r2", ("b", 2), ("a", 3)))
        for rank in e.ranks:
            assert rank.encoded == ["a", "b"]
        stats = e.scheduler.stats()
        assert (stats["saves_landed"], stats["loads_landed"]) == (2, 2)


@pytest.mark.clause("EC-3.3")
def test_f6_what_a_step_is_promised_is_not_evicted_by_a_save_of_the_same_request():
    """Items to encode are allocated before items to load."""
    with engine(blocks=3) as e:
        e.run(request("r1", ("a", 3)))
        e.reset_encoder_cache()
        e.run(request("r2", ("a", 3), ("b", 2)))
        assert e.encoded == ["a", "b"]
        assert [entry.mm_hash for entry in e.tier.entries()] == ["a"]
        assert e.scheduler.stats()["saves_without_room"] == 1


def test_a_full_tier_evicts_the_oldest_and_a_larger_one_is_not_saved():
    with engine(blocks=4) as e:
        e.run(request("r1", ("a", 2)), request("r2", ("b", 2)))
        e.run(request("r3", ("c", 2)))
        assert sorted(entry.mm_hash for entry in e.tier.entries()) == ["b", "c"]
        e.run(request("r4", ("d", 5)))
        assert e.scheduler.stats()["saves_without_room"] == 1
        assert sorted(entry.mm_hash for entry in e.tier.entries()) == ["b", "c"]


def test_a_producer_saves_and_never_loads():
    with engine(role="ec_producer") as e:
        e.run(request("r1", ("a", 3)))
        e.reset_encoder_cache()
        e.run(request("r2", ("a", 3)))
        assert e.encoded == ["a", "a"]
        assert e.scheduler.stats()["loads_landed"] == 0


# ------------------------------------------------------------------ encodings elsewhere
def consumer(**settings):
    return engine(role="ec_consumer", p2p=Remote(), **settings)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("has_media", [True, False])
def test_an_encoding_is_fetched_and_nothing_encoded(depth, has_media):
    with consumer(depth=depth) as e:
        params = {**announcement("a", 3), **announcement("b", 2)}
        r = request("r1", ("a", 3), 2, ("b", 2), params=params, has_media=has_media)
        e.run(r)
        assert r.finished == "length"
        assert e.encoded == []
        assert sorted(e.p2p.asked) == ["a", "b"]


@pytest.mark.parametrize("outcome", ["missing", "breaks", "silent", "not_ready"])
def test_a_fetch_that_fails_falls_back_to_the_media(outcome):
    with consumer() as e:
        e.p2p.outcomes["a"] = outcome
        r = request("r1", ("a", 3), params=announcement("a", 3))
        e.run(r)
        assert r.finished == "length"
        assert e.encoded == ["a"]


@pytest.mark.parametrize("outcome", ["missing", "breaks", "silent", "not_ready"])
def test_an_encoding_lost_with_its_media_fails_that_request_alone(outcome):
    with consumer() as e:
        e.p2p.outcomes["a"] = outcome
        lost = request("r1", ("a", 3), params=announcement("a", 3), has_media=False)
        other = request("r2", ("b", 2), params=announcement("b", 2), has_media=False)
        e.run(lost, other)
        assert (lost.finished, other.finished) == ("failed", "length")
        assert e.encoded == []
        assert e.host.failed == [lost]


def test_many_requests_wait_for_one_fetch():
    with consumer() as e:
        requests = [
            request(f"r{n}", ("a", 3), params=announcement("a", 3), has_media=False)
            for n in range(3)
        ]
        e.run(*requests)
        assert [r.finished for r in requests] == ["length"] * 3
        assert e.p2p.asked == ["a"]


def test_aborted_while_its_fetch_runs():
    with consumer() as e:
        victim = request("r1", ("a", 3), params=announcement("a", 3), has_media=False)
        e.host.add(victim)
        e.step()
        e.host.abort(victim)
        e.drain()
        assert list(e.tier.entries()) == []


def test_preempted_and_fetched_again_if_it_must():
    with consumer(blocks=3, cache_rows=3) as e:
        victim = request("r1", ("a", 3), params=announcement("a", 3), has_media=False, output_len=9)
        e.host.add(victim)
        while victim.num_output == 0:
            e.step_and_play()
        e.host.preempt(victim)
        e.reset_encoder_cache()
        e.now += 1e4  # the hold on what was fetched has ended long ago
        e.host.add(request("r2", ("b", 3), params=announcement("b", 3), has_media=False))
        e.drain()
        assert victim.finished == "length"
        assert e.encoded == []


def test_the_hold_on_a_fetched_encoding_ends_with_its_first_use():
    with consumer() as e:
        r = request("r1", ("a", 3), params=announcement("a", 3), has_media=False, output_len=9)
        e.host.add(r)
        while r.num_output == 0:
            e.step_and_play()
        assert not r.finished
        assert len(e.holds) == 0
        e.drain()


def test_what_the_host_keeps_for_a_running_request_is_not_fetched_again():
    """The tier may drop it while the request is still being prefilled, chunk by chunk."""
    with consumer(blocks=12, tokens=2, cache_rows=24) as e:
        slow = request("slow", ("a", 12), params=announcement("a", 12), has_media=False)
        e.host.add(slow)
        while len(e.node.copies) or slow.num_computed == 0:
            e.step_and_play()
        assert slow.num_computed < slow.prompt_len - 4
        other = request("other", ("b", 12), params=announcement("b", 12), has_media=False)
        e.host.add(other)
        e.step()
        assert e.tier.get("a") is None, "it gave way to b"
        e.drain()
        assert (slow.finished, other.finished) == ("length", "length")
        assert e.p2p.asked == ["a", "b"]


def test_a_promise_to_one_request_is_not_used_for_another_of_the_same_name():
    """The first is preempted after it was promised; the second means something else."""
    with engine(tokens=8, encoder_rows=8) as e:
        e.run(request("r1", ("a", 3)))
        e.reset_encoder_cache()
        first = request("r2", 8, ("a", 3))
        e.host.add(first)
        e.step()
        second = request("r3", ("a", 5))
        e.host.add(second)
        e.step(preempt=first)
        assert first.num_preemptions == 1
        e.drain()
        assert e.node.counters["hits"] == 0
        assert e.encoded == ["a", "a"]
        assert first.finished == "failed", "the host has the other under that name"
        assert second.finished == "length"
