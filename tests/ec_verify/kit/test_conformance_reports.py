# SPDX-License-Identifier: Apache-2.0
"""JUnit and HTML reports, with the diagrams of failures."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ElementTree

import pytest
from typer.testing import CliRunner

from ec_verify.cli import app
from ec_verify.kit import reports
from ec_verify.kit.command import quiet_implementation
from ec_verify.kit.language.schedule import all_cases, select
from ec_verify.kit.runner import Result, Verdict, run_case
from ec_verify.kit.world.links import InProcess
from ec_verify.pictures.from_history import drawing_of_result
from tests.faults import FAULTS


@pytest.fixture(scope="module")
def results() -> list[Result]:
    """Of the clauses about quarantine, from an implementation without one."""
    cases = select(all_cases(None), ["quarantine"])
    with quiet_implementation():
        return [run_case(c, lambda node: InProcess(FAULTS["no-quarantine"].make)) for c in cases]


def failed(results: list[Result]) -> list[Result]:
    return [result for result in results if result.verdict is Verdict.FAILED]


def test_junit_names_each_case_and_says_what_failed(results, tmp_path):
    reports.write_junit("faulty", results, tmp_path / "deep" / "junit.xml")
    root = ElementTree.parse(tmp_path / "deep" / "junit.xml").getroot()
    (suite,) = root.findall("testsuite")
    assert suite.get("name") == "quarantine"
    assert int(suite.get("tests", 0)) == len(results)
    assert int(suite.get("failures", 0)) == len(failed(results)) > 0
    names = [str(case.get("name")) for case in suite.findall("testcase")]
    assert [name.split()[0] for name in names] == [result.case.id for result in results]
    texts = [str(failure.text) for failure in suite.iter("failure")]
    assert any("NoReuseUnderDMA" in str(f.get("type")) for f in suite.iter("failure"))
    assert all("expected:" in text and "seen:" in text and "EC-" in text for text in texts)


def test_the_page_is_self_contained_and_shows_every_case(results, tmp_path):
    reports.write_html("<faulty>", results, tmp_path / "report.html", drawing_of_result)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "&lt;faulty&gt;" in text
    assert "<faulty>" not in text
    for result in results:
        assert f'id="{result.case.id}"' in text
    drawn = [r for r in results if r.verdict in (Verdict.FAILED, Verdict.NON_STRICT)]
    assert text.count('<div class="diagram"><svg') == len(drawn) > len(failed(results))
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    assert "src=" not in text


def test_the_failing_step_is_marked(results, tmp_path):
    one = failed(results)[0]
    reports.write_html("faulty", [one], tmp_path / "report.html", drawing_of_result)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count('<li class="here">') == 1


@pytest.mark.parametrize(
    ("where", "number"),
    [("step 4", 4), ("step 4[0].3", 4), ("step 12 (a note with 7)", 12), ("", 0), ("end", 0)],
)
def test_the_number_of_a_step(where, number):
    assert reports._step_number(where) == number


def test_a_failure_is_drawn_and_nothing_without_steps(results):
    one = next(r for r in failed(results) if r.invariant == "NoReuseUnderDMA")
    drawn = drawing_of_result(one, "faulty")
    assert drawn.startswith("<svg")
    assert one.case.id in drawn
    assert "NoReuseUnderDMA" in drawn
    assert drawing_of_result(dataclasses.replace(one, history=[]), "faulty") == ""


def test_the_command_writes_what_it_is_asked_for(tmp_path):
    junit, html = tmp_path / "j.xml", tmp_path / "r.html"
    done = CliRunner().invoke(
        app,
        ["conformance", "run", "--adapter", "ours", "EC-5.3", f"--junit={junit}", f"--html={html}"],
    )
    assert done.exit_code == 0, done.output
    assert junit.stat().st_size > 200
    assert "no case failed" in html.read_text(encoding="utf-8")


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    for option in ("--junit", "--html"):
        done = CliRunner().invoke(
            app, ["conformance", "run", "--adapter", "ours", "EC-5.3/1", option, f"{blocked}/x/y"]
        )
        assert done.exit_code == 2
        assert "name a writable" in " ".join(done.output.split())
