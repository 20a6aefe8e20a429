# SPDX-License-Identifier: Apache-2.0
"""The encoder-cache connector: real I/O around ``ec_protocol.Node``.

Importing this package imports nothing else. Only what stands behind the peer-to-peer
gate imports nixl, zmq or msgspec.

* ``config``: ``ec_connector_extra_config``, checked; the reference of its keys.
* ``region``: the file in shared memory.
* ``copies``: between device and region.
* ``engine``: the two halves that the host calls.
* ``instance``: puts a scheduler process together. ``metrics``: what it counts.
* ``network``, ``events``: peer-to-peer, behind ``ec_enable_nixl``.
* ``vllm``, ``proxy``: what it plugs into.
* ``demo``, ``bench``, ``cli``: programs.
"""
