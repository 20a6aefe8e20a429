# SPDX-License-Identifier: Apache-2.0
"""Checks recorded traces against the TLA+ specification, with TLC.

* ``fields``: what a record may hold. ``load``: files and folders as runs.
* ``grouping``: which traces belong to one run. ``merge``: its processes in causal order.
* ``tla``: a run as a TLA+ module. ``replay``: has TLC replay it. ``check``: verdicts.
* ``mutants``: wrong copies that must be rejected. ``coverage``: what traces have shown.
* ``command``: ``ec-protocol trace``.

The specification is ``tla/traces/Trace.tla``, the format of a trace ``spec/TRACE.md``.
"""
