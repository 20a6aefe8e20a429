# SPDX-License-Identifier: Apache-2.0
"""Benchmarks beside hand-written baselines, both measured in the same run.

``ec-connector bench [copy|core|tier|ack|read|startup|processes|all]``. Only ratios say
anything about the code: absolute figures are the machine's. ``docs/performance.md`` has
results.

* ``rows``: what a benchmark returns, and the JSON document.
* ``baselines``: what one would write by hand.
* ``traffic``: requests as a multimodal server sees them, and their replay.
* ``tier``, ``copies``, ``core``, ``startup``, ``ack``, ``read``, ``processes``: the benchmarks.
* ``plots``: pictures of a result.
* ``deaths``, ``deaths_engines``, ``deaths_report``: many deaths of data processes under load,
  which must do no harm. It is asked for by name: ``ec-connector bench deaths``.
"""
