# SPDX-License-Identifier: Apache-2.0
"""The tables load, say what they should, and are refused when they contradict themselves."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ec_protocol.errors import (
    ECError,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    SpecError,
)
from ec_protocol.tables import lifecycle
from ec_protocol.tables.lifecycle import (
    LIFECYCLE_NAMES,
    guard_valuations,
    load_actions,
    load_lifecycles,
    parse_lifecycle,
)

pytestmark = pytest.mark.clause("EC-1.1")

#: The smallest table that uses everything: a guard, a branch, an effect, two kinds of events.
SOUND: dict[str, Any] = {
    "doc": "A door.",
    "initial": "open",
    "terminal": ["gone"],
    "states": {"open": "One may pass.", "shut": "One may not.", "gone": "No door."},
    "guards": {"key": "Somebody has the key."},
    "events": {
        "shut": {"by": "local", "doc": "It is shut."},
        "unlock": {"by": "remote", "doc": "Somebody tries to unlock it."},
        "remove": {"by": "local", "doc": "It is taken away."},
    },
    "edges": [
        {"from": "open", "event": "shut", "to": "shut", "why": "w"},
        {"from": "shut", "event": "unlock", "guards": ["key"], "to": "open", "why": "w"},
        {"from": "shut", "event": "unlock", "guards": ["!key"], "to": "shut", "why": "w"},
        {"from": "open", "event": "remove", "to": "gone", "effect": "carry", "why": "w"},
    ],
}


def changed(*path: Any, to: Any) -> dict[str, Any]:
    """``SOUND`` with one value replaced, or appended if the last key is ``"+"``."""
    table = copy.deepcopy(SOUND)
    at: Any = table
    for key in path[:-1]:
        at = at[key]
    if path[-1] == "+":
        at.append(to)
    else:
        at[path[-1]] = to
    return table


def without(*path: Any) -> dict[str, Any]:
    table = copy.deepcopy(SOUND)
    at: Any = table
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return table


def edge(**fields: Any) -> dict[str, Any]:
    return {"why": "w", **{key.rstrip("_"): value for key, value in fields.items()}}


def test_the_sound_table_is_accepted() -> None:
    lc = parse_lifecycle("door", SOUND)
    assert lc.initial == "open"
    assert lc.terminal == ("gone",)
    assert [e.effect for e in lc.edges] == ["", "", "", "carry"]
    assert (lc.edges[1].needs, lc.edges[1].forbids) == (("key",), ())
    assert (lc.edges[2].needs, lc.edges[2].forbids) == ((), ("key",))
    assert lc.events["unlock"].by == "remote"


CONTRADICTIONS = {
    "unknown initial state": (changed("initial", to="ajar"), "unknown state 'ajar'"),
    "unknown terminal state": (changed("terminal", to=["burnt"]), "unknown state 'burnt'"),
    "event by neither side": (changed("events", "shut", "by", to="wind"), "by must be"),
    "edge from an unknown state": (
        changed("edges", 0, "from", to="ajar"),
        "ajar --shut--> shut names an unknown state",
    ),
    "edge to an unknown state": (
        changed("edges", 0, "to", to="ajar"),
        "open --shut--> ajar names an unknown state",
    ),
    "edge for an unknown event": (
        changed("edges", 0, "event", to="slam"),
        "open --slam--> shut names an unknown event",
    ),
    "needed guard unknown": (
        changed("edges", 1, "guards", to=["axe"]),
        r"unknown guards \['axe'\]",
    ),
    "forbidden guard unknown": (
        changed("edges", 2, "guards", to=["!axe"]),
        r"unknown guards \['axe'\]",
    ),
    "terminal state with an edge": (
        changed("edges", "+", to=edge(from_="gone", event="shut", to="shut")),
        "terminal state 'gone' has an edge for 'shut'",
    ),
    "two edges without guards": (
        changed("edges", "+", to=edge(from_="open", event="shut", to="gone")),
        r"two edges for \('open', 'shut'\)",
    ),
    "guarded edge beside an unguarded one": (
        changed("edges", "+", to=edge(from_="open", event="shut", guards=["key"], to="gone")),
        r"two edges for \('open', 'shut'\) when exactly \['key'\] hold",
    ),
    "two edges under the same guard": (
        changed("edges", "+", to=edge(from_="shut", event="unlock", guards=["!key"], to="gone")),
        r"two edges for \('shut', 'unlock'\) when exactly \[\] hold",
    ),
    "unreachable state": (
        changed("states", "walled", to="Nobody gets here."),
        r"unreachable states \['walled'\]",
    ),
    "state without a way out": (changed("terminal", to=[]), r"states without a way out \['gone'\]"),
    "event without an edge": (
        changed("events", "paint", to={"by": "local", "doc": "It is painted."}),
        r"events without an edge \['paint'\]",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_table_that_contradicts_itself_is_refused(name: str) -> None:
    table, message = CONTRADICTIONS[name]
    with pytest.raises(SpecError, match=message) as caught:
        parse_lifecycle("door", table)
    assert str(caught.value).startswith("lifecycle door: ")


@pytest.mark.parametrize(
    "table",
    [
        *(without(key) for key in ("doc", "initial", "terminal", "states", "events", "edges")),
        *(without("edges", 0, key) for key in ("from", "event", "to", "why")),
        without("events", "shut", "by"),
        without("events", "shut", "doc"),
        changed("edges", 0, to="open shut"),
        changed("edges", 1, "guards", to=[7]),
        changed("events", to=["shut"]),
        changed("terminal", to=None),
    ],
)
def test_a_malformed_table_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="lifecycle door: missing or malformed field"):
        parse_lifecycle("door", table)


def test_an_edge_allows_exactly_its_guards() -> None:
    lc = parse_lifecycle("door", SOUND)
    _, with_key, without_key, plain = lc.edges
    assert [with_key.allows(held) for held in (frozenset(), frozenset({"key"}))] == [False, True]
    assert [without_key.allows(held) for held in (frozenset(), frozenset({"key"}))] == [True, False]
    assert all(plain.allows(held) for held in guard_valuations(lc))


def test_every_set_of_guards_is_a_valuation() -> None:
    for lc in load_lifecycles().values():
        valuations = guard_valuations(lc)
        assert len(valuations) == len(set(valuations)) == 2 ** len(lc.guards)


def test_the_nine_lifecycles_are_there() -> None:
    assert tuple(load_lifecycles()) == LIFECYCLE_NAMES
    assert {name: tuple(lc.states) for name, lc in load_lifecycles().items()} == {
        "entry": ("allocated", "saving", "ready", "pinned", "quarantined", "freed"),
        "read": (
            "requested",
            "granted",
            "reading",
            "done",
            "retryable",
            "failed",
            "quarantined",
            "settled",
        ),
        "grant": ("granted", "completed", "expired"),
        "copy": ("planned", "in_flight", "landed", "skipped"),
        "peer": ("connecting", "live", "down", "drained"),
        "offer": ("coming", "open", "closed"),
        "loan": ("lent", "lost", "retired", "returned"),
        "process": ("starting", "spare", "working", "draining", "killed", "exited"),
        "region": ("creating", "live", "draining", "orphan", "unlinked"),
    }


def test_every_row_says_why() -> None:
    for lc in load_lifecycles().values():
        assert lc.doc
        texts = [*lc.states.values(), *lc.guards.values(), *(e.doc for e in lc.events.values())]
        texts += [e.why for e in lc.edges]
        assert all(text.endswith(".") for text in texts), lc.name


def test_pinned_and_quarantined_entries_cannot_be_evicted() -> None:
    """EC-2.5 and EC-6.1, straight from the table."""
    sources = {e.source for e in load_lifecycles()["entry"].edges if e.event == "evict"}
    assert sources == {"ready"}


@pytest.mark.clause("EC-6.2")
def test_only_a_proof_frees_quarantined_blocks() -> None:
    edges = [e for e in load_lifecycles()["entry"].edges if e.source == "quarantined"]
    assert {(e.event, e.effect) for e in edges} == {
        ("dma_ended", "free_blocks"),
        ("retire", "retire_blocks"),
    }


def test_actions_name_each_other_only_once_and_fire_known_events() -> None:
    actions = load_actions()
    assert len(actions) > 30
    fired = {name for action in actions.values() for name in action.fires}
    lifecycles = load_lifecycles()
    recorded = ("entry", "read", "grant", "copy", "peer", "offer", "loan", "process")
    for name in recorded:
        for event in lifecycles[name].events:
            assert f"{name}.{event}" in fired, "an event that no action fires"
    assert {f"create:{name}" for name in recorded} <= fired


@pytest.mark.parametrize(
    "fires", ["entry.explode", "boat.sink", "create:boat", "entry", "", "create:"]
)
def test_an_action_that_fires_what_no_lifecycle_has_is_refused(
    monkeypatch: pytest.MonkeyPatch, fires: str
) -> None:
    row = {"name": "Odd", "actor": "engine", "models": ["Tier"], "fires": [fires], "why": "w"}
    document = {**lifecycle._document(), "actions": [row]}
    monkeypatch.setattr(lifecycle, "_document", lambda: document)
    load_actions.cache_clear()
    try:
        with pytest.raises(SpecError, match="Odd"):
            load_actions()
    finally:
        load_actions.cache_clear()


def test_errors_say_whose_bug_it_is() -> None:
    assert issubclass(LocalProtocolError, ProtocolError)
    assert issubclass(RemoteProtocolError, ProtocolError)
    assert issubclass(ProtocolError, ECError)
    assert not issubclass(LocalProtocolError, RemoteProtocolError)
    with pytest.raises(TypeError, match="LocalProtocolError or RemoteProtocolError"):
        ProtocolError("whose?")
    assert LocalProtocolError("mine", clause="EC-1.2").clause == "EC-1.2"
