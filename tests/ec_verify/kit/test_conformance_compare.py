# SPDX-License-Identifier: Apache-2.0
"""Two runs side by side: what is explained, what is not, and the recorded comparison."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import ROOT
from tests.needs import needs

needs("msgspec")

from ec_verify.kit import compare as kit

RECORDED = ROOT / "docs" / "conformance"


def report(adapter: str, **verdicts: str) -> dict[str, Any]:
    cases = [{"id": i, "area": "read", "verdict": v} for i, v in verdicts.items()]
    return {"adapter": adapter, "totals": {}, "cases": cases}


def finding(*cases: str, **changes: Any) -> kit.Finding:
    texts = {k: k for k in ("id", "title", "schedule", "cause", "checked", "why")}
    return kit.Finding(**{**texts, "kind": "fault", "shipped": True, "cases": [*cases], **changes})


def findings(*found: kit.Finding) -> kit.Findings:
    return kit.Findings(version=1, implementation="theirs", findings=[*found])


def test_every_failure_needs_an_explanation():
    left = report("ours", A="OK", B="OK", C="OK", D="OK")
    right = report("theirs", A="OK", B="FAILED", C="NON-STRICT", D="UNSUPPORTED")
    found = kit.compare(left, right, findings(finding("B")))
    assert found.unexplained == ["C"]
    assert not found.ok
    assert kit.compare(left, right, findings(finding("B", "C"))).ok


def test_the_run_with_shipped_timers_is_explained_too():
    left, right = report("ours", A="OK", B="OK"), report("theirs", A="FAILED", B="UNSUPPORTED")
    shipped = report("theirs", A="FAILED", B="NON-STRICT")
    found = kit.compare(left, right, findings(finding("A")), shipped)
    assert (found.unexplained, found.unexplained_shipped) == ([], ["B"])
    assert not found.ok
    assert "**Not explained, with shipped timers:** B" in kit.markdown(found, ("a", "b"))
    assert kit.compare(left, right, findings(finding("A"))).ok
    explained = kit.compare(left, right, findings(finding("A", "B", id="f")), shipped)
    assert explained.ok
    text = kit.markdown(explained, ("a", "b"))
    assert (
        "Not OK with every timer as it ships: 2 of 2 (1 FAILED, 1 NON-STRICT); B only so." in text
    )
    assert "b with every timer as it ships: 1 FAILED, 1 NON-STRICT." in text
    assert "| B |  | OK | UNSUPPORTED |  |" in text


@pytest.mark.parametrize("verdict", ["OK", "UNSUPPORTED"])
def test_a_finding_whose_case_does_not_fail_is_refused(verdict):
    with pytest.raises(kit.CompareError, match="A, Z"):
        kit.compare(report("a"), report("b", A=verdict), findings(finding("A", "Z")))


def test_the_section_names_everything():
    left = report("ours", A="OK", B="OK", C="FAILED")
    right = report("theirs", A="FAILED", B="OK", C="FAILED")
    result = kit.compare(
        left, right, findings(finding("A", "C", id="f1", title="wrong", shipped=False)), right
    )
    text = kit.markdown(result, ("ours", "theirs"))
    assert "| read | 3 | 2 OK, 1 FAILED | 1 OK, 2 FAILED |" in text
    assert "| [f1](#f1) | wrong | 2 | no |" in text
    assert "Not OK with every timer as it ships: 2 of 2 (2 FAILED)." in text
    assert "| A |  | OK | FAILED | [f1](#f1) |" in text
    assert "| B |" not in text
    assert "| C |" not in text


def test_a_document_is_filled_between_its_marks(tmp_path):
    path = tmp_path / "doc.md"
    path.write_text("before <!-- conformance:compare -->\nold<!-- /conformance:compare --> after")
    assert not kit.fill(path, "new\n", check=True)
    assert kit.fill(path, "new\n", check=False)
    assert kit.fill(path, "new\n", check=True)
    assert path.read_text().startswith("before <!-- conformance:compare -->\nnew\n<!--")
    path.write_text("no marks")
    with pytest.raises(kit.CompareError, match="expected"):
        kit.fill(path, "new", check=True)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"adapter": "x", "cases": [{"id": "A"}]}'])
def test_what_is_no_report_is_refused(tmp_path, text):
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(kit.CompareError, match=r"report\.json"):
        kit.read_report(path)


def toml(**changes: Any) -> str:
    texts = {k: k for k in ("id", "title", "schedule", "cause", "checked", "why")}
    one = {**texts, "kind": "fault", "cases": ["A"], "shipped": True, **changes}
    lines = [f"{key} = {json.dumps(value)}" for key, value in one.items()]
    return 'version = 1\nimplementation = "x"\n' + "\n".join(["[[findings]]", *lines, ""])


def test_a_file_of_findings_is_read(tmp_path):
    path = tmp_path / "found.toml"
    path.write_text(toml())
    assert kit.read_findings(path) == kit.Findings(
        version=1, implementation="x", findings=[finding("A")]
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (toml(kind="opinion"), "opinion"),
        (toml(shipped="perhaps"), "shipped"),
        (toml(surprise=1), "surprise"),
        (toml(cases=["A", "A"]), "in two findings: A"),
        (toml().replace("version = 1", "version = 2"), "version 2"),
        ("version =", "no file of findings"),
    ],
)
def test_a_wrong_file_of_findings_is_refused(tmp_path, text, error):
    path = tmp_path / "found.toml"
    path.write_text(text)
    with pytest.raises(kit.CompareError, match=error):
        kit.read_findings(path)


def test_the_recorded_runs_are_explained_and_the_document_shows_them():
    """As the command in ``docs/conformance/README.md`` writes it."""
    left = kit.read_report(RECORDED / "ours.json")
    right = kit.read_report(RECORDED / "vllm-0.32.0.json")
    shipped = kit.read_report(RECORDED / "vllm-0.32.0-shipped.json")
    found = kit.read_findings(RECORDED / "vllm-0.32.0.toml")
    result = kit.compare(left, right, found, shipped)
    assert result.unexplained == []
    assert result.unexplained_shipped == []
    section = kit.markdown(result, ("ours", "vLLM 0.32.0"))
    assert kit.fill(RECORDED / "vllm-0.32.0.md", section, check=True), (
        "run: " + (RECORDED / "README.md").read_text(encoding="utf-8").split("```")[1]
    )


def test_ours_passes_in_the_recorded_run():
    verdicts = set(kit.verdicts(kit.read_report(RECORDED / "ours.json")).values())
    assert verdicts <= {"OK", "UNSUPPORTED"}
