# SPDX-License-Identifier: Apache-2.0
"""What the pump's thread is to make: the ends that a node's commands are carried out on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq

from ec_connector.network.data.base import DataPlaneReader, DataPlaneServer
from ec_connector.network.publisher import EventPublisher

#: Makes the publisher of events, given the context and the address that is bound.
EventsFactory = Callable[["zmq.Context[Any]", tuple[str, int] | None], EventPublisher]


@dataclass(slots=True)
class Planes:
    """Factories of data plane and publisher, called on the pump's thread.

    Attributes:
        reader: Makes the reading side's data plane; needed where the node reads.
        server: Makes the serving side's; needed where the node grants.
        bind: Host and port of the control socket; needed where the node grants.
        events: Makes the publisher; None publishes none.
    """

    reader: Callable[[], DataPlaneReader] | None = None
    server: Callable[[], DataPlaneServer] | None = None
    bind: tuple[str, int] | None = None
    events: EventsFactory | None = None
