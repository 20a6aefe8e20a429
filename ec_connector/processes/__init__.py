# SPDX-License-Identifier: Apache-2.0
"""Data processes: what touches the network, outside the engine's process (EC-14).

``engine``    the engine's end: starts the parent, lends, hears; never waits
``parent``    a small process that starts, watches and kills the others
``server``    grants what the engine offers, over a read-only mapping
``reader``    fetches into blocks that the engine lends, over a writable one

``channel``, ``memory``, ``locks`` and ``spawn`` are what they stand on. Imported only
behind the peer-to-peer gate (EC-12.2, EC-14.1).
"""
