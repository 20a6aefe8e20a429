# SPDX-License-Identifier: Apache-2.0
"""Behaviours of ``Quota.tla``: peers that ask and complete nothing.

In a schedule the producer P is under test, the peers are played. A lease cannot be ended
alone, so the schedule keeps all of them open, which is the harder case: what the bounds
leave (EC-5.10) must be there meanwhile. There is no picture of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from ec_verify.behaviours.errors import NotExpressible
from ec_verify.behaviours.reading import Event, Move, State, elements, names_in, read
from ec_verify.behaviours.schedule import BLOCKS_EACH, Draft

#: ``SizeMixed`` of MCQuota: A takes two, the others one. No config with other sizes is made
#: into a schedule.
_SIZES: Final = {"A": 2}
_CLAUSE: Final = "EC-5.10"
#: The one operator for ``Host`` of which a schedule is made.
_EACH_ITS_OWN: Final = "<- EachItsOwn"


class QuotaEvent(Event):
    """A step of the producer: slots of grants that change, encodings that are saved."""

    needs: ClassVar = frozenset({"est", "gst", "who", "what", "want"})


def schedule(
    moves: Sequence[Move], constants: Mapping[str, str] | None = None, broken: str = ""
) -> Draft:
    """As ``models.Model.schedule``."""
    constants = constants or {}
    capacity = int(constants["Capacity"])
    peer_quota, grant_quota = int(constants["PeerQuota"]), int(constants["GrantQuota"])
    peers = sorted(names_in(constants["Peers"]))
    names = [str(name) for name in elements(moves[0][1], "est")]
    if any(_SIZES.get(name, 1) > grant_quota for name in names):
        raise NotExpressible(
            "what an encoding larger than the bounds costs is over with its lease, "
            "and no schedule ends one alone"
        )
    if constants.get("Host", _EACH_ITS_OWN) != _EACH_ITS_OWN:
        raise NotExpressible("who asks under which name is not told: EC-15.1/1 is about that")
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
    for event in read(moves, QuotaEvent)[1:]:
        draft.note(f"state {event.number}: {event.action}")
        _take(draft, event, granted)
    _bounds(draft, moves[-1][1], peers, grant_quota - peer_quota, capacity - grant_quota)
    draft.whatever_is_loaded("P", names)
    draft.nothing_is_left()
    return draft


def _take(draft: Draft, event: QuotaEvent, granted: dict[Any, str]) -> None:
    if event.action == "Grant":
        for slot in event.changed("gst"):
            name = granted[slot] = f"g{len(granted) + 1}"
            peer, wanted = str(event.now("who", slot)), str(event.now("what", slot))
            draft.attempt({"ask": "P", "by": peer, "hash": wanted, "name": name})
    elif event.action in ("Ends", "Complete"):
        for slot in event.changed("gst"):
            if event.now("gst", slot) == "completed":
                draft.attempt({"notice": "P", "of": granted[slot]})
    elif event.action == "Save":
        draft.attempt({"store": str(event.before["want"]), "at": "P"})


def _bounds(
    draft: Draft, state: State, peers: list[str], for_another: int, for_the_engine: int
) -> None:
    """What the bounds leave is there while every lease still runs."""
    draft.note("what was stored is not held for its first reader any more")
    draft.must({"advance": "announce_hold_s"})
    asking = {str(peer) for peer in elements(state, "who").values()}
    small = [
        str(name)
        for name, entry in elements(state, "est").items()
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
