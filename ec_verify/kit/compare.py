# SPDX-License-Identifier: Apache-2.0
"""Two implementations side by side, and what is known about each failure.

Reads reports of ``conformance run --json`` and a file of findings: TOML that groups the
cases an implementation does not pass by their common cause and says for each what
happens, how it was checked by hand, and whether it can happen with the timers that the
implementation ships. A case that is not OK, in the run or in the further one with shipped
timers, and belongs to no finding is named as not explained; a finding that names a case
which passes in both, or names one twice, is an error.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from ec_protocol.errors import ECError
from ec_verify.kit.language.schedule import AREAS, all_cases

_VERDICTS: Final = ("OK", "FAILED", "NON-STRICT", "UNSUPPORTED")
_NOT_OK: Final = ("FAILED", "NON-STRICT")
#: Kinds of findings, with what they mean in the table.
KINDS: Final = {
    "fault": "Faults",
    "difference": "Differences without harm",
}


class CompareError(ECError):
    """A report or a file of findings that cannot be used; the message says why."""


class Finding(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One cause of failures.

    Attributes:
        id: Short name, used in the table.
        title: What is wrong, in a line.
        kind: ``fault``, or ``difference``: outside of what it sets out to do, and harmless
            by itself.
        cases: Cases that it explains; none if no case fails by it.
        schedule: What happens, in order, and the harm.
        cause: Where it comes from.
        checked: How somebody made sure that the implementation, not the kit, does it.
        shipped: Whether it can happen with the timers that the implementation ships.
        why: Why so.
    """

    id: str
    title: str
    kind: str
    cases: list[str]
    schedule: str
    cause: str
    checked: str
    shipped: bool
    why: str


class Findings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A file of findings.

    Attributes:
        version: Of this format, 1.
        implementation: Name and version, for people.
        findings: In the order in which they are shown.
    """

    version: int
    implementation: str
    findings: list[Finding]


@dataclass(slots=True)
class Comparison:
    """What ``compare`` found.

    Attributes:
        left: The first report.
        right: The second.
        findings: What is known about the second.
        shipped: A further run of the second with its own timers, if there is one.
        unexplained: Cases that the second does not pass and that belong to no finding.
        unexplained_shipped: The same of the further run, apart from these.
    """

    left: Mapping[str, Any]
    right: Mapping[str, Any]
    findings: Findings | None
    shipped: Mapping[str, Any] | None = None
    unexplained: list[str] = field(default_factory=list)
    unexplained_shipped: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything that is not OK is explained, in both runs of the second."""
        return not self.unexplained and not self.unexplained_shipped

    def as_json(self) -> dict[str, Any]:
        """The machine-readable form."""
        return {
            "ok": self.ok,
            "left": {"adapter": self.left["adapter"], "totals": self.left["totals"]},
            "right": {"adapter": self.right["adapter"], "totals": self.right["totals"]},
            "cases": [
                {"id": id_, "left": left, "right": right, "finding": finding}
                for id_, left, right, finding in self.rows()
            ],
            "unexplained": self.unexplained,
            "unexplained_shipped": self.unexplained_shipped,
        }

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Id, both verdicts and the finding of every case that either run has."""
        left, right = verdicts(self.left), verdicts(self.right)
        by_case = {
            c: f.id for f in (self.findings.findings if self.findings else []) for c in f.cases
        }
        for id_ in dict.fromkeys([*left, *right]):
            verdict = right.get(id_, "–")
            finding = by_case.get(id_, "") if verdict in _NOT_OK else ""
            yield id_, left.get(id_, "–"), verdict, finding


def read_report(path: Path) -> dict[str, Any]:
    """A report of ``conformance run --json``.

    Raises:
        CompareError: It is none.
    """
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for case in report["cases"]:
            if case["verdict"] not in _VERDICTS or case["area"] not in AREAS:
                raise ValueError(f"case {case['id']}: {case['verdict']}, {case['area']}")
        str(report["adapter"])
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise CompareError(f"{path} is no report of conformance run --json: {exc}") from exc
    return report


def read_findings(path: Path) -> Findings:
    """A file of findings.

    Raises:
        CompareError: It is none, or a case belongs to two findings.
    """
    try:
        found = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Findings)
    except (OSError, ValueError, msgspec.ValidationError) as exc:
        raise CompareError(f"{path} is no file of findings: {exc}") from exc
    if found.version != 1:
        raise CompareError(f"{path}: version {found.version}, expected 1")
    for finding in found.findings:
        if finding.kind not in KINDS:
            raise CompareError(
                f"{path}: {finding.id}: kind {finding.kind!r}; known: {', '.join(KINDS)}"
            )
    twice = [c for c, n in Counter(c for f in found.findings for c in f.cases).items() if n > 1]
    if twice:
        raise CompareError(f"{path}: in two findings: {', '.join(twice)}")
    return found


def verdicts(report: Mapping[str, Any]) -> dict[str, str]:
    """Verdict by case."""
    return {case["id"]: case["verdict"] for case in report["cases"]}


def compare(
    left: Mapping[str, Any],
    right: Mapping[str, Any],
    findings: Findings | None,
    shipped: Mapping[str, Any] | None = None,
) -> Comparison:
    """Put two reports side by side.

    Args:
        left: A report.
        right: The report that the findings are about.
        findings: What is known about its failures.
        shipped: Another report of the same implementation with its own timers.

    Raises:
        CompareError: A finding names a case that every run of the second passes or lacks.
    """
    result = Comparison(left, right, findings, shipped)
    known = {case for finding in (findings.findings if findings else []) for case in finding.cases}
    seen = _not_ok(right)
    further = _not_ok(shipped) if shipped is not None else set()
    stray = sorted(known - seen - further)
    if stray:
        raise CompareError(f"findings explain cases that are passed or unknown: {', '.join(stray)}")
    result.unexplained = sorted(seen - known)
    result.unexplained_shipped = sorted(further - known - seen)
    return result


def _not_ok(report: Mapping[str, Any]) -> set[str]:
    return {id_ for id_, verdict in verdicts(report).items() if verdict in _NOT_OK}


# ------------------------------------------------------------------------- Markdown
def markdown(comparison: Comparison, names: tuple[str, str]) -> str:
    """The comparison as a section of a document.

    Args:
        comparison: It.
        names: Of both implementations, as headings.
    """
    parts = [_areas(comparison, names)]
    if comparison.shipped is not None:
        totals = Counter(verdicts(comparison.shipped).values())
        parts.append(f"{names[1]} with every timer as it ships: {_tally(totals)}.")
    if comparison.findings is not None:
        parts += _findings(comparison, comparison.findings)
    if comparison.unexplained:
        parts.append("**Not explained:** " + ", ".join(comparison.unexplained))
    if comparison.unexplained_shipped:
        named = ", ".join(comparison.unexplained_shipped)
        parts.append(f"**Not explained, with shipped timers:** {named}")
    parts.append(_differences(comparison, names))
    return "\n\n".join(parts) + "\n"


def _areas(comparison: Comparison, names: tuple[str, str]) -> str:
    findings = comparison.findings.findings if comparison.findings else []
    known = {case for f in findings if f.kind == "difference" for case in f.cases}
    alike = Counter[str](
        case["area"]
        for case in comparison.right["cases"]
        if case["id"] in known and case["verdict"] == "FAILED"
    )
    counts: dict[str, tuple[Counter[str], Counter[str]]] = {
        a: (Counter(), Counter()) for a in AREAS
    }
    for number, report in enumerate((comparison.left, comparison.right)):
        for case in report["cases"]:
            counts[case["area"]][number][case["verdict"]] += 1
    head = f"| area | cases | {names[0]} | {names[1]} |"
    lines = [head, "|---|---:|---|---|"]
    totals = (Counter[str](), Counter[str]())
    for area, pair in counts.items():
        cases = max(sum(pair[0].values()), sum(pair[1].values()))
        if cases:
            right = _tally(pair[1], alike[area])
            lines.append(f"| {area} | {cases} | {_tally(pair[0])} | {right} |")
        totals[0].update(pair[0])
        totals[1].update(pair[1])
    everything = max(sum(totals[0].values()), sum(totals[1].values()))
    right = _tally(totals[1], alike.total())
    lines.append(f"| **all** | **{everything}** | {_tally(totals[0])} | {right} |")
    return "\n".join(lines)


def _tally(counter: Counter[str], differences: int = 0) -> str:
    """Counts by verdict; ``differences`` of the failures are harmless by themselves."""
    notes = {"FAILED": f" ({differences} by a *difference*)" if differences else ""}
    return ", ".join(f"{counter[v]} {v}{notes.get(v, '')}" for v in _VERDICTS if counter[v])


def _findings(comparison: Comparison, findings: Findings) -> Iterator[str]:
    own = verdicts(comparison.shipped) if comparison.shipped is not None else {}
    main = verdicts(comparison.right)
    for kind, heading in KINDS.items():
        chosen = [finding for finding in findings.findings if finding.kind == kind]
        if not chosen:
            continue
        yield f"### {heading} of {findings.implementation}"
        lines = ["| finding | what | cases | with shipped timers |", "|---|---|---:|---|"]
        for finding in chosen:
            lines.append(
                f"| [{finding.id}](#{finding.id}) | {finding.title} | {len(finding.cases)} "
                f"| {'yes' if finding.shipped else 'no'} |"
            )
        yield "\n".join(lines)
        for finding in chosen:
            yield _finding(finding, main, own)


def _finding(finding: Finding, main: Mapping[str, str], own: Mapping[str, str]) -> str:
    lines = [f'#### <a id="{finding.id}"></a>{finding.title}', ""]
    lines.append(f"Cases: {', '.join(finding.cases)}." if finding.cases else "No case fails by it.")
    if own and finding.cases:
        again = Counter(own[case] for case in finding.cases if own.get(case) in _NOT_OK)
        lines[-1] += (
            f" Not OK with every timer as it ships: {again.total()} of {len(finding.cases)}"
            + (f" ({_tally(again)})" if again else "")
        )
        only = [case for case in finding.cases if main.get(case) not in _NOT_OK]
        lines[-1] += f"; {', '.join(only)} only so." if only else "."
    shipped = f"{'Yes' if finding.shipped else 'No'}. {finding.why}"
    for heading, text in (
        ("What happens", finding.schedule),
        ("Cause", finding.cause),
        ("Checked by hand", finding.checked),
        ("With shipped timers", shipped),
    ):
        lines += ["", f"*{heading}.* {' '.join(text.split())}"]
    return "\n".join(lines)


def _differences(comparison: Comparison, names: tuple[str, str]) -> str:
    titles = {case.id: case.title for case in all_cases()}
    lines = [
        "### Cases in which the two differ",
        "",
        "<details><summary>All of them</summary>",
        "",
        f"| case | title | {names[0]} | {names[1]} | finding |",
        "|---|---|---|---|---|",
    ]
    for id_, left, right, finding in comparison.rows():
        if left != right:
            title = re.sub(r"[|\n]", " ", titles.get(id_, ""))
            link = f"[{finding}](#{finding})" if finding else ""
            lines.append(f"| {id_} | {title} | {left} | {right} | {link} |")
    return "\n".join([*lines, "", "</details>"])


#: What surrounds the generated part of a document.
_BEGIN: Final = "<!-- conformance:compare -->"
_END: Final = "<!-- /conformance:compare -->"


def fill(path: Path, section: str, *, check: bool) -> bool:
    """Put the section between its marks in a document, or see whether it is there.

    Returns:
        Whether the document holds it (always, after writing).

    Raises:
        CompareError: The document has no marks.
    """
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise CompareError(f"{path}: expected {_BEGIN} and {_END}")
    wanted = f"{before}{_BEGIN}\n{section}{_END}{after}"
    if check:
        return text == wanted
    path.write_text(wanted, encoding="utf-8")
    return True
