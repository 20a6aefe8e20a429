# SPDX-License-Identifier: Apache-2.0
"""Peer-to-peer: reads from other instances, and grants to them.

Imported only behind the peer-to-peer gate: ``wire`` needs ``msgspec``.

* ``wire``: the messages.
* ``commands``: what the shell is to do.
* ``peers``: one remote endpoint incarnation each.
* ``attempt``, ``attempts``, ``acks``: what is tried to READ, and how it ends.
* ``fetches``: what is read for whom; applies how attempts end.
* ``grants``: what this instance lets others read.
"""
