# SPDX-License-Identifier: Apache-2.0
"""The data plane: one-sided READs over NIXL between shared regions.

``base`` says what a data process relies on, ``reader`` and ``server`` do it with NIXL,
``library`` records what NIXL was found to do, ``metadata`` keeps what peers send from
reaching the library unchecked. Imported only behind the peer-to-peer gate; ``nixl``
itself only when an agent is made.
"""

from ec_connector.network.data.base import (
    BadAgentMetadata,
    DataPlaneConfigError,
    DataPlaneError,
    DataPlaneReader,
    DataPlaneServer,
    Pieces,
    ReadEvent,
)
from ec_connector.network.data.reader import NixlReader
from ec_connector.network.data.server import NixlServer

__all__ = [
    "BadAgentMetadata",
    "DataPlaneConfigError",
    "DataPlaneError",
    "DataPlaneReader",
    "DataPlaneServer",
    "NixlReader",
    "NixlServer",
    "Pieces",
    "ReadEvent",
]
