# SPDX-License-Identifier: Apache-2.0
"""TP, PCP, PP and DP: ranks in processes of their own, on real region files.

What vLLM 0.32 does: all tensor- and context-parallel ranks of the first pipeline stage
run the encoder and hold the same outputs; later stages hold none. The mp executor adds
up every rank's report. With DP each rank is an engine of its own.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ec_connector.config.settings import ECConfig
from ec_connector.engine.messages import WorkerReport
from ec_connector.engine.scheduler import ECScheduler
from ec_protocol.node import Node
from tests.ec_connector.engine.ranks import Place, RankProcess, StepResult
from tests.ec_connector.region.region_driver import names_in
from tests.needs import needs
from tests.recording import played
from tests.world import instance as pair
from tests.world.engine import engine
from tests.world.host import BLOCK, ELEMENT, Request, request

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


class Instance:
    """A scheduler delegate, and its ranks as processes."""

    def __init__(
        self, folder: Path, ranks: int, blocks: int = 16, dp_rank: int = 0, name: str = ""
    ) -> None:
        name = name or f"par-{secrets.token_hex(4)}"
        self.place = Place(name, dp_rank, blocks, str(folder))
        self.node = Node(
            blocks=blocks, block_bytes=BLOCK, ranks=ranks, trace=played("engine", time.monotonic)
        )
        self.tier = self.node.tier
        self.scheduler = ECScheduler(
            self.node, items=lambda r: r.items, element_size=ELEMENT, dtype="bfloat16"
        )
        self.ranks = [RankProcess(self.place, number, ranks) for number in range(ranks)]
        self.scheduler.region = self.ranks[0].region

    def build(self, *requests: Request) -> tuple[Any, list[tuple[str, int]]]:
        """A step's metadata, and what is to be encoded in it."""
        scheduler = self.scheduler
        encode: dict[str, int] = {}
        for wanted in requests:
            assert scheduler.ensure_cache_available(wanted, 0)
            for index, item in enumerate(wanted.items):
                if not scheduler.has_cache_item(item.mm_hash):
                    encode[item.mm_hash] = item.shape[0]
                scheduler.update_state_after_alloc(wanted, index)
        return scheduler.build_connector_meta(), list(encode.items())

    def step(self, *requests: Request) -> list[StepResult]:
        """One step on every rank, reported together."""
        metadata, encode = self.build(*requests)
        for rank in self.ranks:
            rank.start(metadata, *encode)
        results = [rank.finish() for rank in self.ranks]
        self.report(*results)
        return results

    def report(self, *results: StepResult) -> None:
        total = WorkerReport()
        for result in results:
            if result.report is not None:
                total = total.aggregate(result.report)
        self.scheduler.update_connector_output(total)

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Instance]]:
    with ExitStack() as stack:

        def go(ranks: int, **settings: Any) -> Instance:
            made = Instance(folder, ranks, **settings)
            stack.callback(made.close)
            return made

        yield go


def reported(result: StepResult) -> list[tuple[int, bool]]:
    return [] if result.report is None else [(e.rank, e.landed) for e in result.report.entries]


# ------------------------------------------------------------------------------------ TP
@pytest.mark.clause("EC-4.1")
def test_tp2_rank_0_writes_both_ranks_read_the_same_bytes_and_each_reports(start, folder):
    instance = start(2)
    first, second = instance.step(request("r1", ("a", 3), ("b", 2)))
    assert reported(first) == [(0, True), (0, True)]
    assert reported(second) == [], "only rank 0 saves"
    results = instance.step(request("r2", ("b", 2), ("a", 3)))
    assert [r.loaded for r in results] == [["a", "b"], ["a", "b"]]
    assert [r.wrong for r in results] == [[], []]
    assert [reported(r) for r in results] == [[(0, True)] * 2, [(1, True)] * 2]
    assert not instance.scheduler.has_pending_push_work()
    assert sorted(rank.created for rank in instance.ranks) == [False, True]
    assert names_in(folder) == [os.path.basename(instance.ranks[0].path)]


@pytest.mark.clause("EC-4.2")
def test_tp2_a_late_rank_keeps_the_blocks_of_its_load(start):
    """Rank 1 has not taken the step yet: nothing may be written where it will read."""
    instance = start(2, blocks=4)
    instance.step(request("r1", ("a", 4)))
    metadata, encode = instance.build(request("r2", ("a", 4)))
    assert encode == []
    first, late = instance.ranks
    first.start(metadata)
    instance.report(first.finish())
    assert instance.scheduler.has_pending_push_work(), "rank 1 still reads"
    blocked, wanted = instance.build(request("r3", ("b", 4)))
    assert (blocked.saves, wanted) == ((), [("b", 4)]), "no room is made of what rank 1 reads"
    late.start(metadata)
    result = late.finish()
    assert (result.loaded, result.wrong) == (["a"], [])
    instance.report(result)
    assert not instance.scheduler.has_pending_push_work()
    # With every report in, the blocks are anybody's.
    instance.step(request("r4", ("b", 4)))
    assert [r.wrong for r in instance.step(request("r5", ("b", 4)))] == [[], []]


@pytest.mark.clause("EC-10.6")
def test_tp2_no_file_is_left_whoever_made_it(start, folder):
    instance = start(2)
    instance.step(request("r1", ("a", 3)))
    instance.close()
    assert names_in(folder) == []


# ----------------------------------------------------------------------------------- PCP
@pytest.mark.clause("EC-4.1")
def test_tp2_pcp2_four_ranks_load_and_one_writes(start):
    instance = start(4)
    results = instance.step(request("r1", ("a", 3)))
    assert [len(reported(r)) for r in results] == [1, 0, 0, 0]
    results = instance.step(request("r2", ("a", 3)))
    assert [(r.loaded, r.wrong) for r in results] == [(["a"], [])] * 4
    assert [rank for r in results for rank, _ in reported(r)] == [0, 1, 2, 3]
    assert not instance.scheduler.has_pending_push_work()


# ------------------------------------------------------------------------------------ PP
@pytest.mark.parametrize("stages", [2, 4])
def test_pp_as_many_steps_are_in_flight_as_there_are_stages(stages):
    """The first stage is ahead of the output by the number of stages."""
    with engine(depth=stages, world_size=2, blocks=12) as e:
        for number in range(6):
            e.host.add(request(f"r{number}", ("a", 3), (f"b{number % 3}", 4), output_len=3))
        for _ in range(30):
            while e.schedule():
                pass
            for rank in range(2):
                while e.work(rank):
                    pass
                e.ranks[rank].device.run_all()
            e.complete()
        e.drain()
        assert len(e.host.finished) == 6
        assert e.encoded.count("a") == 1


# ------------------------------------------------------------------------------------ DP
def test_dp2_tp2_each_rank_has_a_region_of_its_own_under_one_instance(start, folder):
    """One instance id, the same names: the files differ, and so may the contents."""
    first, second = (start(2, dp_rank=rank, name="one") for rank in range(2))
    wanted = ["vllm_ec_one_dp0.mmap", "vllm_ec_one_dp1.mmap"]
    assert sorted(names_in(folder)) == wanted
    for instance, name in ((first, wanted[0]), (second, wanted[1])):
        assert {Path(rank.path).name for rank in instance.ranks} == {name}
    first.step(request("r", ("a", 3)))
    results = second.step(request("r", ("a", 3)))
    assert [r.loaded for r in results] == [[], []], "not shared between DP ranks"
    for instance in (first, second):
        assert [r.wrong for r in instance.step(request("s", ("a", 3)))] == [[], []]
    first.close()
    assert names_in(folder) == wanted[1:], "the other rank lives on"
    assert [r.wrong for r in second.step(request("t", ("a", 3)))] == [[], []]


def test_dp2_each_rank_serves_on_a_port_of_its_own(folder):
    """As configured by one environment: the port, plus the rank."""
    needs("nixl")
    base = free_ports(2)
    environ = {"VLLM_EC_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_EC_SIDE_CHANNEL_PORT": str(base)}
    with ExitStack() as stack:
        nodes = []
        for rank in range(2):
            extra = {"ec_cpu_bytes": 8 * pair.BLOCK, "ec_enable_nixl": True}
            config = ECConfig.parse(extra, "ec_producer", dp_rank=rank, environ=environ)
            assert config.side_channel is not None
            node = pair.Node("ec_producer", 8, bind=config.side_channel)
            stack.callback(node.close)
            node.save("a", bytes([rank]) * pair.BLOCK)
            nodes.append(node)
        assert [node.address for node in nodes] == [("127.0.0.1", base + r) for r in range(2)]
        for rank, node in enumerate(nodes):
            with pair.Node("ec_consumer", 8) as consumer:
                assert consumer.fetch("a", node.address, pair.BLOCK) == "ready"
                assert consumer.bytes_of("a") == bytes([rank]) * pair.BLOCK


def free_ports(count: int) -> int:
    """The first of ``count`` ports in a row that are free."""
    while True:
        with ExitStack() as stack:
            first = socket.create_server(("127.0.0.1", 0))
            stack.callback(first.close)
            base: int = first.getsockname()[1]
            try:
                for offset in range(1, count):
                    stack.callback(socket.create_server(("127.0.0.1", base + offset)).close)
            except OSError:
                continue
            return base
