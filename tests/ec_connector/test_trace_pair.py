# SPDX-License-Identifier: Apache-2.0
"""Two instances with real regions, ZMQ and NIXL between them record what TLC accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.needs import needs

needs("nixl")

from ec_verify.models.runner import TlcRunner
from ec_verify.traces.check import Report, check
from tests.world.instance import BLOCK, Node, wait_for

pytestmark = [pytest.mark.clause("EC-1.3"), pytest.mark.timeout(300)]

#: Timers short enough for a test.
QUICK = {"pin_lease_s": 4.0, "consumer_ack_timeout_s": 0.5, "read_timeout_s": 2.0}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    folder = tmp_path_factory.mktemp("traces")
    fetches(folder / "fetches")
    restart(folder / "restart")
    done = check(sorted(folder.iterdir()), TlcRunner(), wanted=100, seed=3)
    return {Path(report.name).name: report for report in done}


def node(role: str, folder: Path, name: str) -> Node:
    folder.mkdir(exist_ok=True)
    extra = {"ec_trace_file": str(folder / f"{name}.ndjson"), **QUICK}
    return Node(role, blocks=16, extra=extra)


def fetches(folder: Path) -> None:
    """Many encodings, more than either region holds, some of them not to be had."""
    with node("ec_producer", folder, "producer") as producer:
        with node("ec_consumer", folder, "consumer") as consumer:
            for number in range(12):
                name, data = f"picture-{number}", bytes([number]) * (BLOCK * 3 - number)
                producer.save(name, data)
                assert consumer.fetch(name, producer.address, len(data), f"r{number}") == "ready"
                assert consumer.bytes_of(name) == data
                consumer.node.leave(f"r{number}", consumer.clock())
            assert consumer.fetch("missing", producer.address, BLOCK, "r-missing") == "failed"
        wait_for(lambda: not open_grants(producer), "grants to end")


def open_grants(producer: Node) -> int:
    """As its server has it."""
    return producer.data.read_figures().gauge("open_grants")


def restart(folder: Path) -> None:
    """The producer ends, and another process has its address."""
    with node("ec_consumer", folder, "consumer") as consumer:
        with node("ec_producer", folder, "producer") as producer:
            address = producer.address
            producer.save("a", b"a" * BLOCK)
            assert consumer.fetch("a", address, BLOCK, "r1") == "ready"
        extra = {"ec_trace_file": str(folder / "producer-again.ndjson"), **QUICK}
        with Node("ec_producer", blocks=16, bind=address, extra=extra) as again:
            again.save("b", b"b" * BLOCK)

            def fetched() -> bool:
                return consumer.fetch("b", address, BLOCK, f"r{len(tried)}") == "ready" or bool(
                    tried.append(1)
                )

            tried: list[int] = []
            wait_for(fetched, "a fetch from the new process", 60.0)
            assert consumer.bytes_of("b") == b"b" * BLOCK


@pytest.mark.parametrize("name", ["fetches", "restart"])
def test_the_run_is_accepted(reports: dict[str, Report], name: str) -> None:
    assert reports[name].rejection is None, reports[name].rejection


@pytest.mark.parametrize("name", ["fetches", "restart"])
def test_its_mutants_are_rejected(reports: dict[str, Report], name: str) -> None:
    assert [mutant.what for mutant in reports[name].survivors] == []
    assert reports[name].rejected_mutants >= 100


def test_they_are_runs_of_several_processes(reports: dict[str, Report]) -> None:
    """Of each instance the engine and the parent, and those that served or read."""
    files = {name: [Path(f).name for f in report.files] for name, report in reports.items()}
    for name, engines in (
        ("fetches", ("producer", "consumer")),
        ("restart", ("producer", "producer-again", "consumer")),
    ):
        for engine in engines:
            own = {
                file.split(".")[1].partition("-")[0]
                for file in files[name]
                if file.startswith(f"{engine}.")
            }
            kind = "server" if engine.startswith("producer") else "reader"
            assert own >= {"ndjson", "parent", kind}
        assert reports[name].processes >= 3 * len(engines)
    assert {"Grant", "AckOk", "ReadDone", "Complete", "Close", "Evict", "AckRefused"} <= set(
        reports["fetches"].actions
    )
    assert {"Offer", "Lend", "Landed", "Failed", "TakePlace"} <= set(reports["fetches"].actions)
