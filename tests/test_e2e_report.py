# SPDX-License-Identifier: Apache-2.0
"""What `make e2e` makes of answers: right, wrong, missing, and how it says so."""

from __future__ import annotations

import ast
import inspect
import json
import signal
import textwrap
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e import groups, rows, run, server
from tests.e2e.ask import Answer, _joined
from tests.e2e.bench import Group, Progress
from tests.e2e.rows import Oracle, Row, measured
from tests.e2e.server import ServerError


def answer(*tokens: int, logprob: float = -1.0) -> Answer:
    return Answer(200, tokens, (logprob,) * len(tokens))


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Oracle:
    told = {(0,): answer(1, 2), (1,): answer(3, 4)}
    monkeypatch.setattr(rows, "ask_all", lambda url, wanted, workers: [told[w] for w in wanted])
    made = Oracle()
    assert made.learn("http://plain", [(0,), (1,)]) == []
    return made


def test_wrong_answers_and_errors_are_not_ok(oracle):
    right, wrong, error = Row("right"), Row("wrong"), Row("error")
    oracle.judge(right, [(0,), (1,)], [answer(1, 2), answer(3, 4)])
    oracle.judge(wrong, [(0,), (1,)], [answer(3, 4), answer(3, 4, logprob=-1.1)])
    oracle.judge(error, [(0,)], [Answer(500, error="boom")])
    assert right.ok
    assert (right.requests, right.wrong) == (2, 0)
    assert not wrong.ok
    assert wrong.wrong == 2
    assert not error.ok
    assert error.problems == ["pictures [0]: HTTP 500 boom"]


def test_an_oracle_that_cannot_tell_pictures_apart_is_none(monkeypatch):
    monkeypatch.setattr(rows, "ask_all", lambda url, wanted, workers: [answer(1)] * len(wanted))
    (problem,) = Oracle().learn("http://plain", [(0,), (1,)])
    assert "a wrong picture would not be noticed: [1] and [0]" in problem


class Counting:
    """A server whose counters arrive late."""

    def __init__(self, *told: dict[str, int]) -> None:
        self._told = [Counter(counters) for counters in told]

    def events(self) -> Counter[str]:
        return self._told.pop(0) if len(self._told) > 1 else self._told[0]


def test_what_must_be_counted_is_waited_for():
    late = Counting(
        {"items/hit": 1}, {"items/hit": 1}, {"items/hit": 6, "consumer_events/landed": 2}
    )
    row = measured("late", late, lambda row: None, lambda row: row.remote == 2)  # type: ignore[arg-type]
    assert (row.local, row.remote, row.recomputed) == (3, 2, 0)


def test_a_scenario_that_raises_is_a_problem():
    def body(row: Row) -> None:
        raise ServerError("it is gone")

    assert measured("raises", None, body).problems == ["ServerError: it is gone"]


def test_actions_of_a_trace_whose_last_line_is_not_whole(tmp_path):
    made = server.Server.__new__(server.Server)
    made.trace = tmp_path / "a.ndjson"
    assert made.actions() == Counter()
    lines = [{"trace_version": 1}] + [
        {"action": name, "args": {"mm_hash": mm_hash}}
        for name, mm_hash in (("Alloc", "a"), ("Evict", "a"), ("Alloc", "b"))
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    made.trace.write_text(text + '{"action": "Al')
    assert made.actions() == Counter(Alloc=2, Evict=1)
    assert made.actions("b") == Counter(Alloc=1)


def test_actions_of_all_processes_of_a_server(tmp_path):
    """A reader's view of a loan is not counted twice, and another server's traces not at all."""
    made = server.Server.__new__(server.Server)
    made.trace = tmp_path / "a.ndjson"
    told = {
        "a": ("Alloc", "Lend"),
        "a.reader-3": ("Alloc", "RequestRead", "RequestRead"),
        "a.parent": ("StartProcess",),
        "a-2": ("Evict",),
        "a-2.reader-1": ("ReadDone",),
    }
    for name, actions in told.items():
        lines = [{"trace_version": 3}] + [{"action": a, "args": {}} for a in actions]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"{name}.ndjson").write_text(text)
    assert made.actions() == Counter(Alloc=1, Lend=1, RequestRead=2, StartProcess=1)


def event(**choice: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n"


def test_a_stream_is_joined_and_one_that_breaks_off_is_no_answer():
    first = event(delta={"role": "assistant"})
    more = [event(token_ids=[n], logprobs={"content": [{"logprob": -n}]}) + b"\n" for n in (1, 2)]
    lines = [line for part in (first, *more) for line in part.splitlines(keepends=True)]
    whole = _joined([*lines, b"data: [DONE]\n"])
    assert whole["choices"][0] == {
        "token_ids": [1, 2],
        "logprobs": {"content": [{"logprob": -1}, {"logprob": -2}]},
    }
    with pytest.raises(ValueError, match="the stream broke off"):
        _joined(lines)
    with pytest.raises(ValueError, match="an error in the stream"):
        _joined([*lines, b'data: {"error": {"message": "lost"}}\n'])


@pytest.fixture
def one_group(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Group], None]], None]:
    def install(play: Callable[[Group], None]) -> None:
        class Fake(Group):
            name = "fake"

            def prepare(self) -> None:
                (self.folder / "it.log").write_text("\n".join(f"line {n}" for n in range(50)))

            def scenarios(self, ahead: Callable[[], None]) -> None:
                play(self)

        monkeypatch.setattr(run, "GROUPS", {"fake": Fake})

    return install


def test_a_good_run(one_group, tmp_path, capsys):
    one_group(lambda group: group.add(Row("fine", requests=3)))
    assert run.main(["--only", "fake", "--json", "--keep", str(tmp_path)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"]
    assert said == json.loads((tmp_path / "report.json").read_text())
    assert [(r["scenario"], r["group"], r["requests"]) for r in said["rows"]] == [
        ("fine", "fake", 3)
    ]


@pytest.mark.parametrize("wrong", [True, False])
def test_a_bad_run_fails_and_shows_what_and_the_logs(one_group, tmp_path, capsys, wrong):
    def play(group: Group) -> None:
        if wrong:
            group.add(Row("bad", wrong=2))
        else:
            raise ServerError("it did not answer")

    one_group(play)
    assert run.main(["--only", "fake", "--keep", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "FAILED" in captured.out
    assert ("2 wrong answers" if wrong else "it did not answer") in captured.err
    assert "line 49" in captured.err
    assert "line 10" not in captured.err


def test_the_run_says_how_far_it_is(monkeypatch):
    now = iter([0.0, 30.0, 60.0, 90.0])
    monkeypatch.setattr("tests.e2e.bench.time.monotonic", lambda: next(now))
    progress = Progress({"a": (2, 40.0), "b": (1, 20.0)})
    assert progress.said([Row("x", group="a")]) == " (1 of 3 scenarios, about 60 s left)"
    # More rows than planned, as of servers that did not start.
    three = [Row("x", group="a")] * 3
    assert progress.said(three) == " (3 of 3 scenarios, about 30 s left)"
    assert progress.said([*three, Row("y", group="b")]).endswith("about 0 s left)")
    assert progress.said([]) == ""


@pytest.mark.parametrize("group", groups.GROUPS.values())
def test_a_group_plans_as_many_scenarios_as_it_has(group):
    tree = ast.parse(textwrap.dedent(inspect.getsource(group.scenarios)))
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert group.planned[0] == calls.count("self.add")


def test_a_trace_that_is_none_fails_the_run(one_group, tmp_path, capsys):
    def play(group: Group) -> None:
        (group.folder / "it.ndjson").write_text('{"trace_version": 0}\n')
        group.add(Row("fine"))

    one_group(play)
    assert run.main(["--only", "fake", "--keep", str(tmp_path)]) == 1
    assert "FAILED traces against the specification" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_says_so_and_ends_its_servers(one_group, tmp_path, capsys, number):
    servers = []

    class Sleeps:
        def kill(self) -> None:
            servers.append("killed")

    def play(group: Group) -> None:
        group.add(Row("fine"))
        group.processes.append(Sleeps())  # type: ignore[arg-type]
        signal.raise_signal(number)
        group.add(Row("never"))

    before = signal.getsignal(number)
    one_group(play)
    assert run.main(["--only", "fake", "--unchecked", "--keep", str(tmp_path)]) == 1
    assert signal.getsignal(number) is before
    assert servers == ["killed"]
    rows = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert [row["scenario"] for row in rows] == ["fine", "the run"]
    assert "stopped before its end" in capsys.readouterr().err


def test_a_run_elsewhere_is_checked_here(one_group, tmp_path, capsys):
    def play(group: Group) -> None:
        (group.folder / "it.ndjson").write_text('{"trace_version": 0}\n')
        group.add(Row("fine"))

    one_group(play)
    assert run.main(["--only", "fake", "--unchecked", "--keep", str(tmp_path)]) == 0
    assert not json.loads((tmp_path / "report.json").read_text())["checked"]
    for _ in range(2):
        assert run.main(["--check", str(tmp_path)]) == 1
        rows = json.loads((tmp_path / "report.json").read_text())["rows"]
        assert [row["scenario"] for row in rows] == ["fine", run.TRACES]
    assert "FAILED traces against the specification" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run.main(["--check", str(tmp_path / "fake")])


def test_nothing_that_ran_is_not_a_success(one_group, tmp_path):
    one_group(lambda group: None)
    assert run.main(["--only", "fake", "--keep", str(tmp_path)]) == 1


def test_the_guide_group_adds_nothing_to_the_commands_of_the_guide():
    sizes = {"ec_cpu_bytes": 1073741824}
    peer = {"ec_enable_nixl": True, **sizes}
    for command, role, extra in (
        (groups.Guide.local, "ec_both", sizes),
        (groups.Guide.producer, "ec_producer", peer),
        (groups.Guide.consumer, "ec_consumer", peer),
    ):
        assert json.loads(command) == {
            "ec_connector": "ECCPUConnector",
            "ec_role": role,
            "ec_connector_extra_config": extra,
        }
