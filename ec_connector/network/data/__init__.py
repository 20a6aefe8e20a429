# SPDX-License-Identifier: Apache-2.0
"""The data plane: one-sided READs over NIXL between shared regions.

``base`` says what the pump relies on, ``reader`` and ``server`` do it with NIXL,
``library`` records what NIXL was found to do, ``metadata`` keeps what peers send from
reaching the library unchecked. Imported only behind the peer-to-peer gate; ``nixl``
itself only when an agent is made.
"""

from ec_connector.network.data.base import (
    BadAgentMetadata,
    DataPlaneBusy,
    DataPlaneConfigError,
    DataPlaneError,
    DataPlaneReader,
    DataPlaneServer,
    Pieces,
    ReadEvent,
)
from ec_connector.network.data.reader import MAX_GENERATIONS, NixlReader
from ec_connector.network.data.server import NixlServer

__all__ = [
    "MAX_GENERATIONS",
    "BadAgentMetadata",
    "DataPlaneBusy",
    "DataPlaneConfigError",
    "DataPlaneError",
    "DataPlaneReader",
    "DataPlaneServer",
    "NixlReader",
    "NixlServer",
    "Pieces",
    "ReadEvent",
]
