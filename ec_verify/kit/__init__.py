# SPDX-License-Identifier: Apache-2.0
"""The conformance kit: plays schedules against anybody's encoder-cache connector.

* ``adapter``: what an implementation has to offer. ``stdio``: the same over pipes.
* ``language``: the schedules of ``spec/SCENARIOS.md``, and the clauses that they cite.
* ``world``: everything around the implementation, simulated and watched. ``play``: carries
  schedules out in it. ``runner``: gives verdicts.
* ``walks``: random schedules. ``walk_failures``: what becomes of those that fail.
* ``faults``: whether seeded faults are caught. ``compare``: two runs side by side.
* ``command``, ``tables``, ``reports``: ``ec-protocol conformance``. ``pytest_plugin``.
"""
