# SPDX-License-Identifier: Apache-2.0
"""Values as TLC prints them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ec_verify.models.tla_value import ValueTextError, as_function, as_text, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-1", -1),
        ("TRUE", True),
        ('"a b"', "a b"),
        (r'"say \"x\""', 'say "x"'),
        ("b1", "b1"),
        ("1st", "1st"),
        ("<<>>", ()),
        ('<<"x", 2>>', ("x", 2)),
        ("{}", []),
        ("{b1, 1}", ["b1", 1]),
        ('[st |-> "done", n |-> {}]', {"st": "done", "n": []}),
        ("(0 :> 1 @@ b1 :> <<2>>)", {0: 1, "b1": (2,)}),
        ("( c1 :>\n      [ st |-> 1,\n        n |-> 2 ] )", {"c1": {"st": 1, "n": 2}}),
        ("(<<1, 2>> :> TRUE)", {(1, 2): True}),
        ("({A} :> 1)", {"{A}": 1}),
    ],
)
def test_printed_values_are_read(text, value):
    assert parse(text) == value


@pytest.mark.parametrize(
    "text", ["", "<<1", "{1 2}", "[a -> 1]", "(1 :> )", "1 2", "]", "~x", "<<" * 100]
)
def test_what_is_no_value_is_refused(text):
    with pytest.raises(ValueTextError, match="not a value of TLC"):
        parse(text)


def printed(value) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, tuple):
        return "<<" + ", ".join(map(printed, value)) + ">>"
    if isinstance(value, list):
        return "{" + ",\n  ".join(map(printed, value)) + "}"
    if isinstance(value, dict):
        return "(" + " @@ ".join(f"{printed(k)} :> {printed(v)}" for k, v in value.items()) + ")"
    return str(value)


KEYS = st.integers() | st.text(max_size=5)
VALUES = st.recursive(
    st.integers() | st.booleans() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, min_size=1, max_size=3)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_printing_and_reading_agree(value):
    assert parse(printed(value)) == value


def test_sequences_are_functions_from_one():
    assert as_function(("a", "b")) == {1: "a", 2: "b"}
    assert as_function({0: "a"}) == {0: "a"}
    assert as_function("a") is None


def test_values_are_shown_without_ceremony():
    assert as_text(("a", True, [])) == "⟨a, yes, ∅⟩"
    assert as_text({"st": "done", 1: ["b"]}) == "[st done, 1 {b}]"
