# SPDX-License-Identifier: Apache-2.0
"""Sans-I/O core of the encoder-cache connector: the protocol, and nothing else.

Nothing in here opens a socket, maps memory, starts a thread or reads a clock: a shell
passes the time in and carries out the commands that come back. Every change of state
goes through a dispatcher compiled from the tables in ``spec/lifecycle.toml``.

``Node`` is the front door: the whole protocol state of one process. Behind it:

* ``tables``: what may follow what, loaded from ``spec/``.
* ``tier``: encodings in one region, copies, holds, an engine's step.
* ``p2p``: reads from other instances and grants to them; imported only where a node
  has ``Peering``.
* ``items``, ``announcements``: what a request needs, and what is said of encodings.
* ``trace``: records every action for validation against the TLA+ specification.
* ``errors``: ``LocalProtocolError`` is our mistake, ``RemoteProtocolError`` a peer's.

``docs/build-a-connector.md`` builds a connector on it.
"""

from ec_protocol.engine import Availability, Engine, Role
from ec_protocol.errors import (
    ConfigError,
    ECError,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
)
from ec_protocol.items import Item, make_item
from ec_protocol.node import Node
from ec_protocol.parts import Peering
from ec_protocol.tables.timing import Timing
from ec_protocol.tier.copies import Copy
from ec_protocol.trace import NdjsonSink, Trace

__version__ = "0.1.0"

__all__ = [
    "Availability",
    "ConfigError",
    "Copy",
    "ECError",
    "Engine",
    "Item",
    "LocalProtocolError",
    "NdjsonSink",
    "Node",
    "Peering",
    "ProtocolError",
    "RemoteProtocolError",
    "Role",
    "Timing",
    "Trace",
    "make_item",
]
