# SPDX-License-Identifier: Apache-2.0
"""The encoder-cache connector: real I/O around the sans-I/O core of ``ec_protocol``.

Importing this package imports nothing else. The local tier (all but the last group)
never imports nixl, zmq or msgspec.

Settings and messages:

* ``config``: ``ec_connector_extra_config``, checked; the reference of its keys.
* ``messages``: what scheduler and workers tell each other each step.
* ``items``, ``params``: what a request is made of and what it says about encodings
  elsewhere, checked.

The shared region:

* ``region``: ``SharedRegion``, what everybody else uses.
* ``region_open``: create, join, reap or wait.
* ``region_file``, ``region_header``: the file, its locks and its trailer.
* ``region_memory``: room for it, and its pages.
* ``guard``: the tiny process that cleans up after a SIGKILL of all others.
* ``region_errors``: what can go wrong.

Copies:

* ``copy_engine``: what an engine owes; ``copy_cpu``: host memory.

The two halves that the host calls:

* ``scheduler``: decides. ``worker``: copies and reports.
* ``instance``: puts a scheduler process together.

Peer-to-peer, behind ``ec_enable_nixl``:

* ``control`` (ZMQ), ``data`` (NIXL), ``pump`` (the thread that owns both), ``p2p``.
"""
