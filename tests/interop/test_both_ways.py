# SPDX-License-Identifier: Apache-2.0
"""Both at once: engines of two ranks that save, load, fetch and hand on."""

from __future__ import annotations

import pytest

from tests.interop.driver import NBYTES, ROWS, Asked, marks, until

pytestmark = marks


@pytest.fixture
def both(builtins, ours):
    """vLLM's engine and ours, each with two ranks, after each has read from the other."""
    theirs, node = builtins("ec_both", ranks=2), ours("ec_both", world_size=2)
    made_there, made_here = theirs.save(), node.saved()
    asked = Asked(theirs, made_here[0], made_here[2])
    assert node.fetch(made_there[0], theirs.address, NBYTES) == "ready"
    assert asked.admitted()["bytes"] == made_here[1]
    assert node.bytes_of(made_there[0]) == made_there[1]
    until(theirs.no_grants, "our notice")
    node.count("completed")
    return theirs, node, made_there, made_here


@pytest.mark.clause("EC-4.4")
def test_what_was_fetched_is_held_until_both_ranks_have_loaded_it(both):
    theirs, node, (made_there, *_), (made_here, *_) = both
    (load,) = theirs.tell("schedule", items={made_here: ROWS})["loads"].values()
    for left in (1, 0):
        assert theirs.tell("pins")[made_here] == 1
        theirs.tell("report", loads=[load])
        assert theirs.tell("pins")[made_here] == left
    copies, entry = node.node.copies, node.tier.get(made_there)
    assert entry is not None
    node.tier.reserve(made_there)
    copy = copies.plan_load(made_there)
    copies.submit(copy)
    node.tier.end_step()
    node.node.waiters.consumed("request", made_there)
    for rank, state in enumerate(("pinned", "ready")):
        assert entry.state == "pinned"
        copies.report(copy.copy_id, rank, landed=True)
        assert entry.state == state


@pytest.mark.clause("EC-5.4")
def test_what_was_fetched_is_handed_on(both, builtins, ours):
    """Ours, theirs, ours; and the other way round."""
    theirs, node, (made_there, there, _), (made_here, here, _) = both
    third = ours("ec_consumer")
    assert third.fetch(made_here, theirs.address, NBYTES) == "ready"
    assert third.bytes_of(made_here) == here
    fourth = builtins("ec_consumer")
    assert Asked(fourth, made_there, node.announced(made_there)).admitted()["bytes"] == there
    node.count("completed", 2)
    until(theirs.no_grants, "the third's notice")
    node.whole()
    third.whole()
