# SPDX-License-Identifier: Apache-2.0
"""An unknown name is answered with the three nearest that there are, and with no more."""

from ec_verify.nearest import did_you_mean, nearest


def test_the_nearest_come_first_and_three_at_most():
    known = ["MCTier", "MCTierEdges", "BugTierRogue", "MCPeer"]
    assert nearest("MCTierEdge", known) == ["MCTierEdges", "MCTier", "BugTierRogue"]
    assert nearest("mctier", known)[0] == "MCTier"
    assert len(nearest("zzz", known)) == 3


def test_the_question():
    assert did_you_mean("ax", ["a", "b", "c", "d"]) == "did you mean a, b or c?"
    assert did_you_mean("ax", ["b", "a"]) == "did you mean a or b?"
    assert did_you_mean("x", ["a", "a"]) == "did you mean a?"
    assert did_you_mean("x", []) == "there is none"
