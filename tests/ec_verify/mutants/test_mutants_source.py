# SPDX-License-Identifier: Apache-2.0
"""Mutants of the core's source: what is done to a line, and which tests are asked."""

from __future__ import annotations

import ast
import copy
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ec_protocol.tables.lifecycle import load_actions
from ec_protocol.tables.timing import Timing
from ec_verify import cli
from ec_verify.mutants import command as mutants_cli
from ec_verify.mutants import source
from ec_verify.mutants.callers import Watch
from ec_verify.mutants.edits import edits
from ec_verify.mutants.explanations import Explanation, matches
from ec_verify.mutants.trials import Outcome

RUN = CliRunner()


def function(text: str) -> ast.FunctionDef:
    lines = "\n".join(f"    {line}" for line in text.splitlines())
    node = ast.parse(f"def f(a, b, c=1):\n{lines}\n").body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


def variants(text: str) -> set[str]:
    """The bodies that the edits make of a function's body."""
    node = function(text)
    found = set()
    for edit in edits(node):
        mutated = copy.deepcopy(node)
        edit.apply(list(ast.walk(mutated))[edit.position])
        ast.fix_missing_locations(mutated)
        compile(ast.Module([mutated], type_ignores=[]), "f", "exec")
        assert ast.unparse(mutated) != ast.unparse(node), edit
        head, *body = ast.unparse(mutated).splitlines()
        found.add("\n".join(line[4:] for line in body) if "c=1" in head else head)
    return found - {"def f(a, b, c=2):"}


@pytest.mark.parametrize(
    ("text", "some"),
    [
        ("return a < b", {"return a >= b", "return a <= b", "pass"}),
        ("return a is b", {"return a is not b", "pass"}),
        (
            "return a and b",
            {"return a or b", "return True and b", "return a and True", "pass"},
        ),
        ("return not a", {"return not not a", "pass"}),
        ("return a + b", {"return a - b", "pass"}),
        ("a -= b * 2", {"a += b * 2", "a -= b / 2", "a -= b * 3", "pass"}),
        ("return -a", {"return +a", "pass"}),
        ("return a[1:]", {"return a[2:]", "return a[:]", "pass"}),
        ("return min(a, b)", {"return max(a, b)", "pass"}),
        ("a(b, c)", {"a(c, b)", "pass"}),
        ("b = a.pop(c)", {"b = a.__getitem__(c)", "pass"}),
        ("return a.pop(b, 0)", {"return a.get(b, 0)", "return a.pop(0, b)"}),
        ("a.setdefault(b, []).append(c)", {"a.get(b, []).append(c)", "pass"}),
        ("return [x for x in a if x]", {"return [x for x in a if True]", "pass"}),
        ("a.move('granted')", {"a.move('reading')", "pass"}),
        ("return True", {"return False", "pass"}),
        ("del a[b]", {"pass"}),
        ("raise a(1 + 2)", {"pass"}),
        ("if a:\n    b()", {"if not a:\n    b()", "if True:\n    b()", "if False:\n    b()"}),
        ("if not a:\n    b()", {"if not not a:\n    b()", "if True:\n    b()"}),
        ("for x in a:\n    b()", {"for x in ():\n    b()", "for x in a:\n    b()\n    break"}),
        ("while a:\n    b()", {"while False:\n    b()", "while a:\n    b()\n    break"}),
        ("if a:\n    return b\nc()", {"if a:\n    return\nc()", "if a:\n    pass\nc()"}),
        ("while a:\n    b()\n    break", {"while a:\n    b()\n    pass"}),
        ("try:\n    a()\nexcept E:\n    b()", {"try:\n    a()\nexcept E:\n    pass"}),
        ("a.b = c", {"pass"}),
        ("a = b", {"pass"}),
    ],
)
def test_what_is_done_to_a_line(text: str, some: set[str]) -> None:
    assert some <= variants(text)


@pytest.mark.parametrize(
    "text", ["'what it does'", "x = a", "x: int | None = a", "x, y = a", "raise a('one' + b)"]
)
def test_what_is_left_alone(text: str) -> None:
    """Words, the first binding of a name, annotations, the texts of errors."""
    assert variants(text) <= {"pass"}
    assert variants(text) == ({"pass"} if text.startswith("raise") else set())


def test_actions_are_taken_for_their_neighbours() -> None:
    names = list(load_actions())
    assert f"a.record('{names[1]}')" in variants(f"a.record('{names[0]}')")
    assert f"a.record('{names[0]}')" in variants(f"a.record('{names[-1]}')")


def test_a_default_is_mutated_and_put_in_place() -> None:
    def ask(a: int = 1, *, b: bool = False) -> tuple[int, bool]:
        return a, b

    (node,) = ast.parse("def ask(a: int = 1, *, b: bool = False): return a, b").body
    assert isinstance(node, ast.FunctionDef)
    answers = set()
    for edit in edits(node):
        _, defaults = source._edited(node, edit)
        if defaults is not None:
            ask.__defaults__, ask.__kwdefaults__ = eval(defaults)
            answers.add(ask())
    assert answers == {(2, False), (1, True)}


def test_an_id_is_the_same_when_lines_move(monkeypatch) -> None:
    here = list(source.source_mutants("deferral"))
    assert "deferral:Deferrals.within:return now < since + budget_s:Lt -> LtE" in {
        m.id for m in here
    }
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda *args, **named: "\n" * 7 + read(*args, **named))
    moved = list(source.source_mutants("deferral"))
    assert [m.line for m in moved] == [m.line + 7 for m in here]
    assert [m.id for m in moved] == [m.id for m in here]


def test_ids_with_brackets_can_be_patterns() -> None:
    name = "m:f:self._x[key] = 1:left out"
    assert matches(name, name)
    assert matches(name, "m:f:self._x[key]*")
    assert not matches(name, "m:f:self._xk = 1:left out")


def test_every_module_of_the_core_that_moves_objects_is_mutated() -> None:
    core = {
        "fetches",
        "acks",
        "attempts",
        "grants",
        "encodings",
        "copies",
        "holds",
        "peers",
        "extents",
    }
    assert core <= set(source.FILES)
    functions = {m.function for m in source.source_mutants("timing")}
    assert functions == {
        *("Inequality.holds", "Timing.__post_init__", "Timing.retry_pause", "Timing.fence"),
    }


def test_a_test_is_asked_about_the_functions_that_it_calls() -> None:
    class Item:
        def __init__(self, name: str, file: str) -> None:
            self.nodeid, self.path = name, type("Path", (), {"name": file})

    one, two, three = Item("one", "a.py"), Item("two", "a.py"), Item("three", "b.py")
    timing = Timing()
    watch = Watch()
    watch.start()
    timing.retry_pause(0, "")  # a fixture of the module, set up before the first test
    watch.set_up(one)
    timing.fence(1.0, 2.0)
    watch.over(one)
    watch.set_up(two)
    watch.over(two)
    watch.set_up(three)
    timing.fence(1.0, 2.0)
    watch.over(three)
    assert watch.stop([one, two, three]) == {
        "timing:Timing.retry_pause": ["one", "two"],
        "timing:Timing.fence": ["one", "three"],
    }


# --------------------------------------------------------------------- the command
def command(monkeypatch, killers, *names, reasons=(), **more):
    """``ec-protocol mutants --source`` with these killers instead of a run.

    Args:
        killers: By id; a test kills the others.
        reasons: Of survivors.
        more: Of every outcome.
    """
    monkeypatch.setattr(
        mutants_cli,
        "run_trials",
        lambda trials, root, **options: {
            i: Outcome(killers.get(trial.name, "test_x"), 0.5, **more)
            for i, trial in enumerate(trials)
        },
    )
    monkeypatch.setattr(
        mutants_cli,
        "load_explanations",
        lambda folder: {"models": (), "core": (), "source": reasons},
    )
    return RUN.invoke(cli.app, ["mutants", "--source", "--json", *names])


ALIVE = "deferral:Deferrals.forget:self._since.pop(waiter, None):left out"


def test_all_killed_is_ok(monkeypatch) -> None:
    done = command(monkeypatch, {}, "deferral")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert (answer["ok"], answer["stale"]) == (True, [])
    killed = len(answer["mutants"])
    assert answer["totals"] == {"killed": killed, "explained": 0, "survived": 0, "failed": 0}
    assert {row["file"] for row in answer["mutants"]} == {"deferral.py"}


def test_a_survivor_fails_the_run_unless_it_is_explained(monkeypatch) -> None:
    done = command(monkeypatch, {ALIVE: None}, "deferral")
    assert done.exit_code == 1
    (line,) = (m.line for m in source.source_mutants("deferral") if m.id == ALIVE)
    assert f"survived deferral.py:{line} {ALIVE}\n" in done.stderr
    done = command(monkeypatch, {ALIVE: None}, ALIVE, asked=False)
    assert f"survived deferral.py:{line} {ALIVE}: no test comes to it\n" in done.stderr
    reasons = (Explanation("nobody would ever notice it", (ALIVE,)),)
    done = command(monkeypatch, {ALIVE: None}, ALIVE, reasons=reasons)
    assert done.exit_code == 0
    (row,) = json.loads(done.stdout)["mutants"]
    assert (row["verdict"], row["detail"]) == ("explained", "nobody would ever notice it")


def test_a_stale_reason_fails_the_run(monkeypatch) -> None:
    reasons = (Explanation("nobody would ever notice it", (ALIVE, "reads:*")),)
    done = command(monkeypatch, {}, "deferral", reasons=reasons)
    assert (done.exit_code, json.loads(done.stdout)["stale"]) == (1, [ALIVE])


def test_a_trial_without_a_verdict_fails_the_run(monkeypatch) -> None:
    reasons = (Explanation("nobody would ever notice it", (ALIVE,)),)
    done = command(monkeypatch, {ALIVE: None}, ALIVE, reasons=reasons, broken="it left")
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["ok"], answer["totals"]["failed"]) == (1, False, 1)
    (row,) = answer["mutants"]
    assert (row["verdict"], row["detail"]) == ("failed", "it left")
    assert f"{ALIVE}: it left\n" in done.stderr


def test_names_are_modules_ids_and_patterns(monkeypatch) -> None:
    def chosen(*names: str) -> set[str]:
        done = command(monkeypatch, {}, *names)
        assert done.exit_code == 0, done.output
        return {row["id"] for row in json.loads(done.stdout)["mutants"]}

    deferral, timing = chosen("deferral"), chosen("timing")
    monkeypatch.setattr(source, "FILES", dict.fromkeys(("deferral", "timing"), ()))
    assert chosen() == deferral | timing
    assert chosen(ALIVE) == {ALIVE}
    assert chosen("deferral:Deferrals.forget:*", "timing") == timing | {
        known for known in deferral if known.startswith("deferral:Deferrals.forget:")
    }


def test_a_name_that_is_none_is_refused_with_a_hint(monkeypatch) -> None:
    for names in (["deferral:nothing"], ["deferral:nothing", "peers"], ["peers", "holds:typo"]):
        done = command(monkeypatch, {}, *names)
        assert done.exit_code == 2, names
        assert "no mutant is called" in done.stderr
        assert "--list shows all" in done.stderr
    done = command(monkeypatch, {}, ALIVE.replace("forget", "forgt"))
    assert done.exit_code == 2
    assert f"did you mean {ALIVE}, " in done.stderr.replace("\n", "")
    assert command(monkeypatch, {}, "nothing").exit_code == 1
