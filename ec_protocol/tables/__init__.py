# SPDX-License-Identifier: Apache-2.0
"""What may follow what: the tables of ``spec/``, and the machines made of them.

* ``files``: where ``spec/`` and ``tla/`` lie.
* ``lifecycle``: the state tables, loaded and checked.
* ``machines``: one ``transitions.Machine`` per lifecycle.
* ``dispatch``: the fast dispatcher compiled from those machines.
* ``timing``: timers and the inequalities between them.
"""
