# SPDX-License-Identifier: Apache-2.0
"""Data processes: what touches the network, outside the engine's process (EC-14).

``engine``    the engine's end: lends, hears, proves; never waits
``parent``    a small process that starts, watches and kills the others; the engine has it
              as ``parent_process``
``server``    grants what the engine offers, over a read-only mapping
``reader``    fetches into blocks that the engine lends, over a writable one

``channel``, ``memory``, ``locks`` and ``spawn`` are what they stand on. Imported only
behind the peer-to-peer gate (EC-12.2, EC-14.1).
"""
