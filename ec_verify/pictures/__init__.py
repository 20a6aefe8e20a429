# SPDX-License-Identifier: Apache-2.0
"""Sequence diagrams of counterexamples, traces and scenarios: ``ec-protocol explain``.

* ``source``: finds out what was named. ``from_tlc``, ``from_trace``, ``from_history``:
  make a story (``ec_verify.behaviours.story``) of it. ``verdict``: what the specification
  says of a trace.
* ``layout``, ``svg``: draw a story. ``page``: an HTML page to step through.
"""
