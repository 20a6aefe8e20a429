# SPDX-License-Identifier: Apache-2.0
"""``ec_connector_extra_config``, checked.

* ``keys``: the one table of what it may say. ``values``: parses each kind of value.
* ``settings``: checks the whole; makes the reference of its keys.
"""
