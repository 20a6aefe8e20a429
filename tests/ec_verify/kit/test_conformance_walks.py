# SPDX-License-Identifier: Apache-2.0
"""Random schedules: ours survives them, faults do not, and a failure comes out short."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs

needs("msgspec", "zmq")

from typer.testing import CliRunner

from ec_protocol.engine import Engine
from ec_protocol.parts import Parts
from ec_protocol.tier.encodings import EncodingTier
from ec_verify.adapters.ours.adapter import Ours
from ec_verify.kit.adapter import Unsupported
from ec_verify.kit.command import app
from ec_verify.kit.language.schedule import load_dir
from ec_verify.kit.runner import run_case
from ec_verify.kit.walk_failures import shorten
from ec_verify.kit.walks import walk
from ec_verify.kit.world.links import InProcess, Link
from tests.faults import FAULTS

# Slow: random schedules of the whole kit, and what it makes of faults in them.
pytestmark = pytest.mark.slow

STEPS = 80


class LeakyTier(EncodingTier):
    """What a skipped save had is lost."""

    def drop_allocated(self, entry: Any) -> None:
        self.recorder.move(entry, "cancel")
        del self._live[entry.mm_hash]


class Leaky(Ours):
    def make_node(self, **settings: Any) -> Engine:
        return Engine(**settings, parts=Parts(tier=LeakyTier))


def link(factory: Any) -> Any:
    def connect(node: str) -> Link:
        return InProcess(factory)

    return connect


def first_failure(factory: Any, seeds: range) -> Any:
    for seed in seeds:
        result = walk(seed, STEPS, link(factory))
        if result is not None:
            return result
    raise AssertionError("no walk noticed")


@pytest.mark.parametrize("seed", range(60))
def test_ours_survives(seed: int):
    result = walk(seed, STEPS, link(Ours))
    assert result is None, (result.detail, result.case.steps)


def test_walks_go_where_it_hurts():
    """READs are posted, finished, failed and lost; leases end; processes die."""
    seen: Counter[str] = Counter()

    class Counting(Ours):
        def close(self) -> None:
            if self.data_processes is not None:
                seen.update(self.data_processes.counters())
            super().close()

    for seed in range(100, 160):
        assert walk(seed, STEPS, link(Counting)) is None
    wanted = {
        "reads_done",
        "quarantined",
        "late_reads",
        "read_errors",
        "read_timeouts",
        "ack_timeouts",
        "fence_closed",
        "stale_acks",
        "duplicate_acks",
        "retries",
        "grants",
        "completed",
        "expired",
        "peers_replaced",
        "peers_lost",
        "relent",
        "slots_granted",
        "killed_drained",
        "died",
    }
    assert {name for name in wanted if not seen[name]} == set()


class NoProofs(Ours):
    """Takes no teardown of an endpoint for an answer."""

    def data(self, *, now: float, read: Any, event: str) -> dict[str, Any]:
        if event == "endpoint_closed":
            raise Unsupported("endpoint_closed")
        return super().data(now=now, read=read, event=event)


class LeakyWithoutProofs(NoProofs, Leaky):
    pass


def test_who_takes_no_proof_walks_too():
    for seed in range(20):
        result = walk(seed, STEPS, link(NoProofs))
        assert result is None, (result.detail, result.case.steps)
    found = first_failure(LeakyWithoutProofs, range(20))
    assert found.clause in ("EC-2.1", "EC-4.2")


def test_a_leak_is_noticed_at_the_end():
    result = first_failure(Leaky, range(20))
    assert result.clause in ("EC-2.1", "EC-4.2")


def test_bytes_accepted_after_the_fence_are_noticed_and_the_schedule_is_short(tmp_path: Path):
    without_fence = FAULTS["accepts-late-reads"].make
    result = first_failure(without_fence, range(200))
    assert (result.invariant, result.clause) == ("FencedAccept", "EC-5.3")
    short = shorten(result, link(without_fence))
    assert (short.invariant, short.clause) == ("FencedAccept", "EC-5.3")
    assert len(short.case.steps) < len(result.case.steps) / 2
    assert run_case(short.case, link(Ours)).invariant == ""


def test_the_same_seed_is_the_same_walk():
    first = first_failure(Leaky, range(20))
    seed = int(first.case.id.removeprefix("walk-"))
    again = walk(seed, STEPS, link(Leaky))
    assert again.case.steps == first.case.steps


def test_the_command_saves_a_case_that_plays_the_failure_again(tmp_path: Path):
    name = f"{__name__}:Leaky" if __name__ != "__main__" else "Leaky"
    words = ["walk", "--adapter", name, "--walks", "20", "--steps", str(STEPS), "--json"]
    done = CliRunner().invoke(app, [*words, "--save", str(tmp_path)])
    assert done.exit_code == 1, done.output
    document = json.loads(done.stdout)
    assert document["ok"] is False
    (failure,) = document["failures"]
    assert failure["verdict"] == "FAILED"
    (case,) = load_dir(tmp_path)
    assert run_case(case, link(Leaky)).clause == failure["clause"]
    assert list((tmp_path / "histories").iterdir())


def test_with_every_the_ways_to_fail_are_told_apart_and_counted():
    name = f"{__name__}:Leaky"
    words = ["walk", "--adapter", name, "--walks", "12", "--steps", str(STEPS), "--json"]
    done = CliRunner().invoke(app, [*words, "--every"])
    document = json.loads(done.stdout)
    assert document["walks"] == 12
    counts = [failure["walks"] for failure in document["failures"]]
    assert 1 < sum(counts) <= 12
    reasons = [(f["invariant"], f["clause"]) for f in document["failures"]]
    assert len(reasons) == len(counts)


def test_the_command_is_content_with_ours():
    done = CliRunner().invoke(app, ["walk", "--adapter", "ours", "--walks", "2", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["walks"] == 2


def test_an_adapter_that_cannot_walk_is_told_so():
    tiny = "ec_verify.kit.examples.tiny:TinyAdapter"
    done = CliRunner().invoke(app, ["walk", "--adapter", tiny])
    assert done.exit_code != 0
