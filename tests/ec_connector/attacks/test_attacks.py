# SPDX-License-Identifier: Apache-2.0
"""What a peer can do to the engine's memory, time and other peers: nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.needs import needs

needs("nixl")

from tests.ec_connector.attacks.victim import BLOCK, Victim
from tests.ec_connector.network.data_driver import TCP

ROOT = Path(__file__).parents[3]


@contextmanager
def attacker(*args: object, **environ: str) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "tests.ec_connector.attacks.attacker", *map(str, args)]
    child = subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **environ}
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def told(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line, "the attacker said nothing"
    said: dict[str, Any] = json.loads(line)
    return said


@pytest.fixture(params=["tcp", "all"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """TCP is what two hosts without a card use."""
    monkeypatch.setenv("UCX_TLS", TCP if request.param == "tcp" else request.param)
    return str(request.param)


@pytest.mark.clause("EC-14.1")
def test_a_write_reaches_no_byte_of_the_region_and_kills_nobody_but_a_server(
    transport: str,
) -> None:
    with Victim("ec_producer") as victim:
        victim.save("picture", b"P" * BLOCK)
        victim.save("other", b"O" * BLOCK)
        before = bytes(victim.region.buffer)
        with attacker("forge", victim.address[1], "WRITE", BLOCK, 11) as child:
            assert told(child)["state"] != "DONE" or transport == "tcp"
        assert bytes(victim.region.buffer) == before
        victim.until(lambda: bool(victim.processes("server")) and victim.data.address is not None)
        # Whoever is honest is served, by this server or the next.
        with Victim("ec_consumer") as consumer:
            deadline = time.monotonic() + 30
            while consumer.fetch("other", victim.address, BLOCK) != "ready":
                victim.data.turn()
                assert time.monotonic() < deadline
            assert consumer.content("other") == b"O" * BLOCK


def test_what_a_server_has_in_its_memory_is_the_region_and_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with Victim("ec_both") as victim:
        for process in psutil.Process().children(recursive=True):
            environ = process.environ()
            assert not {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY"} & set(environ), process.name()
        for pid in victim.processes("server"):
            maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
            inode = str(os.stat(victim.region.path).st_ino)
            regions = [line for line in maps if line.split()[4] == inode]
            assert regions
            assert all(line.split()[1].startswith("r--") for line in regions), regions


def test_a_server_listens_on_the_address_that_is_bound_and_no_other() -> None:
    with Victim("ec_producer") as victim:
        victim.save("picture", b"P" * BLOCK)
        for pid in victim.processes("server"):
            listens = {
                c.laddr.ip for c in psutil.Process(pid).net_connections() if c.status == "LISTEN"
            }
            assert listens == {"127.0.0.1"}


def test_a_notice_from_an_agent_without_a_proper_name_ends_nothing() -> None:
    with Victim("ec_producer") as victim, Victim("ec_consumer") as consumer:
        victim.save("picture", b"P" * BLOCK)
        victim.save("other", b"O" * BLOCK)
        servers = victim.processes("server")
        with attacker("notice", victim.address[1]) as child:
            assert told(child) == {"status": 0}
        assert consumer.fetch("other", victim.address, BLOCK) == "ready"
        assert victim.processes("server") == servers


def test_answers_of_gigabytes_cost_the_engine_neither_memory_nor_time() -> None:
    with Victim("ec_consumer") as victim, attacker("flood", 4, 200) as child:
        port = told(child)["port"]
        me = psutil.Process()
        gaps: list[float] = []
        stop = threading.Event()

        def engine() -> None:
            last = time.monotonic()
            while not stop.is_set():
                now = time.monotonic()
                gaps.append(now - last)
                last = now
                time.sleep(0.0005)

        before = me.memory_info().rss
        watch = threading.Thread(target=engine)
        watch.start()
        try:
            assert victim.fetch("h", ("127.0.0.1", port), BLOCK) == "failed"
        finally:
            stop.set()
            watch.join()
        assert me.memory_info().rss - before < 64 << 20


def test_producers_that_hang_up_under_a_read_lock_nobody_out() -> None:
    with Victim("ec_producer") as good, Victim("ec_consumer") as victim:
        good.save("first", b"1" * BLOCK)
        assert victim.fetch("first", good.address, BLOCK) == "ready"
        for number in range(4):
            with attacker("hang-up") as child:
                port = told(child)["port"]
                assert victim.fetch(f"evil{number}", ("127.0.0.1", port), BLOCK) == "failed"
            name = f"good{number}"
            good.save(name, b"2" * BLOCK)
            began = time.monotonic()
            while victim.fetch(name, good.address, BLOCK) != "ready":
                assert time.monotonic() - began < 10
            assert victim.content(name) == b"2" * BLOCK
        # What they held up comes back with the readers that read from them.
        link = victim.data.link
        assert link.loans is not None
        victim.until(lambda: len(link.loans) == 0)  # type: ignore[arg-type]
        assert victim.node.tier.quarantined_blocks == 0
        assert victim.node.tier.retired_blocks == 0
