# SPDX-License-Identifier: Apache-2.0
"""Checks recorded traces against the TLA+ specification, with TLC.

``fields`` says what a record may hold, ``load`` reads files and folders into runs,
``merge`` orders the processes of one run by causality, ``tla`` writes a run as a
TLA+ module, ``replay`` has TLC replay it, ``mutants`` makes wrong copies that must
be rejected, ``cli`` is ``ec-protocol trace``. The specification itself is
``tla/traces/Trace.tla``; the format of a trace is in ``spec/TRACE.md``.
"""
