# SPDX-License-Identifier: Apache-2.0
"""Mutants of the lifecycle tables and of the core: does anything notice what is wrong?

* ``operators``: the mutants, one change each, made mechanically. ``models`` gives each to
  the TLA+ models whose table it is, ``core`` to the tests of the Python core.
* ``edits``, ``source``: mutants of the core's source. ``trials``: the same tests on many
  changes; ``trial_process``: one of them; ``callers``: which tests come to a function.
* ``safeguards``: those that a config removes. ``explanations``: why a survivor is none.
* ``command``: ``ec-protocol mutants``.

A mutant that nothing notices is either explained in ``tla/mutants.json`` or a hole.
"""
