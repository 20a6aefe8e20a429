# SPDX-License-Identifier: Apache-2.0
"""One field, one meaning: the specification, the format's description and the code agree.

Beside each action of ``tla/traces/*.tla`` stand rows ``| spec variable | trace field |
code attribute |``; ``spec/TRACE.md`` has the same rows with a description.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ec_connector.processes.spec import DataSpec, InstanceSpec, ParentSpec
from ec_protocol.loans import Loan, Loans
from ec_protocol.offers.engine import Offer, Offers
from ec_protocol.offers.server import SharedShelf
from ec_protocol.offers.table import OfferTable
from ec_protocol.p2p.attempt import Attempt
from ec_protocol.p2p.attempts import Attempts
from ec_protocol.p2p.blocks import LentBlocks
from ec_protocol.p2p.fetches import Fetch, Fetches
from ec_protocol.p2p.grants import Grant, ProducerGrants
from ec_protocol.p2p.peers import Peer
from ec_protocol.processes import Wanted, _Process
from ec_protocol.tables.files import spec_dir, tla_dir
from ec_protocol.tables.lifecycle import load_actions
from ec_protocol.tables.timing import Timing
from ec_protocol.tier.copies import Copy, CopyTable
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.entry import Entry
from ec_protocol.tier.holds import HoldTable
from ec_protocol.trace import TRACE_VERSION
from ec_verify.traces.fields import ARGUMENTS, FACTS, OF_A_PROCESS, VARIABLES
from ec_verify.traces.tla import FACT_NAMES
from tests.ec_verify.traces.instance_wrong_logs import CASES as INSTANCE_CASES
from tests.ec_verify.traces.instances import Instances
from tests.ec_verify.traces.trace_cases import CASES
from tests.ec_verify.traces.traced import Raw, Recorded

pytestmark = pytest.mark.clause("EC-1.3")

CLASSES = {
    cls.__name__: cls
    for cls in (
        *(Attempt, Attempts, Copy, CopyTable, EncodingTier, Entry, Fetch, Fetches),
        *(Grant, HoldTable, Peer, ProducerGrants, Timing),
        *(Loan, Loans, Offer, Offers, SharedShelf, OfferTable, LentBlocks),
        *(_Process, Wanted, DataSpec, InstanceSpec, ParentSpec),
    )
}
ROW = re.compile(r"^\\\* \| (\S.*?)? *\| (\S.*?)? *\| (\S.*?) *\|$")
DOCUMENT_ROW = re.compile(r"^\| `([^`]+)` \| ([a-z-]+) \| .+ \|$", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    variable: str
    field: str
    attribute: str


def tables() -> Iterator[tuple[str, list[Row]]]:
    """Per operator of the trace specification the rows right above it."""
    for path in sorted((tla_dir() / "traces").glob("*.tla")):
        rows: list[Row] = []
        group = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            if match := ROW.match(line):
                variable, field, attribute = (part or "" for part in match.groups())
                if field.startswith("."):
                    field = group + field
                elif ":ID" in field:
                    group = field.partition(":ID")[0]
                rows.append(Row(variable, field.replace(":ID", ""), attribute))
            elif line and not line.startswith("\\*"):
                if rows and (operator := re.match(r"(\w+)(\(.*\))? ==", line)):
                    yield operator[1], rows
                if not line.startswith("EXTENDS"):
                    rows = []


TABLES = dict(tables())
ROWS = [row for rows in TABLES.values() for row in rows]
HEADS = {f"vars.{kind}" for kind in VARIABLES}


def test_every_action_has_its_table() -> None:
    assert sorted(set(load_actions()) - set(TABLES)) == []


@pytest.mark.parametrize("action", load_actions())
def test_the_table_names_arguments_of_its_action(action: str) -> None:
    named = {row.field[5:] for row in TABLES[action] if row.field.startswith("args.")}
    assert named <= set(ARGUMENTS[action]) | set(OF_A_PROCESS.get(action, ()))


def test_actions_of_table_and_format_are_the_same() -> None:
    assert list(ARGUMENTS) == [name for name in ARGUMENTS if name in load_actions()]
    assert set(ARGUMENTS) == set(load_actions())


def test_every_field_stands_beside_an_action() -> None:
    fields = {row.field for row in ROWS if row.field and not row.field.startswith("(")} - HEADS
    wanted = {f"vars.{kind}.{name}" for kind, names in VARIABLES.items() for name in names}
    wanted |= {f"facts.{part}.{name}" for part, name in FACT_NAMES}
    wanted |= {f"args.{name}" for names in ARGUMENTS.values() for name in names}
    # The holds' share is looked at by an invariant.
    assert sorted(wanted - fields) == []
    assert sorted(fields - wanted) == []


def test_every_attribute_is_in_the_code() -> None:
    unknown = [row for row in ROWS if not exists(row.attribute)]
    assert unknown == []


def exists(attribute: str) -> bool:
    name, _, member = attribute.partition(".")
    if attribute.endswith(" (argument)"):
        return attribute.removesuffix(" (argument)") in CLASSES
    if attribute == "the bytes in shared memory":
        return True
    cls = CLASSES.get(name)
    return cls is not None and (hasattr(cls, member) or member in assigned(cls))


def assigned(cls: type) -> set[str]:
    """Attributes that the class's own code assigns, or declares."""
    tree = ast.parse(inspect.getsource(cls))
    stores = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    return stores | set(getattr(cls, "__annotations__", {}))


def test_the_code_records_exactly_these_fields() -> None:
    kinds: dict[str, set[frozenset[str]]] = {}
    facts: dict[str, set[frozenset[str]]] = {}
    arguments: dict[str, set[frozenset[str]]] = {}
    records: list[Raw] = []
    for scenario, wanted in CASES.values():
        if wanted is None:
            world = Recorded()
            scenario(world)
            records += world.records
    for play, wanted in INSTANCE_CASES.values():
        if wanted is None:
            instances = Instances()
            play(instances)
            records += instances.all
    for record in records:
        arguments.setdefault(record["action"], set()).add(frozenset(record["args"]))
        for key, variables in record["vars"].items():
            kinds.setdefault(key.partition(":")[0], set()).add(frozenset(variables))
        for part, told in record.get("facts", {}).items():
            facts.setdefault(part, set()).add(frozenset(told))
    assert kinds == {kind: {frozenset(names)} for kind, names in VARIABLES.items()}
    assert facts == {part: {frozenset(names)} for part, names in FACTS.items()}
    shapes = {name: {frozenset(names)} for name, names in ARGUMENTS.items()}
    for name, names in OF_A_PROCESS.items():
        shapes[name].add(frozenset(names))
    assert arguments == shapes


def test_the_description_has_every_field_and_its_kind() -> None:
    text = (spec_dir() / "TRACE.md").read_text(encoding="utf-8")
    described = dict(DOCUMENT_ROW.findall(text))
    wanted = {f"vars.{k}.{n}": kind for k, names in VARIABLES.items() for n, kind in names.items()}
    wanted |= {f"facts.{p}.{n}": kind for p, names in FACTS.items() for n, kind in names.items()}
    wanted |= {f"args.{n}": kind for names in ARGUMENTS.values() for n, kind in names.items()}
    assert described == wanted
    assert f"Version {TRACE_VERSION}" in text


def test_the_description_says_the_same_of_each_field_as_the_specification() -> None:
    text = (spec_dir() / "TRACE.md").read_text(encoding="utf-8")
    for row in ROWS:
        if row.field and row.field not in HEADS and not row.field.startswith("("):
            (line,) = (x for x in text.splitlines() if x.startswith(f"| `{row.field}` |"))
            assert f"`{row.attribute}`" in line, f"{row.field}: {row.attribute} missing"


def test_the_rows_are_read() -> None:
    """The control: the parser does find rows, and resolves shortened names."""
    assert Row(".fence", "vars.read.fence", "Attempt.fence") in TABLES["RequestRead"]
    assert not exists("Attempt.moon")
    assert not exists("Moon.phase")
    assert Path(tla_dir() / "traces" / "TraceRead.tla").is_file()
