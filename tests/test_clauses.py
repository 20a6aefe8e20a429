# SPDX-License-Identifier: Apache-2.0
"""Clauses of spec/PROTOCOL.md: each is cited by a test or a model, and each citation is real."""

import re
from collections import defaultdict

from ec_protocol.tables.files import spec_dir

ROOT = spec_dir().parent
CLAUSE = re.compile(r"\bEC-\d+\.\d+\b")
DEFINED = re.findall(r"^- \*\*(EC-\d+\.\d+)\*\*", (spec_dir() / "PROTOCOL.md").read_text(), re.M)

# Where a clause may be cited, by folder: file suffixes.
CITING = {
    "ec_connector": {".py"},
    "ec_protocol": {".py"},
    "spec": {".json", ".toml"},
    "tests": {".py"},
    "tla": {".md", ".tla", ".toml"},
}
# A citation here shows the clause at work; one in the code or in prose does not.
SHOWING = {"tests": {".py"}, "tla": {".tla", ".toml"}}


def citations(where: dict[str, set[str]]) -> dict[str, list[str]]:
    """Clause id -> the files that cite it."""
    found = defaultdict(list)
    for folder, suffixes in where.items():
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes:
                for clause in set(CLAUSE.findall(path.read_text(encoding="utf-8"))):
                    found[clause].append(str(path.relative_to(ROOT)))
    return found


def test_clauses_are_numbered_once():
    assert len(DEFINED) > 50
    assert len(set(DEFINED)) == len(DEFINED)


def test_every_citation_names_a_clause():
    unknown = {c: files for c, files in citations(CITING).items() if c not in DEFINED}
    assert unknown == {}


def test_every_clause_is_cited_by_a_test_or_a_model():
    shown = citations(SHOWING)
    assert [clause for clause in DEFINED if clause not in shown] == []
