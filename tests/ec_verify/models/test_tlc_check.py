# SPDX-License-Identifier: Apache-2.0
"""Real TLC runs of small models: every kind of result, and how runs are ended."""

import contextlib
import dataclasses
import threading
import time

import psutil
import pytest

from ec_verify.models.check import judge, pins, run_models, steps
from ec_verify.models.config import Config
from ec_verify.models.java import ToolMissing, find_jar, find_java
from ec_verify.models.manifest import Simulate, load_manifest
from ec_verify.models.output import Output
from ec_verify.models.runner import Job, Run, RunStopped, TlcRunner
from tests.ec_verify.models.tlc.helpers import Silent, copy_models

WATCHER = Silent()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return copy_models(tmp_path_factory.mktemp("runs") / "models")


@pytest.fixture(scope="module")
def reports(folder):
    """Every model of the folder, run once, two at a time."""
    before = sorted(folder.rglob("*"))
    models = load_manifest(folder).select([], "full")
    found = run_models(models, folder, jobs=2, watcher=WATCHER)
    assert sorted(folder.rglob("*")) == before, "a run wrote beside the sources"
    assert [report.model for report in found] == list(models)
    return {report.model.name: report for report in found}


@pytest.mark.parametrize(
    ("name", "result", "prop", "ok"),
    [
        ("ok", "ok", None, True),
        ("pins", "states_changed", None, False),
        ("invariant", "SmallInv", "SmallInv", True),
        ("initial", "PositiveInv", "PositiveInv", True),
        ("deadlock", "deadlock", "deadlock", True),
        ("no-deadlock", "ok", None, True),
        ("action", "GrowsProp", "GrowsProp", True),
        ("stutter", "PassesTwoProp", "PassesTwoProp", True),
        ("temporal", "PassesTwoProp", "PassesTwoProp", True),
        ("live", "ok", None, True),
        ("surprise", "SmallInv", "SmallInv", False),
        ("evaluation", "evaluation_error", None, False),
        ("unknown", "config_error", None, False),
        ("nonsense", "config_error", None, False),
        ("broken", "parse_error", None, False),
        ("dead", "dead_actions", None, False),
        ("dead-allowed", "ok", None, True),
        ("dead-stale", "dead_actions", None, False),
        ("simulation", "ok", None, True),
        ("edges", "ok", None, True),
        ("edges-lost", "edges_differ", None, False),
        ("edges-rogue", "edges_differ", None, False),
        ("endless", "timeout", None, False),
    ],
)
def test_every_kind_of_result(reports, name, result, prop, ok):
    report = reports[name]
    assert (report.result, report.property_name, report.ok) == (result, prop, ok), report.problems
    assert bool(report.problems) != ok


def test_the_list_above_is_complete(reports):
    marks = test_every_kind_of_result.pytestmark
    assert {case[0] for mark in marks for case in mark.args[1]} == set(reports)


@pytest.mark.parametrize(
    ("name", "sentences"),
    [
        ("dead", ["Never is never enabled; mend the model, or name it in allow_dead"]),
        ("dead-stale", ["Reset is in allow_dead but is taken: remove it there"]),
        ("edges-lost", ["the model never takes an edge of the table: "
                        "entry: quarantined --retire--> freed"]),
        ("edges-rogue", ["the model takes an edge that the table does not have: "
                         "entry: allocated --write_landed--> ready (by Shortcut)",
                         "Shortcut fires entry.write_landed but is no action of "
                         "spec/lifecycle.toml"]),
        ("endless", ["killed after 2 s; see `timeout` in models.toml"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(reports, name, sentences):
    assert list(reports[name].problems) == sentences


def test_changed_counts_say_what_to_do(reports):
    first, last = reports["pins"].problems
    assert first == "distinct_states is 6, the manifest says 7"
    assert "`ec-protocol check pins --update-manifest`" in last
    assert list(pins(reports.values())) == ["pins"]
    assert pins(reports.values())["pins"]["distinct_states"] == 6


def test_steps_are_written_for_counterexamples_only(reports):
    found = steps(reports.values())
    assert found["invariant"] == {"steps": 1}
    assert set(found) <= {name for name, r in reports.items() if r.model.mode == "bug" and r.ok}
    known = dataclasses.replace(reports["invariant"].model, steps=1)
    assert steps([dataclasses.replace(reports["invariant"], model=known)]) == {}
    fresh = dataclasses.replace(reports["invariant"].model, seconds=None)
    first = steps([dataclasses.replace(reports["invariant"], model=fresh, seconds=1.26)])
    assert first == {"invariant": {"seconds": 1.3, "steps": 1}}


def test_counterexamples(reports):
    assert [step.action for step in reports["invariant"].trace] == ["Initial state", "Step"]
    assert reports["stutter"].output.loop == "stutters for ever"
    # Named by a second run of TLC, on one property at a time.
    assert reports["temporal"].output.loop.startswith("goes back to state")
    assert reports["ok"].trace == ()


def test_json_objects(reports):
    keys = "name mode expected result property distinct_states depth seconds"
    for report in reports.values():
        assert list(report.as_json()) == keys.split()
    assert reports["ok"].as_json() | {"seconds": 0} == {
        "name": "ok",
        "mode": "exhaustive",
        "expected": "ok",
        "result": "ok",
        "property": None,
        "distinct_states": 6,
        "depth": 3,
        "seconds": 0,
    }
    assert reports["simulation"].as_json()["distinct_states"] is None


def test_the_watcher_sees_every_model_start_and_end(reports):
    for kind in ("started", "finished"):
        assert sorted(n for k, n in WATCHER.seen if k == kind) == sorted(reports)
    assert ("progress", "ok") in WATCHER.seen


def test_runs_of_a_long_kind_use_the_other_collector(folder):
    command = {}
    runner = TlcRunner()
    for short in (False, True):
        (folder / f"{short}").mkdir()
        job = Job(folder, "Counter.tla", Config(), short=short)
        command[short] = runner._command(job, folder / f"{short}")
    assert "-XX:+UseParallelGC" in command[False]
    assert "-XX:+UseSerialGC" in command[True]
    walks = Job(folder, "Counter.tla", Config(), simulate=Simulate(5, 20, 7))
    (folder / "walks").mkdir()
    assert "num=5" in runner._command(walks, folder / "walks")


def java_children():
    found = []
    for process in psutil.Process().children(recursive=True):
        # One that has just ended has no command line any more.
        with contextlib.suppress(psutil.NoSuchProcess):
            if "tlc2.TLC" in process.cmdline():
                found.append(process)
    return found


def wait_until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        threading.Event().wait(0.02)


def test_stop_kills_what_runs_and_refuses_what_comes(folder):
    runner = TlcRunner()
    caught = []

    def run():
        try:
            runner.run(Job(folder, "Endless.tla", Config(specification="Spec")))
        except RunStopped as exc:
            caught.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(java_children)
    runner.stop()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert len(caught) == 1
    wait_until(lambda: not java_children())
    with pytest.raises(RunStopped):
        runner.run(Job(folder, "Counter.tla", Config()))


def test_a_model_whose_history_cannot_be_read_is_a_crash_not_an_exception(folder):
    edges, ok = load_manifest(folder).select(["edges", "ok"], "pr")
    counter = dataclasses.replace(edges, module=ok.module, config=ok.config)
    (report,) = run_models([counter], folder, jobs=1, watcher=Silent())
    assert report.result == "crash"
    assert "no variable `ev`" in report.problems[0]
    assert report.as_json()["distinct_states"] is None


def test_a_search_that_reports_no_action_is_not_trusted(folder):
    model = load_manifest(folder).select(["ok"], "pr")[0]
    output = Output(kind="ok", distinct=6, depth=3)
    assert judge(model, Run(output, 1.0, 0)).result == "dead_actions"
    output.coverage = {"Step": 1}
    assert judge(model, Run(output, 1.0, 0)).result == "ok"


def test_an_unpinned_model_is_not_ok(folder):
    model = dataclasses.replace(
        load_manifest(folder).select(["live"], "pr")[0], distinct_states=None
    )
    report = judge(model, Run(Output(kind="ok", distinct=6, depth=3), 1.0, 0))
    assert report.result == "states_changed"
    assert report.problems[0] == "distinct_states is 6, the manifest says nothing"


def test_finding_java_and_the_jar(tmp_path, monkeypatch):
    assert find_java({}).is_file()
    assert find_jar({}).is_file()
    jar = tmp_path / "tla2tools.jar"
    jar.touch()
    assert find_jar({"TLA2TOOLS_JAR": str(jar)}) == jar
    with pytest.raises(ToolMissing, match=r"TLA2TOOLS_JAR=.*is not a file"):
        find_jar({"TLA2TOOLS_JAR": str(tmp_path / "none.jar")})
    java = tmp_path / "java"
    java.touch(mode=0o755)
    assert find_java({"JAVA": str(java)}) == java
    with pytest.raises(ToolMissing, match="JAVA='nojava' is not an executable"):
        find_java({"JAVA": "nojava", "PATH": str(tmp_path)})
    # Without the packages: PATH for Java, and a hint when there is nothing.
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_java({"PATH": str(tmp_path)}) == java
    with pytest.raises(ToolMissing, match=r'pip install "ec-connector\[check\]"'):
        find_java({"PATH": str(tmp_path / "empty")})
    with pytest.raises(ToolMissing, match=r'pip install "ec-connector\[check\]"'):
        find_jar({})
