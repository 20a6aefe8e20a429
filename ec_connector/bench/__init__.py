# SPDX-License-Identifier: Apache-2.0
"""Benchmarks beside hand-written baselines, both measured in the same run.

``ec-connector bench [copy|tier|ack|read|startup|all]``. Only ratios say anything about
the code: absolute figures are the machine's. ``docs/performance.md`` has results.

* ``rows``: what a benchmark returns, and the JSON document.
* ``baselines``: what one would write by hand.
* ``traffic``: requests as a multimodal server sees them, and their replay.
* ``tier``, ``copies``, ``startup``, ``ack``, ``read``: the benchmarks.
* ``plots``: pictures of a result.
"""
