# SPDX-License-Identifier: Apache-2.0
"""Sans-I/O core of the encoder-cache connector.

Nothing in here opens a socket, maps memory, starts a thread or reads a clock:
callers pass the time in and carry out the commands that come back. Every change
of state goes through a dispatcher compiled from the tables in
``spec/lifecycle.toml``.

Modules, in reading order:

* ``lifecycle``: the tables, loaded and checked.
* ``machines``: one ``transitions.Machine`` per lifecycle.
* ``dispatch``: the fast dispatcher compiled from those machines.
* ``timing``: timers and the inequalities between them.
* ``extents``, ``entry``, ``tier``, ``copies``: the local tier.
* ``wire``, ``commands``, ``peers``, ``consumer``, ``producer``: peer-to-peer
  (the only modules that are imported behind the peer-to-peer gate).
* ``trace``: records every action for validation against the TLA+ spec.
* ``tlc``, ``cli``: tooling; never imported by the above.
"""

__version__ = "0.1.0"
