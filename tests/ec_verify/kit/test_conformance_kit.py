# SPDX-License-Identifier: Apache-2.0
"""The kit: its language is strict, its judge is fair, its histories can be judged again."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs

needs("msgspec", "zmq")

from ec_protocol.errors import ConfigError
from ec_verify.adapters.ours.adapter import Ours
from ec_verify.kit.language.clauses import strictest
from ec_verify.kit.language.schedule import Case, CaseError, load_dir, load_file, select
from ec_verify.kit.language.times import EPS, ScheduleError, evaluate
from ec_verify.kit.runner import Verdict, load_factory, recheck, report, run_case, save_history
from ec_verify.kit.world.checks import CheckFailed, compare
from ec_verify.kit.world.links import HistoryError, InProcess

SETUP: dict[str, Any] = {"nodes": {"N": {"p2p": False}}}
STEPS: list[dict[str, Any]] = [{"store": "A", "at": "N"}, {"load": "A", "at": "N"}]


def document(**change: Any) -> dict[str, Any]:
    case = {"id": "EC-2.2/1", "title": "t", "setup": SETUP, "steps": STEPS}
    return {"version": 1, "area": "tier", "cases": [{**case, **change}]}


def write(folder: Path, content: Any) -> Path:
    path = folder / "cases.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def one(folder: Path, **change: Any) -> Case:
    (case,) = load_file(write(folder, document(**change)))
    return case


def play(case: Case, factory: Any = Ours) -> Any:
    return run_case(case, lambda node: InProcess(factory))


# ------------------------------------------------------------------------ language
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "-".join(("EC", "99.9/1"))}, "no clause"),
        ({"quote": "It MUST rain."}, "the quote is not in EC-2.2"),
        ({"area": "weather"}, "area 'weather'"),
        ({"level": "MAY"}, "MAY"),
        ({"level": "MUST", "id": "EC-11.3/1"}, r"EC-11\.3 asks for no more than SHOULD"),
        ({"setup": "nowhere"}, "no setup is called 'nowhere'"),
        ({"setup": {**SETUP, "timers": {"tea_s": 1}}}, "no timer is called 'tea_s'"),
        ({"setup": {"nodes": {"N": {"role": "cook"}}}}, "cook"),
        ({"steps": [{"jump": "N"}]}, "unknown verb 'jump'"),
        ({"steps": [{"store": "A", "at": "N", "expct": 1}]}, "expct"),
        ({"steps": [{"store": "A"}]}, "at"),
        ({"steps": [{"repeat": 2, "steps": [{"jump": 1}]}]}, "unknown verb 'jump'"),
        ({"steps": ["store"]}, "Expected `object`"),
        ({"steps": [{}]}, "a step is an object"),
        ({"steps": [{"store": "$what", "at": "N"}], "variants": [{"id": "x"}]}, "no value for"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_wrong_case_file_is_refused(tmp_path: Path, change: dict[str, Any], message: str):
    with pytest.raises(CaseError, match=message):
        load_file(write(tmp_path, document(**change)))


@pytest.mark.parametrize(
    "content", [[], {"cases": []}, {"version": 2, "cases": []}, {"version": 1}, 7]
)
def test_a_file_of_another_shape_is_refused(tmp_path: Path, content: Any):
    with pytest.raises(CaseError):
        load_file(write(tmp_path, content))


def test_variants_fill_texts_values_and_keys(tmp_path: Path):
    raw = document(
        id="$id",
        title="size $size",
        setup={**SETUP, "encodings": {"$name": "$size"}},
        steps=[{"store": "$name", "at": "N"}],
        variants=[
            {"id": "EC-2.2/1", "name": "x", "size": 3},
            {"id": "EC-2.2/2", "name": "y", "size": 4},
        ],
    )
    first, second = load_file(write(tmp_path, raw))
    assert (first.title, first.setup.encodings) == ("size 3", {"x": 3})
    assert second.steps == [{"store": "y", "at": "N"}]


def test_cases_are_chosen_by_id_clause_tag_area_and_other_names(tmp_path: Path):
    case = one(tmp_path, tags=["F6"], also=["Twin"])
    for name in ("EC-2.2/1", "EC-2.2", "F6", "tier", "Twin"):
        assert select([case], [name]) == [case]
    with pytest.raises(CaseError, match=r"EC-2\.3"):
        select([case], ["EC-2.3"])


def test_no_name_is_of_two_cases(tmp_path: Path):
    content = document(also=["Twin"])
    content["cases"].append({**content["cases"][0], "id": "Twin", "clause": "EC-2.2", "also": []})
    write(tmp_path, content)
    with pytest.raises(CaseError, match=r"case Twin is in cases\.json already"):
        load_dir(tmp_path)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("It MUST NOT rain.", "MUST"),
        ("It SHOULD rain, and MUST stop.", "MUST"),
        ("It SHOULD NOT rain.", "SHOULD"),
        ("It MAY rain.", "SHOULD"),
        ("It rains; who may say that it should not?", "MUST"),
    ],
)
def test_the_level_of_a_text_is_that_of_its_strongest_keyword(text: str, level: str):
    assert strictest(text) == level


def test_a_case_is_as_strict_as_what_it_tests(tmp_path: Path):
    assert one(tmp_path).level == "MUST"
    assert one(tmp_path, id="EC-11.3/1").level == "SHOULD"
    quote = "A proof that comes later SHOULD put them back."
    assert one(tmp_path, id="EC-6.3/1").level == "MUST"
    assert one(tmp_path, id="EC-6.3/1", quote=quote).level == "SHOULD"


def test_times():
    values = {"lease_s": 30.0, "asked": 1000.0, "min_read_s": 0.25}
    assert evaluate("asked + lease_s - min_read_s - eps", values) == 1000.0 + 30.0 - 0.25 - EPS
    assert evaluate("1.25 * lease_s", values) == 37.5
    assert evaluate(7, values) == 7.0
    for wrong in ("asked lease_s", "tea_s", "2 + * 3", "lease_s ** 2"):
        with pytest.raises(ScheduleError):
            evaluate(wrong, values)


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [
        (1, 1),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": {"absent": True}}, {}),
        ({"min": 1, "max": 3}, 2),
        ({"match": "[a-z]+"}, "abc"),
        ({"not": 3}, 4),
        ({"len": 2}, [1, 2]),
    ],
)
def test_what_agrees(wanted: Any, seen: Any):
    compare(wanted, seen, "it")


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [
        (1, 2),
        (True, 1),
        ({"a": 1}, {}),
        ({"a": {"present": True}}, {}),
        ({"min": 1, "max": 3}, 4),
        ({"match": "[a-z]+"}, "ab1"),
        ({"not": 3}, 3),
        ({"in": [1, 2]}, 3),
    ],
)
def test_what_does_not_agree(wanted: Any, seen: Any):
    with pytest.raises(CheckFailed):
        compare(wanted, seen, "it")


# -------------------------------------------------------------------------- judging
class Forgetful(Ours):
    """Says that it has nothing."""

    def has(self, **args: Any) -> dict[str, Any]:
        return {"has": False}


class Raising(Ours):
    def has(self, **args: Any) -> dict[str, Any]:
        raise KeyError("lost")


class Odd(Ours):
    def has(self, **args: Any) -> dict[str, Any]:
        return {"got": 1}


class WithoutHas(Ours):
    has = None  # type: ignore[assignment]


def test_verdicts(tmp_path: Path):
    case = one(tmp_path)
    assert play(case).verdict is Verdict.OK
    failed = play(case, Forgetful)
    assert (failed.verdict, failed.clause, failed.where) == (Verdict.FAILED, "EC-2.2", "step 2")
    assert "A to be loaded" in failed.expected
    assert play(one(tmp_path, level="SHOULD"), Forgetful).verdict is Verdict.NON_STRICT
    assert play(case, WithoutHas).verdict is Verdict.UNSUPPORTED
    assert "KeyError" in play(case, Raising).detail
    assert play(case, Raising).verdict is Verdict.FAILED
    assert play(case, Odd).verdict is Verdict.FAILED


def test_a_step_may_be_weaker_than_its_case_and_name_another_clause(tmp_path: Path):
    step = {"servable": "A", "at": "N", "level": "SHOULD", "clause": "EC-3.1"}
    result = play(one(tmp_path, steps=[STEPS[0], step]), Forgetful)
    assert (result.verdict, result.clause) == (Verdict.NON_STRICT, "EC-3.1")
    assert result.requirement.startswith("A question whether")


def test_a_step_that_names_a_should_is_one(tmp_path: Path):
    step = {"servable": "A", "at": "N", "clause": "EC-11.3"}
    assert play(one(tmp_path, steps=[STEPS[0], step]), Forgetful).verdict is Verdict.NON_STRICT
    step["level"] = "MUST"
    assert play(one(tmp_path, steps=[STEPS[0], step]), Forgetful).verdict is Verdict.FAILED


def test_an_invariant_is_always_a_must_and_names_its_own_clause(tmp_path: Path):
    class Careless(Ours):
        """Its device writes somewhere else."""

        def poke(self, *, now: float, offset: int, data: str) -> dict[str, Any]:
            return super().poke(now=now, offset=offset, data="00" * (len(data) // 2))

    result = play(one(tmp_path, level="SHOULD", id="EC-3.1/1"), Careless)
    assert (result.verdict, result.invariant, result.clause) == (
        Verdict.FAILED,
        "NoWrongBytes",
        "EC-2.2",
    )


def test_the_report_counts_and_is_not_ok_with_a_failure(tmp_path: Path):
    case = one(tmp_path)
    results = [play(case), play(case, Forgetful), play(case, WithoutHas)]
    document = report("x", results)
    assert document["ok"] is False
    assert document["totals"] == {"ok": 1, "failed": 1, "non_strict": 0, "unsupported": 1}
    keys = {"id", "area", "level", "clause", "verdict", "seconds", "detail"}
    assert set(document["cases"][0]) == keys
    assert report("x", results[:1])["ok"] is True
    assert report("x", [])["ok"] is False


def test_playing_a_case_does_not_change_it(tmp_path: Path):
    case = one(tmp_path, steps=[*STEPS, {"room": 8, "at": "N"}, {"resize": "A", "blocks": 3}])
    before = copy.deepcopy(case)
    result = play(case)
    assert case == before
    assert result.case == before, "a history keeps it, to be played again"


# ------------------------------------------------------------------------ histories
def test_a_history_is_judged_again_without_the_implementation(tmp_path: Path):
    result = play(one(tmp_path), Forgetful)
    path = tmp_path / "h" / "history.json"
    save_history(result, "forgetful", path)
    again = recheck(path)
    assert (again.verdict, again.detail) == (result.verdict, result.detail)
    saved = json.loads(path.read_text())
    assert saved["requirement"] == result.requirement
    assert saved["result"]["expected"] == result.expected
    events = [record["event"] for record in saved["history"] if "event" in record]
    assert "start" in events


def test_a_history_with_another_answer_is_judged_by_that_answer(tmp_path: Path):
    path = tmp_path / "history.json"
    save_history(play(one(tmp_path)), "ours", path)
    assert recheck(path).verdict is Verdict.OK
    saved = json.loads(path.read_text())
    (peek, *_) = [r for r in saved["history"] if r.get("op") == "peek"]
    peek["result"]["data"] = "00" * (len(peek["result"]["data"]) // 2)
    path.write_text(json.dumps(saved))
    assert recheck(path).invariant == "NoWrongBytes"


def test_a_history_that_does_not_fit_its_case_is_no_verdict(tmp_path: Path):
    path = tmp_path / "history.json"
    save_history(play(one(tmp_path)), "ours", path)
    saved = json.loads(path.read_text())
    saved["case"]["steps"] = [{"store": "B", "at": "N"}]
    path.write_text(json.dumps(saved))
    with pytest.raises(HistoryError, match="then the kit asked"):
        recheck(path)
    path.write_text("{}")
    with pytest.raises(HistoryError, match="no history"):
        recheck(path)


@pytest.mark.parametrize("name", ["nobody", "ec_verify.kit:nothing", "no.such:thing"])
def test_an_adapter_that_does_not_exist_is_an_error(name: str):
    with pytest.raises(ConfigError, match="adapter=") as raised:
        load_factory(name)
    assert "pip install" not in str(raised.value), "what our own connector needs is not missing"


def test_our_own_adapter_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "ec_verify.adapters.ours.adapter", raising=False)
    monkeypatch.setitem(sys.modules, "ec_verify.adapters.ours.data_processes", None)
    with pytest.raises(ConfigError, match=r"pip install 'ec-connector\[nixl\]'"):
        load_factory("ours")
