# SPDX-License-Identifier: Apache-2.0
"""Turns behaviours of ``Quota.tla`` into schedules: peers that ask and complete nothing.

The producer P is under test, the peers are played. A lease cannot be ended alone, so the
schedule keeps all of them open, which is the harder case: what the bounds leave (EC-5.10)
must be there meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ec_verify.behaviours.draft import BLOCKS_EACH, Draft
from ec_verify.behaviours.errors import NotExpressible
from ec_verify.behaviours.reading import State, changed_keys
from ec_verify.models.tla_value import as_function

Move = tuple[str, State]

#: What a state of the model has.
NEEDS: Final = frozenset({"est", "gst", "who", "what", "want"})
#: ``SizeMixed`` of MCQuota: A takes two, the others one. No config with other sizes is made
#: into a schedule.
_SIZES: Final = {"A": 2}
_CLAUSE: Final = "EC-5.10"


def schedule(moves: Sequence[Move], constants: Mapping[str, str]) -> Draft:
    """The schedule of a behaviour.

    Args:
        moves: The behaviour.
        constants: Of the model's config, by name.

    Raises:
        NotExpressible: An encoding is larger than what all grants may pin.
    """
    capacity = int(constants["Capacity"])
    peer_quota, grant_quota = int(constants["PeerQuota"]), int(constants["GrantQuota"])
    peers = sorted(constants["Peers"].strip("{} ").replace(" ", "").split(","))
    names = [str(name) for name in as_function(moves[0][1]["est"]) or {}]
    if any(_SIZES.get(name, 1) > grant_quota for name in names):
        raise NotExpressible(
            "what an encoding larger than the bounds costs is over with its lease, "
            "and no schedule ends one alone"
        )
    quotas = {"peer": peer_quota / capacity, "grants": grant_quota / capacity}
    draft = Draft(
        {
            "P": {"role": "both", "blocks": capacity * BLOCKS_EACH, "quotas": quotas},
            **{peer: {"played": "kit", "role": "consumer"} for peer in peers},
        },
        names,
        {},
    )
    for name in names:
        draft.encodings[name] = _SIZES.get(name, 1) * BLOCKS_EACH
    granted: dict[Any, str] = {}
    before = moves[0][1]
    for number, (action, after) in enumerate(moves[1:], 2):
        draft.note(f"state {number}: {action}")
        _take(draft, action, before, after, granted)
        before = after
    _bounds(draft, before, peers, grant_quota - peer_quota, capacity - grant_quota)
    draft.whatever_is_loaded("P", names)
    draft.nothing_is_left()
    return draft


def _take(draft: Draft, action: str, before: State, after: State, granted: dict[Any, str]) -> None:
    if action == "Grant":
        for slot in changed_keys("gst", before, after):
            name = f"g{len(granted) + 1}"
            granted[slot] = name
            peer, wanted = after["who"][slot - 1], after["what"][slot - 1]
            draft.attempt({"ask": "P", "by": str(peer), "hash": str(wanted), "name": name})
    elif action in ("Ends", "Complete"):
        for slot in changed_keys("gst", before, after):
            if after["gst"][slot - 1] == "completed":
                draft.attempt({"notice": "P", "of": granted[slot]})
    elif action == "Save":
        draft.attempt({"store": str(before["want"]), "at": "P"})


def _bounds(
    draft: Draft, state: State, peers: list[str], for_another: int, for_the_engine: int
) -> None:
    """What the bounds leave is there while every lease still runs."""
    draft.note("what was stored is not held for its first reader any more")
    draft.must({"advance": "announce_hold_s"})
    asking = {str(peer) for peer in (as_function(state["who"]) or {}).values()}
    entries = as_function(state["est"]) or {}
    small = [
        str(name)
        for name, entry in entries.items()
        if entry == "ready" and _SIZES.get(str(name), 1) <= for_another
    ]
    for peer in [peer for peer in peers if peer not in asking][:1]:
        for name in small[:1]:
            draft.note("one peer alone does not take what is there for the others")
            draft.must(
                {"ask": "P", "by": peer, "hash": name, "expect": {"status": "OK"},
                 "clause": _CLAUSE}
            )  # fmt: skip
    if for_the_engine:
        draft.note("grants never pin the tier solid")
        draft.must(
            {"room": for_the_engine * BLOCKS_EACH, "at": "P", "expect": True, "clause": _CLAUSE}
        )
