# SPDX-License-Identifier: Apache-2.0
"""The comparison of a state graph with the tables must fail on every difference."""

import dataclasses

import pytest

from ec_protocol.tables.lifecycle import Action, load_lifecycles
from ec_verify.models.edges import differences, table_edges
from ec_verify.models.graph import Fired, Graph, GraphError, parse_fired, parse_graph

COPY = load_lifecycles()["copy"]
SUBMIT = Fired("copy", "planned", "submit", "in_flight")
SKIP = Fired("copy", "planned", "skip", "skipped")

# Actions that fire exactly the copy table, and the graph of a model that obeys.
ACTIONS = {
    "Submit": Action("Submit", "engine", ("M",), ("create:entry", "copy.submit"), ""),
    "Report": Action("Report", "engine", ("M",), ("copy.report",), ""),
    "Skip": Action("Skip", "engine", ("M",), ("copy.skip",), ""),
    "Other": Action("Other", "reader", ("N",), ("copy.skip",), ""),
}
FIRED = {
    "Submit": frozenset({SUBMIT}),
    "Report": frozenset(e for e in table_edges(COPY) if e.event == "report"),
    "Skip": frozenset({SKIP}),
    "Tick": frozenset(),
}


def compare(fired=FIRED, table=COPY, actions=ACTIONS, **more):
    return differences(
        Graph(fired, 4),
        tables={"copy": table},
        actions=actions,
        **{"lifecycles": ["copy"], "modules": ["M"], **more},
    )


def test_equal():
    assert compare() == []


def test_guards_do_not_tell_edges_apart():
    assert len(table_edges(COPY)) == len(COPY.edges)
    pin = [e for e in load_lifecycles()["entry"].edges if e.source == "pinned"]
    assert {e.event for e in pin} == {"pin", "unpin"}
    doubled = dataclasses.replace(COPY, edges=(*COPY.edges, COPY.edges[0]))
    assert table_edges(doubled) == table_edges(COPY)


def test_edge_removed_from_the_table():
    fewer = dataclasses.replace(COPY, edges=COPY.edges[:-1])
    assert compare(table=fewer) == [
        "the model takes an edge that the table does not have: "
        "copy: in_flight --report--> skipped (by Report)"
    ]


def test_edge_redirected_in_the_table():
    redirected = dataclasses.replace(COPY.edges[0], dest="landed")
    other = dataclasses.replace(COPY, edges=(redirected, *COPY.edges[1:]))
    assert compare(table=other) == [
        "the model takes an edge that the table does not have: "
        "copy: planned --submit--> in_flight (by Submit)",
        "the model never takes an edge of the table: copy: planned --submit--> landed",
    ]


def test_edge_added_to_the_table():
    added = dataclasses.replace(COPY.edges[0], source="in_flight", event="skip", dest="skipped")
    more = dataclasses.replace(COPY, edges=(*COPY.edges, added))
    assert compare(table=more) == [
        "the model never takes an edge of the table: copy: in_flight --skip--> skipped"
    ]
    # Of a lifecycle that the model does not have in full, only wrong edges are reported.
    assert compare(table=more, lifecycles=[]) == []


def test_event_that_its_action_may_not_fire():
    wrong = {**FIRED, "Submit": frozenset({SUBMIT, SKIP})}
    assert compare(wrong) == ["Submit fires copy.skip, which its `fires` does not list"]


def test_event_fired_by_no_action_of_the_protocol():
    assert compare({**FIRED, "Tick": frozenset({SKIP})}) == [
        "Tick fires copy.skip but is no action of spec/lifecycle.toml"
    ]


def test_a_lifecycle_that_no_action_fires_has_its_edges_compared_only():
    region = load_lifecycles()["region"]
    fired = {"Move": table_edges(region)}
    both = {"copy": COPY, "region": region}
    wanted = {"tables": both, "actions": ACTIONS, "lifecycles": ["region"], "modules": []}
    assert differences(Graph(fired, 4), **wanted) == []
    first = min(table_edges(region))
    some = {"Move": table_edges(region) - {first}}
    assert differences(Graph(some, 4), **wanted) == [
        f"the model never takes an edge of the table: {first}"
    ]


def test_action_that_never_fires_what_it_lists():
    silent = {**FIRED, "Skip": frozenset(), "Tick": FIRED["Skip"]}
    assert "Skip never fires copy.skip, which its `fires` lists" in compare(silent)


def test_action_that_is_never_taken():
    gone = {name: fired for name, fired in FIRED.items() if name != "Skip"}
    found = compare(gone)
    assert "Skip is never taken" in found
    assert "Skip is never taken" not in compare(gone, allow_dead=["Skip"])
    # Actions of other modules need not be there.
    assert "Other is never taken" not in found
    assert "Other is never taken" in compare(modules=["M", "N"])


DOT = r"""strict digraph DiskGraph {
nodesep=0.35;
1 [label="/\\ ev = {}\n/\\ s = \"planned\"",style = filled]
1 -> -2 [label="Submit",color="black",fontcolor="black"];
-2 [label="/\\ ev = {<<\"copy\", \"planned\", \"submit\", \"in_flight\">>,\n  <<\"entry\", \"allocated\", \"begin_write\", \"saving\">>}\n/\\ s = \"{}\""];
1 -> 1 [label="Tick",color="black",fontcolor="black"];
}
""".splitlines()  # noqa: E501


def test_reading_a_dump():
    graph = parse_graph(DOT)
    assert graph.states == 2
    assert graph.fired == {
        "Submit": {SUBMIT, Fired("entry", "allocated", "begin_write", "saving")},
        "Tick": frozenset(),
    }


def test_reading_a_dump_whose_only_variable_is_the_history():
    assert parse_graph(['1 [label="ev = {}",style = filled]']).states == 1


def test_dumps_that_cannot_be_compared():
    with pytest.raises(GraphError, match="no variable `ev`"):
        parse_graph([r'1 [label="/\\ s = 1\n/\\ t = 2"]'])
    with pytest.raises(GraphError, match="no state"):
        parse_graph(["strict digraph DiskGraph {", "}"])


@pytest.mark.parametrize(
    "text", ['{"submit"}', '{<<"copy", "planned", "submit">>}', '{<<1, "a", "b", "c">>}']
)
def test_history_of_another_form(text):
    with pytest.raises(GraphError, match="expected a set of <<lifecycle, from, event, to>>"):
        parse_fired(text)
