# SPDX-License-Identifier: Apache-2.0
"""Those who judge mutants: TLC, the tests of the core, and the list of reasons."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from ec_protocol.errors import ECError
from ec_protocol.tables.files import tla_dir
from ec_verify import cli
from ec_verify.models.graph import Fired, Graph
from ec_verify.models.manifest import load_manifest
from ec_verify.models.output import Output
from ec_verify.models.runner import Run
from ec_verify.mutants import core, explanations, models, source
from ec_verify.mutants.explanations import (
    SIDES,
    Explanation,
    ExplanationError,
    load_explanations,
    reason_for,
    stale,
    unknown_patterns,
)
from ec_verify.mutants.models import ModelJudge, run_mutants
from ec_verify.mutants.operators import all_mutants
from ec_verify.mutants.trials import Outcome

# Slow: TLC, and the tests of the core, have to notice each mutant.
pytestmark = pytest.mark.slow

MUTANTS = {m.id: m for m in all_mutants()}
FENCE = MUTANTS["read:granted:post_read+fence_open:drop-guard=fence_open"]
RUN = CliRunner()


class Runner:
    """Instead of TLC: what each config says, "ok" if nothing else is given."""

    def __init__(self, **says: Output) -> None:
        self.says = says
        self.asked: list[str] = []
        self.counted: list[str] = []
        self.tables: list[str] = []

    def run(self, job, on_progress=lambda distinct: None) -> Run:
        name = job.name
        (self.counted if job.coverage else self.asked).append(name)
        self.tables.append((job.folder / "Lifecycle.tla").read_text())
        reach = Output(kind="invariant", name="Reach")
        output = self.says.get(name, reach if name.startswith("Reach") else Output(kind="ok"))
        if not job.coverage:
            output = replace(output, coverage={})
        return Run(output, 0.5, 0)

    def stop(self) -> None:
        raise AssertionError("nobody asked for that")


def try_mutant(wanted: str, **says: Output) -> tuple[models.Result, Runner]:
    runner = Runner(**says)
    judge = ModelJudge(load_manifest(tla_dir()), runner)  # type: ignore[arg-type]
    return run_mutants([MUTANTS[wanted]], judge, jobs=1)[0], runner


# ----------------------------------------------------------------------- the models
def test_tlc_rejects_a_read_that_is_posted_without_its_fence():
    """The whole way, with the real checker."""
    judge = ModelJudge(load_manifest(tla_dir()))
    (result,) = run_mutants([FENCE], judge, jobs=1)
    assert (result.verdict, result.killed_by) == ("killed", "FencedPostProp")
    assert result.model == "MCPeerReadSmall"
    assert result.as_json()["where"] == "granted:post_read+fence_open"


def test_the_models_get_the_mutant_and_stop_at_the_first_that_objects():
    result, runner = try_mutant(FENCE.id, MCPeerSmall=Output(kind="invariant", name="X"))
    assert runner.asked == ["MCPeerReadSmall", "MCPeerReadSmallTwice", "MCPeerSmall"]
    assert (result.verdict, result.killed_by, result.model) == ("killed", "X", "MCPeerSmall")
    guarded = 'event |-> "post_read", needs |-> {"fence_open"}'
    assert all(guarded not in table for table in runner.tables)
    assert guarded in (tla_dir() / "common" / "Lifecycle.tla").read_text()


@pytest.mark.parametrize(
    ("output", "verdict", "killer"),
    [
        (Output(kind="property", name="P"), "killed", "P"),
        (Output(kind="deadlock"), "killed", "deadlock"),
        (Output(kind="evaluation", message="CHOOSE x \\in S"), "killed", "illegal event"),
        (Output(kind="evaluation", name="Inv", message="no number"), "killed", "Inv"),
        (Output(kind="ok", coverage={"A": 0, "B": 3}), "killed", "dead action A"),
        (Output(kind="parse", message="what?"), "failed", None),
    ],
)
def test_what_kills(output, verdict, killer):
    result, _ = try_mutant(FENCE.id, MCPeerReadSmall=output)
    assert (result.verdict, result.killed_by) == (verdict, killer)


def test_actions_that_a_model_leaves_out_are_not_missed():
    (allowed,) = (
        m.allow_dead for m in load_manifest(tla_dir()).models if m.name == "MCPeerReadSmall"
    )
    assert allowed
    dead = Output(kind="ok", coverage=dict.fromkeys(allowed, 0))
    assert try_mutant(FENCE.id, MCPeerReadSmall=dead)[0].verdict == "survived"


def test_a_state_that_is_reached_no_more_kills():
    result, runner = try_mutant(FENCE.id, ReachPeerReadLateDone=Output(kind="ok"))
    assert (result.verdict, result.killed_by) == ("killed", "ReachLateDone")
    battery = ["MCPeerReadSmall", "MCPeerReadSmallTwice", "MCPeerSmall"]
    assert runner.asked[:5] == [*battery, "MCPeerReadSmallLive", "MCPeerProgress"]
    assert runner.asked[5].startswith("Reach")
    assert runner.counted == battery, "dead actions are looked for where nothing else objects"


def test_what_breaks_down_after_the_battery_gives_no_verdict_either():
    for name in ("ReachPeerReadLateDone", "MCPeerReadSmall"):

        class Breaks(Runner):
            def run(self, job, on_progress=lambda distinct: None, name=name):
                run = super().run(job)
                asked = job.name == name and (job.coverage or name.startswith("Reach"))
                return Run(Output(kind="crash", message="no memory"), 0.5, 1) if asked else run

        judge = ModelJudge(load_manifest(tla_dir()), Breaks())  # type: ignore[arg-type]
        (result,) = run_mutants([FENCE], judge, jobs=1)
        assert (result.verdict, result.model, result.detail) == ("failed", name, "no memory")


def test_an_edge_more_makes_nothing_unreachable():
    dead = Output(kind="ok", coverage={"Abort": 0})
    says = {"MCPeerReadSmall": dead, "ReachPeerReadLateDone": Output(kind="ok")}
    result, runner = try_mutant("read:failed:retire:rogue=settled", **says)
    assert result.verdict == "survived"
    assert runner.counted == []
    assert all(name.startswith("MC") for name in runner.asked)


def test_what_nothing_notices_the_loader_may_refuse():
    refused, _ = try_mutant("entry:ready:terminal")
    assert (refused.verdict, refused.model) == ("killed", None)
    assert str(refused.killed_by).startswith("refused: ")
    assert try_mutant(FENCE.id)[0].verdict == "survived"


def test_mutants_of_actions_are_compared_with_the_graphs():
    wanted = "actions:Cancel:drop-fires=entry.cancel"
    judge = ModelJudge(load_manifest(tla_dir()), Runner())  # type: ignore[arg-type]
    fired = frozenset({Fired("entry", "allocated", "cancel", "freed")})
    judge._graphs = {m.name: Graph(states=1, fired={"Cancel": fired}) for m in judge._edge_models()}
    result = judge.judge(MUTANTS[wanted])
    assert result.verdict == "killed"
    assert "Cancel fires entry.cancel" in str(result.killed_by)


def test_a_run_that_breaks_down_gives_no_verdict():
    class Broken(Runner):
        def run(self, job, on_progress=lambda distinct: None):
            raise ECError("no Java")

    judge = ModelJudge(load_manifest(tla_dir()), Broken())  # type: ignore[arg-type]
    (result,) = run_mutants([FENCE], judge, jobs=1)
    assert (result.verdict, result.detail) == ("failed", "no Java")


# ---------------------------------------------------------------------- the reasons
def test_every_reason_is_about_mutants_that_exist():
    reasons = load_explanations(tla_dir())
    assert set(reasons) == set(SIDES)
    for side in ("models", "core"):
        assert unknown_patterns(reasons[side], MUTANTS.values()) == []
    of_source = [m for module in source.FILES for m in source.source_mutants(module)]
    assert unknown_patterns(reasons["source"], of_source) == []


def test_patterns_cover_ids_and_the_first_reason_counts():
    reasons = [Explanation("because of this", ("read:granted:*",)), Explanation("else", ("*",))]
    assert reason_for(reasons, FENCE) == "because of this"
    assert reason_for(reasons[:0], FENCE) is None
    assert unknown_patterns([Explanation("x", ("reed:*", FENCE.id))], [FENCE]) == ["reed:*"]


def test_a_reason_for_what_is_killed_is_stale():
    reasons = [Explanation("because", (FENCE.id, "peer:*"))]
    assert stale(reasons, []) == []
    assert stale(reasons, [FENCE]) == [FENCE.id]
    wide = [Explanation("because", ("read:granted:*",))]
    assert stale(wide, [FENCE]) == [FENCE.id], "also if the pattern explains others"


def entries(models: str) -> str:
    return f'{{"version": 1, "models": [{models}], "core": [], "source": []}}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is missing"),
        ("{", "no JSON"),
        ('{"version": 2, "models": [], "core": [], "source": []}', "version"),
        ('{"version": 1, "models": [], "core": []}', "models and core and source"),
        (entries('{"reason": "x"}'), "reason and mutants"),
        (entries('{"reason": "so", "mutants": []}'), "sentence"),
        (entries('{"reason": "it is just so", "mutants": "a"}'), "list of ids"),
    ],
)
def test_a_list_that_is_no_list_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / explanations.FILE_NAME).write_text(text)
    with pytest.raises(ExplanationError, match=message):
        load_explanations(tmp_path)


# ------------------------------------------------------------------- the command
def command(monkeypatch, *results, reasons=()):
    """`ec-protocol mutants` with these verdicts instead of a run."""
    from ec_verify.mutants import command as mutants_cli

    chosen = [result.mutant for result in results]
    monkeypatch.setattr(mutants_cli, "_judged", lambda *args, **kwargs: list(results))
    monkeypatch.setattr(
        mutants_cli, "load_explanations", lambda folder: {"models": reasons, "core": ()}
    )
    return RUN.invoke(cli.app, ["mutants", "--json", *(m.id for m in chosen)])


def test_all_killed_is_ok(monkeypatch):
    done = command(monkeypatch, models.Result(FENCE, "killed", "P", "M", 1.25))
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["ok"] is True
    assert answer["totals"] == {"killed": 1, "explained": 0, "survived": 0, "failed": 0}
    (row,) = answer["mutants"]
    assert list(row)[:8] == [
        *("id", "lifecycle", "operator", "where", "verdict", "killed_by", "model", "seconds")
    ]
    assert (row["id"], row["killed_by"], row["model"], row["seconds"]) == (FENCE.id, "P", "M", 1.25)


def test_a_survivor_fails_the_build_unless_it_is_explained(monkeypatch):
    alive = models.Result(FENCE, "survived", None, None, 1.0)
    done = command(monkeypatch, alive)
    assert done.exit_code == 1
    assert f"survived {FENCE.id}" in done.stderr
    reasons = (Explanation("as good as the table itself", (FENCE.id,)),)
    done = command(monkeypatch, alive, reasons=reasons)
    assert done.exit_code == 0
    (row,) = json.loads(done.stdout)["mutants"]
    assert (row["verdict"], row["detail"]) == ("explained", "as good as the table itself")


def test_a_stale_reason_and_a_run_without_a_verdict_fail_the_build(monkeypatch):
    reasons = (Explanation("as good as the table itself", (FENCE.id,)),)
    killed = models.Result(FENCE, "killed", "P", "M", 1.0)
    done = command(monkeypatch, killed, reasons=reasons)
    assert (done.exit_code, json.loads(done.stdout)["stale"]) == (1, [FENCE.id])
    done = command(monkeypatch, replace(killed, verdict="failed", detail="no Java"))
    assert done.exit_code == 1


def test_names_are_patterns_and_a_wrong_one_gets_a_hint():
    done = RUN.invoke(cli.app, ["mutants", "--list", "grant:*:drop-edge"])
    assert done.stdout.split() == [i for i in MUTANTS if i.startswith("grant") and "drop-edge" in i]
    done = RUN.invoke(cli.app, ["mutants", FENCE.id.replace("granted", "grantd")])
    assert done.exit_code == 2
    assert "did you mean" in done.stderr
    assert RUN.invoke(cli.app, ["mutants", "--tier", "some"]).exit_code == 2


# ------------------------------------------------------------------------- the core
TRIALS = """
import json, pathlib, sys
from ec_verify.mutants import core, source, trials
from ec_verify.mutants.operators import all_mutants

ends = next(m for m in source.source_mutants("holds") if m.change == "LtE -> Lt")
share = next(m for m in source.source_mutants("holds") if m.change == "0.5 -> 1.5")
table = next(m for m in all_mutants() if m.id == "entry:pinned:unpin+last_holder:to=pinned")

changes = [
    trials.Trial("nothing", lambda: None),
    ends.trial(),
    share.trial(),
    trials.Trial("table", lambda: core.apply_table(table.table)),
    next(source.source_mutants("deferral")).trial(),
    trials.Trial("no recording", lambda: delattr(sys.modules["tests.recording"], "begin")),
]
root = pathlib.Path(sys.argv[1])
done = trials.run_trials(changes, root, parallel=2, files=("test_holds.py",))
print(json.dumps([(done[i].killed_by, done[i].broken, done[i].asked) for i in range(len(changes))]))
try:
    trials.run_trials(changes, root, parallel=1, files=("test_nothing.py",))
except trials.ECError as exc:
    print(exc)
"""


@pytest.mark.timeout(600)
def test_the_tests_of_the_core_notice_a_table_and_a_line_that_are_wrong(tmp_path, monkeypatch):
    """The real thing, in a process of its own, with one file of tests."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", TRIALS, str(tla_dir().parent)],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    outcomes, missing = done.stdout.splitlines()
    nothing, line, default, table, elsewhere, recording = json.loads(outcomes)
    assert nothing == [None, "", True]
    assert line[0].startswith(
        "tests/ec_protocol/tier/test_holds.py::test_a_hold_ends_at_its_deadline"
    )
    assert default[0].startswith("tests/ec_protocol/tier/test_holds.py::")
    assert table[0].startswith("tests/ec_protocol/tier/test_holds.py::")
    assert elsewhere == [None, "", False], "no test of the file defers: nothing can notice"
    assert recording == nothing, "no traces are recorded"
    assert "test_nothing.py is missing" in missing
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_trial_of_a_table_without_a_verdict_has_failed(monkeypatch):
    outcomes = {0: Outcome(None, 1.0, broken="it left"), 1: Outcome(None, 1.0)}
    monkeypatch.setattr(core, "run_trials", lambda *args, **named: outcomes)
    failed, survived = core.run_core([FENCE, FENCE], tla_dir().parent, jobs=1)
    assert (failed.verdict, failed.detail) == ("failed", "it left")
    assert survived.verdict == "survived"


def test_source_mutants_name_their_line_and_differ_from_what_is_there():
    found = list(source.source_mutants("holds"))
    assert len({m.id for m in found}) == len(found) > 50
    for m in found:
        owner = getattr(sys.modules["ec_protocol.tier.holds"], m.function.split(".")[0])
        live = vars(owner)[m.function.split(".")[1]]
        live = live.fget if isinstance(live, property) else live
        assert m.code.co_name == live.__name__
        assert (
            m.code.co_varnames[: m.code.co_argcount]
            == live.__code__.co_varnames[: live.__code__.co_argcount]
        )
        assert m.code.co_firstlineno == live.__code__.co_firstlineno
    changes = {m.change.partition(" ")[0] for m in found}
    assert {"Gt", "LtE", "And", "Add", "Is"} <= changes
    assert any(m.change.endswith("left out") for m in found)
    with pytest.raises(ECError, match="not mutated; did you mean"):
        list(source.source_mutants("wire"))
