# SPDX-License-Identifier: Apache-2.0
"""Peer-to-peer, behind ``ec_enable_nixl``: imported only there.

What data processes (``processes``) do their work with, and the engine never imports.

* ``control``: ZMQ. ``data``: NIXL. ``names``: host names, looked up off the I/O loop.
* ``publisher``: events. ``stats``: what one process has met.
"""
