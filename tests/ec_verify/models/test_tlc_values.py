# SPDX-License-Identifier: Apache-2.0
import pytest

from ec_verify.models.values import change, elements


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("{}", []),
        ("{ }", []),
        ("{1, 2}", ["1", "2"]),
        ("{b1}", ["b1"]),
        ('{"a, }", "b"}', ['"a, }"', '"b"']),
        ("{{1, 2}, {}}", ["{1, 2}", "{}"]),
        ("{<<1, 2>>, <<>>}", ["<<1, 2>>", "<<>>"]),
        (
            '{ [type |-> "req", of |-> 1],\n  [type |-> "ok", at |-> <<1, 2>>] }',
            ['[type |-> "req", of |-> 1]', '[type |-> "ok", at |-> <<1, 2>>]'],
        ),
        ("{(1 :> 2 @@ 2 :> 3), 4}", ["(1 :> 2 @@ 2 :> 3)", "4"]),
        ("3", None),
        ("<<1, 2>>", None),
        (None, None),
    ],
)
def test_elements(text, items):
    assert elements(text) == items


def test_sets_are_shown_by_what_changed():
    assert change("net", "{1, [a |-> 2]}", "{[a |-> 2], 3}") == ["net loses 1", "net gains 3"]


def test_other_changes_are_shown_whole():
    assert change("x", None, "{1, 2}") == ["x = {1, 2}"]
    assert change("x", "{}", "{1, 2}") == ["x = {1, 2}"]
    assert change("x", "{1}", "{}") == ["x = {}"]
    assert change("x", "1", "2") == ["x = 2"]
