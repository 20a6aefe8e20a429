# SPDX-License-Identifier: Apache-2.0
"""Case files: the schema of ``spec/SCENARIOS.md``, read strictly.

A file holds cases; a case says which nodes there are, what happens in which order,
and what is expected. A case with ``variants`` is a template: ``"$name"`` in its texts
is replaced by each variant's value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from ec_protocol.errors import ECError
from ec_protocol.tables.files import spec_dir
from ec_protocol.tables.timing import timer_specs
from ec_verify.kit.language.clauses import Level, clauses, strictest
from ec_verify.kit.language.steps import VERBS, Repeat, Step, Try
from ec_verify.nearest import did_you_mean

#: Version of the schedule language.
LANGUAGE_VERSION: Final = 1
AREAS: Final = (
    "tier",
    "save/load",
    "read",
    "grant",
    "lease and fence",
    "quarantine",
    "peer loss and restart",
    "wire",
    "announcement",
    "config and region",
    "security",
)
_EXPECTATIONS: Final = frozenset(
    {"expect", "count", "saves", "loads", "ranks", "started", "reports", "error"}
)
_VARIABLE: Final = re.compile(r"\$([a-z_]\w*)")


class CaseError(ECError):
    """A case file that does not follow the language; the message says where and what."""


class NodeSetup(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One node. ``adapter``: the implementation under test. ``kit``: played by the kit.

    Attributes:
        played: Who plays it.
        role: Of an implementation: ``producer``, ``consumer`` or ``both``.
        blocks: Blocks of its region.
        ranks: Ranks that load.
        rate: How fast its clock runs; 1.0 is true time.
        holds: Of a played producer: encodings it has, in this order.
        quotas: ``peer``, ``grants``, ``holds``: shares of the region.
        p2p: Whether peer-to-peer reads are on.
        authenticated: Whether the peers that it reads from prove who they are (EC-15.8).
        terms: What it says of its encoder and demands of peers (EC-8.10), as in ``Terms``; an
            implementation need not have any.
        events: Whether it publishes events; an implementation need not have any.
        processes: It serves and READs in processes beside its engine's; an implementation
            need not do so.
        later: Not started until a ``start`` step.
        old: Of a played peer: it speaks the old form and knows no optional fields.
        incarnation: Of a played producer; a restart gives another.
    """

    played: Literal["adapter", "kit"] = "adapter"
    role: Literal["producer", "consumer", "both"] = "both"
    blocks: int = 8
    ranks: int = 1
    rate: float = 1.0
    holds: list[str] = []
    quotas: dict[str, float] = {}
    p2p: bool = True
    authenticated: bool = True
    terms: dict[str, str | bool] = {}
    events: bool = False
    processes: bool = False
    later: bool = False
    old: bool = False


class Setup(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What there is before the first step.

    Attributes:
        nodes: By name; a name has no ``>``, ``~`` or ``#``.
        encodings: Size of each encoding in blocks, or ``{"bytes": n}``; others have 2.
        block_size_bytes: Of every region.
        compat: Facts of the compatibility hash that differ from the kit's.
        timers: Timers that differ from the defaults of ``spec/timing.toml``, seconds.
    """

    nodes: dict[str, NodeSetup]
    encodings: dict[str, int | dict[str, int]] = {}
    block_size_bytes: int = 32
    compat: dict[str, str] = {}
    timers: dict[str, float] = {}


class Case(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One case, after its variables are filled in.

    Attributes:
        id: ``EC-5.3/2``, or any name in a scenario file from outside.
        area: One of ``AREAS``.
        title: What happens, in a line.
        level: MUST or SHOULD; never stricter than the clause.
        clause: The clause; from ``id`` if that has one.
        quote: The sentence of the clause that is tested; the whole clause if empty.
        tags: Such as ``F1``.
        setup: Nodes and sizes.
        steps: The schedule.
        note: For people: where the case comes from.
        also: Other names of the case: models whose behaviour is the same schedule.
    """

    id: str
    area: str
    title: str
    level: Level = "MUST"
    clause: str = ""
    quote: str = ""
    tags: list[str] = []
    setup: Setup
    steps: list[dict[str, Any]]
    note: str = ""
    also: list[str] = []
    file: str = ""

    @property
    def requirement(self) -> str:
        """The text that the case tests."""
        return self.quote or clauses().get(self.clause, "")


def case_dir() -> Path:
    """The folder of the kit's own cases."""
    return spec_dir() / "conformance"


def parse_step(raw: Any, where: str) -> Step:
    """One step.

    Raises:
        CaseError: No verb, two verbs, an unknown key or a wrong value.
    """
    if not isinstance(raw, dict) or not raw:
        raise CaseError(f"{where}: a step is an object whose first key is its verb")
    verb = next(iter(raw))
    kind = VERBS.get(verb)
    if kind is None:
        raise CaseError(f"{where}: unknown verb {verb!r}; {did_you_mean(verb, VERBS)}")
    try:
        step = msgspec.convert(raw, kind)
    except msgspec.ValidationError as exc:
        raise CaseError(f"{where} ({verb}): {exc}") from exc
    if isinstance(step, Repeat | Try):
        for number, inner in enumerate(step.steps, 1):
            parse_step(inner, f"{where}.{number}")
            if isinstance(step, Try) and inner.keys() & _EXPECTATIONS:
                raise CaseError(f"{where}.{number}: a step that is tried expects nothing")
    return step


def load_file(path: Path) -> list[Case]:
    """The cases of a file, variants spelt out.

    Raises:
        CaseError: The file is not of the language.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise CaseError(f"{path}: {exc}") from exc
    if not isinstance(document, dict) or document.get("version") != LANGUAGE_VERSION:
        raise CaseError(f"{path}: expected an object with version {LANGUAGE_VERSION}")
    unknown = set(document) - {"version", "area", "cases", "setups", "note"}
    if unknown or not isinstance(document.get("cases"), list):
        raise CaseError(f"{path}: expected version, area, setups, cases; unknown: {unknown}")
    cases = []
    for number, raw in enumerate(document["cases"], 1):
        where = f"{path.name} case {number}"
        for filled in _variants(raw, where):
            cases.append(_case(filled, document, path, where))
    return cases


def load_dir(folder: Path) -> list[Case]:
    """The cases of every ``*.json`` of a folder, in the order of file names.

    Raises:
        CaseError: A file is not of the language, or an id occurs twice.
    """
    if not folder.is_dir():
        raise CaseError(f"{folder}: no such folder")
    cases = [case for path in sorted(folder.glob("*.json")) for case in load_file(path)]
    _refuse_twins(cases)
    return cases


def all_cases(more: Path | None = None) -> list[Case]:
    """The kit's own cases, the scenarios of ``spec/scenarios``, and those of a folder.

    Raises:
        CaseError: A file is not of the language, or an id occurs twice.
    """
    cases = load_dir(case_dir())
    for folder in (spec_dir() / "scenarios", more):
        if folder is not None and (folder is more or folder.is_dir()):
            cases += load_dir(folder)
    _refuse_twins(cases)
    return cases


def select(cases: list[Case], wanted: list[str]) -> list[Case]:
    """The cases that are named by id, clause, tag or area; all if none is named.

    Raises:
        CaseError: A name names nothing.
    """
    if not wanted:
        return cases
    chosen: set[str] = set()
    for name in wanted:
        found = {c.id for c in cases if name in (c.id, c.clause, c.area, *c.tags, *c.also)}
        if not found:
            words = [w for c in cases for w in (c.id, c.clause, c.area, *c.tags, *c.also)]
            raise CaseError(
                f"{name!r} is no case, clause, tag or area: {did_you_mean(name, words)}"
            )
        chosen |= found
    return [case for case in cases if case.id in chosen]


def _refuse_twins(cases: list[Case]) -> None:
    seen: dict[str, str] = {}
    for case in cases:
        for name in (case.id, *case.also):
            if name in seen:
                raise CaseError(f"{case.file}: case {name} is in {seen[name]} already")
            seen[name] = case.file


def _case(raw: dict[str, Any], document: dict[str, Any], path: Path, where: str) -> Case:
    raw = {"area": document.get("area", ""), **raw}
    setup = raw.get("setup")
    if isinstance(setup, str):
        if setup not in document.get("setups", {}):
            raise CaseError(f"{where}: no setup is called {setup!r}")
        raw["setup"] = document["setups"][setup]
    try:
        case = msgspec.convert(raw, Case)
    except msgspec.ValidationError as exc:
        raise CaseError(f"{where}: {exc}") from exc
    case.file = path.name
    address, slash, _ = case.id.partition("/")
    if not case.clause and slash:
        case.clause = address
    where = f"{path.name} {case.id}"
    if case.area not in AREAS:
        raise CaseError(f"{where}: area {case.area!r}; {did_you_mean(case.area, AREAS)}")
    if case.clause not in clauses():
        raise CaseError(f"{where}: no clause {case.clause!r} in PROTOCOL.md")
    if case.quote and case.quote not in clauses()[case.clause]:
        raise CaseError(f"{where}: the quote is not in {case.clause}")
    levels = {strictest(clauses()[case.clause]), strictest(case.requirement)}
    bound: Level = "SHOULD" if "SHOULD" in levels else "MUST"
    if "level" not in raw:
        case.level = bound
    elif case.level == "MUST" and bound == "SHOULD":
        raise CaseError(f"{where}: level MUST, but {case.clause} asks for no more than SHOULD here")
    for timer in case.setup.timers:
        if timer not in timer_specs():
            raise CaseError(f"{where}: no timer is called {timer!r}")
    for number, step in enumerate(case.steps, 1):
        parse_step(step, f"{where} step {number}")
    return case


def _variants(raw: Any, where: str) -> Iterator[dict[str, Any]]:
    if not isinstance(raw, dict):
        raise CaseError(f"{where}: a case is an object")
    rest = {key: value for key, value in raw.items() if key != "variants"}
    variants = raw.get("variants")
    if variants is None:
        yield rest
        return
    if not isinstance(variants, list):
        raise CaseError(f"{where}: variants is a list of objects")
    for values in variants:
        yield fill(rest, values, where)


def fill(template: Any, values: Mapping[str, Any], where: str) -> Any:
    """The template with every ``$name`` replaced.

    A text that is nothing but ``$name`` becomes the value, of whatever type; inside a
    longer text the value's own text is put in. Keys are replaced too.

    Raises:
        CaseError: A name has no value.
    """

    def value_of(name: str) -> Any:
        if name not in values:
            raise CaseError(f"{where}: no value for ${name}")
        return values[name]

    if isinstance(template, dict):
        return {fill(k, values, where): fill(v, values, where) for k, v in template.items()}
    if isinstance(template, list):
        return [fill(item, values, where) for item in template]
    if isinstance(template, str):
        if whole := _VARIABLE.fullmatch(template):
            return value_of(whole[1])
        return _VARIABLE.sub(lambda m: str(value_of(m[1])), template)
    return template
