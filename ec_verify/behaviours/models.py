# SPDX-License-Identifier: Apache-2.0
"""Which model a behaviour is of, and what reads, draws and plays it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ec_verify.behaviours import fleet, peer, peer_read, peer_read_schedule, quota, tier
from ec_verify.behaviours.picture import Picture
from ec_verify.behaviours.reading import Event, Move, State, read
from ec_verify.behaviours.schedule import Draft
from ec_verify.behaviours.story import Story


class _Schedule(Protocol):
    def __call__(
        self, moves: Sequence[Move], constants: Mapping[str, str] | None = None, broken: str = ""
    ) -> Draft:
        """The schedule of a behaviour.

        Args:
            moves: The behaviour.
            constants: Of the model's config, by name.
            broken: The property that its last step broke.

        Raises:
            NotExpressible: It has a step that the schedule language does not have.
        """


@dataclass(frozen=True, slots=True)
class Model:
    """What is known of a model.

    Attributes:
        event: Reads a step of its behaviours.
        picture: Draws them.
        schedule: Makes schedules of them; None if they say nothing about schedules.
    """

    event: type[Event]
    picture: type[Picture[Any]]
    schedule: _Schedule | None


_MODELS: Final = (
    Model(peer_read.PeerReadEvent, peer_read.PeerReadPicture, peer_read_schedule.schedule),
    Model(tier.TierEvent, tier.TierPicture, tier.schedule),
    Model(peer.PeerEvent, peer.PeerPicture, peer.schedule),
    Model(fleet.FleetEvent, fleet.FleetPicture, fleet.schedule),
    Model(quota.QuotaEvent, Picture, quota.schedule),
    Model(Event, Picture, None),
)


def model_of(state: State) -> Model:
    """The model that has all variables of a state; in doubt, one of which nothing is known."""
    return next(model for model in _MODELS if model.event.needs <= state.keys())


def draw(moves: Sequence[Move], story: Story) -> None:
    """Add the steps of a behaviour to a story."""
    model = model_of(moves[0][1])
    picture = model.picture(story, moves[0][1])
    for event in read(moves, model.event):
        picture.add(event)
