# SPDX-License-Identifier: Apache-2.0
import pytest

from ec_verify.models.output import INITIAL, OutputParser, Step, parse_output
from tests.ec_verify.models.tlc.helpers import parsed, recorded


@pytest.mark.parametrize(
    ("recording", "kind", "name", "distinct", "depth"),
    [
        ("ok", "ok", None, 6, 3),
        ("dead", "ok", None, 6, 3),
        ("invariant", "invariant", "SmallInv", 3, 2),
        ("initial", "invariant", "PositiveInv", None, None),
        ("deadlock", "deadlock", None, 6, 3),
        ("action-property", "property", "GrowsProp", 6, 3),
        ("stutter", "property", None, 6, 3),
        ("lasso", "property", None, 6, 3),
        ("evaluation", "evaluation", "UnreadableInv", 3, 2),
        ("config", "config", None, None, None),
        ("config-unreadable", "config", None, None, None),
        ("parse", "parse", None, None, None),
        ("simulation", "ok", None, None, None),
        ("simulation-invariant", "invariant", "SmallInv", None, None),
    ],
)
def test_verdict_name_and_counts(recording, kind, name, distinct, depth):
    out = parsed(recording)
    assert (out.kind, out.name, out.distinct, out.depth) == (kind, name, distinct, depth)


def test_counterexample_has_actions_and_whole_values():
    first, second = parsed("invariant").trace
    assert first == Step(INITIAL, {"x": "0", "log": "<<>>"})
    assert second.action == "Step"
    assert second.state["x"] == "2"
    assert second.state["log"].startswith("<< [by |-> 2,")
    assert second.state["log"].endswith('over lines"] >>')
    assert second.state["log"].count("\n") == 1


def test_violation_in_the_initial_state_shows_that_state():
    assert parsed("initial").trace == (Step(INITIAL, {"x": "0", "log": "<<>>"}),)
    text = (
        "@!@!@STARTMSG 2107:1 @!@!@\nInvariant I is violated by the initial state:\n"
        "x = 0\n\n@!@!@ENDMSG 2107 @!@!@"
    )
    assert parse_output(text, 12).trace == (Step(INITIAL, {"x": "0"}),)


def test_infinite_counterexamples_say_how_they_go_on():
    assert parsed("stutter").loop == "stutters for ever"
    assert parsed("lasso").loop.startswith("goes back to state ")
    assert parsed("invariant").loop == ""


def test_coverage_counts_each_action_and_names_the_dead():
    assert parsed("ok").coverage == {"Step": 6, "Reset": 2}
    assert parsed("ok").dead_actions == ()
    assert parsed("dead").dead_actions == ("Never",)


def test_coverage_adds_up_places_and_keeps_the_last_report():
    def frame(code, text):
        return f"@!@!@STARTMSG {code}:0 @!@!@\n{text}\n@!@!@ENDMSG {code} @!@!@\n"

    def line(name, taken):
        return frame(2772, f"<{name} line 7, col 1 to line 7, col 7 of module M>: 0:{taken}")

    start = frame(2201, "The coverage statistics")
    text = start + line("A", 0) + line("B", 1) + start + line("A", 0) + line("A", 4) + line("B", 0)
    out = parse_output(text + frame(2193, "No error has been found."), 0)
    assert out.coverage == {"A": 4, "B": 0}
    # Newer releases print the arguments, too.
    assert parse_output(line("Step(1)", 3), 0).coverage == {"Step": 3}


def test_messages_say_what_is_wrong():
    assert "Unknown operator: `y'" in parsed("parse").message
    assert "NoSuchInv" in parsed("config").message
    assert "line 4" in parsed("config-unreadable").message
    assert "unexpected exception" not in parsed("config-unreadable").message
    assert "out of domain" in parsed("evaluation").message


@pytest.mark.parametrize(
    ("recording", "exit_code"), [("ok", 12), ("ok", 1), ("invariant", 0), ("deadlock", 13)]
)
def test_exit_status_that_contradicts_the_messages_is_no_verdict(recording, exit_code):
    out = parse_output(recorded(recording)[0], exit_code)
    assert out.kind == "crash"
    assert f"exit status {exit_code} contradicts" in out.message


def test_an_output_that_was_cut_off_is_no_success():
    text = recorded("ok")[0]
    assert parse_output(text[: text.index("@!@!@STARTMSG 2193")], 0).kind == "crash"
    assert parse_output("", 0).message == "TLC ended with exit status 0"
    assert parse_output("", 1, searched_all=False).kind == "crash"
    assert parse_output("Error: no such class", 1).message == "Error: no such class"


def test_error_while_evaluating_an_action_keeps_its_place():
    text = (
        "@!@!@STARTMSG 1000:1 @!@!@\nTLC threw an unexpected exception.\nThis was probably caused"
        " by an error in the spec or model.\nThe exception was a tlc2.tool.EvalException\n"
        ": @!@!@STARTMSG 2184:0 @!@!@\nAttempted to apply Head to the empty sequence.\n"
        "@!@!@ENDMSG 2184 @!@!@\n@!@!@ENDMSG 1000 @!@!@\n"
        "@!@!@STARTMSG 2103:1 @!@!@\n0. Line 8, column 6 in Ev\n@!@!@ENDMSG 2103 @!@!@"
    )
    out = parse_output(text, 75)
    assert out.kind == "evaluation"
    assert out.message == (
        "Attempted to apply Head to the empty sequence.\n0. Line 8, column 6 in Ev"
    )


def test_long_messages_are_cut():
    text = "Exception in thread main\n" + "\tat some.Class\n" * 500
    assert len(parse_output(text, 1).message.splitlines()) < 40


def test_progress_is_seen_while_it_runs():
    parser = OutputParser()
    counts = []
    for line in recorded("lasso")[0].splitlines():
        if parser.feed(line):
            counts.append(parser.output.distinct)
    assert counts == [6, 6, 6]


def test_counts_with_thousands_separators():
    text = (
        "@!@!@STARTMSG 2200:0 @!@!@\nProgress(22) at 2026-01-01 00:00:00: 1,076,286 states "
        "generated (3,821,812 s/min), 117,403 distinct states found (416,889 ds/min), "
        "0 states left on queue.\n@!@!@ENDMSG 2200 @!@!@"
    )
    out = parse_output(text, 1)
    assert (out.generated, out.distinct, out.depth) == (1076286, 117403, 22)
