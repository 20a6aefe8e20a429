# SPDX-License-Identifier: Apache-2.0
"""Peer-to-peer, behind ``ec_enable_nixl``: imported only there.

* ``p2p``: puts the peer-to-peer half together.
* ``pump``: the thread that owns sockets and agent; ``turn``: one turn of it;
  ``serving``: the producer's share; ``switching``: how soon it gets the interpreter.
* ``control``: ZMQ. ``data``: NIXL.
"""
