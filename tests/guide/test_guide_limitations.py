# SPDX-License-Identifier: Apache-2.0
"""What the guide lists as limitations, and what this connector does instead."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys

import pytest

from ec_connector.region.shared import reap_orphans
from tests.world.engine import engine
from tests.world.host import request
from tests.world.peers import Remote, announcement
from tests.world.processes import until


def test_an_announced_encoding_is_held_for_its_first_reader():
    """Instead of being evicted between announcement and read."""
    with engine(role="ec_producer", p2p=Remote(), blocks=8) as p:
        first = request("first", ("a", 3))
        p.host.add(first)
        while not first.finished:
            p.step()
        while len(p.node.copies):
            p.step()
        for number in range(3):
            p.host.add(request(f"more{number}", (f"m{number}", 3), output_len=50))
            for _ in range(4):
                p.step()
            assert p.tier.get(f"m{number}") is not None
            assert p.tier.get("a") is not None, "older than what was evicted instead"
        p.now += p.node.timing.announce_hold_s
        p.step()
        p.host.add(request("last", ("z", 8)))
        p.drain()
        assert p.tier.get("a") is None, "not for ever"


def test_holds_cannot_pin_the_tier_solid():
    with engine(role="ec_producer", p2p=Remote(), blocks=8) as p:
        for number in range(12):
            r = request(f"r{number}", (f"m{number}", 2))
            p.host.add(r)
            while p.host.wants_step:
                p.step()
            assert p.tier.get(f"m{number}") is not None, "every one is saved"
        assert p.holds.held_blocks <= 4
        p.drain()


@pytest.mark.clause("EC-10.6")
def test_sigkill_of_every_process_leaves_no_region_file():
    name = f"guide-{os.getpid()}-{secrets.token_hex(4)}"
    code = (
        "import os, signal, sys\n"
        "from ec_connector.region.shared import SharedRegion\n"
        "region = SharedRegion.open(sys.argv[1], 0, 4, 4096)\n"
        "print(region.path, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, name], stdout=subprocess.PIPE, text=True, timeout=60
    )
    path = done.stdout.strip()
    assert path.startswith("/dev/shm/vllm_ec_")
    until(lambda: not os.path.exists(path), "its guard to remove it")
    assert name not in str(reap_orphans())


@pytest.mark.clause("EC-5.8")
def test_a_retried_read_keeps_its_blocks_and_evicts_nothing():
    with engine(role="ec_consumer", p2p=Remote(), blocks=6) as c:
        c.p2p.patience_s = 0.05
        c.p2p.outcomes["b"] = "not_ready"
        c.run(request("first", ("a", 3), params=announcement("a", 3)))
        waiting = request("second", ("b", 3), params=announcement("b", 3), has_media=False)
        c.host.add(waiting)
        c.step()
        blocks = c.tier.get("b").extents
        while c.p2p.reader.counters["retries"] < 5:
            c.step()
            c.p2p.play(c)
            assert c.tier.get("b").extents == blocks
        assert c.tier.evictions == 0
        c.p2p.outcomes["b"] = "lands"
        c.drain()
        assert waiting.finished == "length"


def test_an_encoding_lost_after_its_announcement_fails_one_request_and_not_the_engine():
    with engine(role="ec_consumer", p2p=Remote()) as c:
        c.p2p.outcomes["a"] = "missing"
        lost = request("lost", ("a", 3), params=announcement("a", 3), has_media=False)
        mixed = request("mixed", ("a", 3), 2, ("b", 2), params=announcement("b", 2))
        c.run(lost, mixed)
        assert lost.finished == "failed"
        assert mixed.finished == "length"
        again = request("again", ("a", 3))
        c.run(again)  # the media put back, as an orchestrator does
        assert again.finished == "length"


@pytest.mark.parametrize(
    "name",
    ["x" * (1 << 20), "../../etc/passwd", "a/b\0c", "é" * 256, "é" * 512, "%s%n", " ", "a\ud800"],
)
def test_names_of_any_form_work_locally_and_are_announced_only_if_they_can_be_asked_for(name):
    """A name may be a client's own `uuid`."""
    with engine(role="ec_both", p2p=Remote()) as e:
        r = request("r1", (name, 3))
        e.run(r)
        e.reset_encoder_cache()
        (said,) = r.announced.values()
        # Half a pair is no character.
        askable = len(name) <= 512 and "\ud800" not in name
        assert bool(said["metadata"]) == ("peer_host" in said) == askable
        e.run(request("r2", (name, 3)))
        assert e.encoded == [name]
