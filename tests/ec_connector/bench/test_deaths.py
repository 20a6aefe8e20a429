# SPDX-License-Identifier: Apache-2.0
"""`ec-connector bench deaths`: a slice of it for real, and what it says of a bad run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from tests.needs import needs

needs("nixl", "zmq")

from ec_connector.bench import deaths as rig
from ec_connector.bench import deaths_engines
from ec_connector.bench.deaths import run_deaths
from ec_connector.bench.deaths_report import Death, DeathsReport
from ec_connector.cli import app

LAST: dict[str, Any] = {
    "longest": {"wall": 0.004, "cpu": 0.001, "start_wall": 0.02, "start_cpu": 0.005},
    "hooks": 10,
    "start_s": 0.5,
}


def report(wrong: list[str] | None = None) -> DeathsReport:
    deaths = [
        Death("server", "SIGKILL", 0.1, 2, True),
        Death("server", "SIGKILL", 0.3, 0, False),
        Death("spare", "SIGSTOP", None, 4, True),
    ]
    outcomes = {"landed": 5, "fell back": 6}
    return DeathsReport(7, deaths, outcomes, wrong or [], [LAST, LAST], 1.0)


@pytest.mark.e2e
@pytest.mark.timeout(400)
@pytest.mark.clause("EC-10.6", "EC-14.1", "EC-14.8", "EC-14.10")
def test_deaths_under_load_do_no_harm_and_leave_nothing() -> None:
    """Each role by each signal, and a few more."""
    seen: list[str] = []
    found = run_deaths(20, 3, stall_s=1.0, step=lambda doing, done: seen.append(doing))
    assert found.wrong == []
    assert found.ok
    assert len(found.deaths) == 20
    assert {(d.role, d.signal) for d in found.deaths} == {
        (role, how.name) for role in rig.ROLES for how in rig.SIGNALS
    }
    assert set(found.outcomes) <= {"landed", "fell back"}
    assert found.outcomes["landed"] > 20
    assert all(death.served_s is not None and death.served_s > 0 for death in found.deaths)
    assert {death.whole for death in found.deaths} == {False, True}
    assert (len(seen), seen[0], seen[-1]) == (22, "starting", "the end")


def test_a_death_each_of_a_kind_makes_a_line_of_the_table() -> None:
    lines = {(line["role"], line["signal"]): line for line in report().table()}
    assert len(lines) == 17
    assert lines["server", "SIGKILL"] == {
        "role": "server",
        "signal": "SIGKILL",
        "deaths": 2,
        "unnoticed": 1,
        "fell_back": 1,
        "not_served": 0,
        "p50_ms": pytest.approx(200.0),
        "p99_ms": pytest.approx(298.0),
        "max_ms": pytest.approx(300.0),
    }
    assert lines["spare", "SIGSTOP"]["not_served"] == 1
    assert lines["all", "all"]["deaths"] == 3


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[[DeathsReport], list[Any]]:
    """The command, with a run that has gone as a test wants."""

    def play(found: DeathsReport) -> list[Any]:
        asked: list[Any] = []
        monkeypatch.setattr(
            rig,
            "run_deaths",
            lambda count, seed, stall_s, step: asked.append((count, seed)) or found,
        )
        return asked

    return play


def test_json_has_the_contracts_rows_and_the_table(played: Any) -> None:
    asked = played(report())
    result = CliRunner().invoke(app, ["bench", "deaths", "--count", "3", "--seed", "7", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert asked == [(3, 7)]
    assert set(document) == {"machine", "rows", "ok", "deaths"}
    assert document["ok"] is True
    for row in document["rows"]:
        assert set(row) == {"bench", "case", "ours", "baseline", "unit", "ratio"}
        assert (row["bench"], row["baseline"], row["unit"]) == ("deaths", 500.0, "ms")
    assert document["deaths"]["longest_hook_ms"]["start_wall"] == 20.0
    assert document["deaths"]["requests"] == {"landed": 5, "fell back": 6}


def test_what_is_wrong_is_said_and_fails_the_command(played: Any) -> None:
    played(report(["producer: lost_blocks 3"]))
    result = CliRunner().invoke(app, ["bench", "deaths", "--count", "3"])
    assert result.exit_code == 1
    assert "producer: lost_blocks 3" in result.stdout
    assert "nothing is wrong" not in result.stdout
    result = CliRunner().invoke(app, ["bench", "deaths", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["ok"] is False


def test_without_fault_people_are_told_so(played: Any) -> None:
    asked = played(report())
    result = CliRunner().invoke(app, ["bench", "deaths", "--quick"])
    assert (result.exit_code, asked) == (0, [(20, 1)])
    assert "nothing is wrong, and nothing is left" in result.stdout
    assert "5 landed" in result.stdout


def test_it_runs_alone() -> None:
    result = CliRunner().invoke(app, ["bench", "deaths", "tier"])
    assert result.exit_code == 1
    assert "deaths: give it no other benchmark beside it" in result.output


# --------------------------------------------------------- the rig can see what is wrong
class Engines:
    """Two engines that have said this last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **last: Any) -> None:
        quiet = {"loans": 0, "quarantined": 0, "retired": 0, "whole": True, "lost_blocks": 0}
        self.last = {**LAST, **quiet, "descriptors": 0, **last}
        monkeypatch.setattr(rig, "_Engine", self.engine)

    def engine(self, kind: str, *_: Any) -> Any:
        class Engine:
            pids: ClassVar[dict[str, list[int]]] = {}
            address = None
            region = "vllm_ec_bench-none_dp0.mmap"
            last = self.last
            process = type("Process", (), {"exitcode": 0, "join": lambda self, _: None})()
            pipe = type("Pipe", (), {"send": lambda self, _: None})()
            hear = staticmethod(lambda: iter(()))
            children = staticmethod(list)

        Engine.kind = kind  # type: ignore[attr-defined]
        return Engine()


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ({}, None),
        ({"loans": 2}, "producer: loans 2"),
        ({"retired": 1}, "producer: retired 1"),
        ({"quarantined": 4}, "producer: quarantined 4"),
        ({"lost_blocks": 3}, "producer: lost_blocks 3"),
        ({"whole": False}, "producer: its data processes did not come back"),
        ({"descriptors": 2}, "producer: 2 descriptors more than at first"),
    ],
)
def test_what_an_engine_has_lost_is_wrong(
    monkeypatch: pytest.MonkeyPatch, last: dict[str, Any], said: str | None
) -> None:
    Engines(monkeypatch, **last)
    monkeypatch.setattr(rig.time, "sleep", lambda _: None)
    wrong = rig.Rig(1, 1.0).end()
    assert (wrong == []) if said is None else (said in wrong)


def test_what_is_left_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    Engines(monkeypatch)
    made = rig.Rig(1, 1.0)
    made._seen = {1: rig._start_of(1), 999_999_999: "5"}
    theirs = ["ec_ucx_vllm_ec_bench-none_dp0.0123", made.producer.region]
    monkeypatch.setattr(rig.os, "listdir", lambda _: [*theirs, "vllm_ec_bench-other_dp0.mmap"])
    assert made._left() == [
        "process 1 is left",
        "/dev/shm/ec_ucx_vllm_ec_bench-none_dp0.0123 is left",
        "/dev/shm/vllm_ec_bench-none_dp0.mmap is left",
    ]


def test_an_encoding_is_what_its_name_stands_for() -> None:
    name, nbytes = "1-1", 3 * 16384 + 5
    data = deaths_engines.content(name, nbytes)
    assert len(data) == nbytes
    assert data != deaths_engines.content("1-2", nbytes)


class Pipe:
    """A pipe on which nothing comes."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def poll(self, _: float) -> bool:
        return False

    def send(self, message: Any) -> None:
        self.sent.append(message)


@pytest.mark.e2e
@pytest.mark.timeout(200)
@pytest.mark.parametrize("how", ["right", "wrong bytes", "late"])
def test_the_consumer_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """A request whose encoding is there, in a region in which a byte may be another one."""
    name, nbytes = "3-7", 2 * 16384
    engine = deaths_engines.Engine("ec_consumer", rig.settings(4.0), Pipe())  # type: ignore[arg-type]
    try:
        tier = engine.node.instance.node.tier
        entry = tier.alloc(name, nbytes)
        assert entry is not None
        tier.begin_write(entry, ("save", 0))
        data = bytearray(deaths_engines.content(name, nbytes))
        data[-1] ^= how == "wrong bytes"
        for extent in entry.extents:
            view = engine.node.region.view(extent)
            view[:] = data[: len(view)]
            del data[: len(view)]
        tier.write_landed(entry, ("save", 0))
        request = deaths_engines.Request(
            "r", [deaths_engines.make_item(name, 1, nbytes, 1)], {"x": 1}
        )
        if how == "late":
            request.asked_at -= 100.0
        asked = deaths_engines.Asking(engine)
        asked.waiting.append(request)
        asked.turn()
        (outcome,) = [ended for _, _, ended in engine._events] or [
            ended for message in engine._rig.sent for _, _, ended in message[2]
        ]
        assert outcome == {"right": "landed"}.get(how, how)
    finally:
        engine.node.close()
