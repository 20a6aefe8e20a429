# SPDX-License-Identifier: Apache-2.0
"""Mutants of the lifecycle tables and of the core: does anything notice what is wrong?

``operators`` makes the mutants, one change each, mechanically. ``models`` gives
each to the TLA+ models whose table it is and reports which property objects;
``core`` gives it to the Python core and reports which test does. ``edits`` and
``source`` make mutants of the core's source for the same tests. A mutant that nothing
notices is either explained in ``tla/mutants.json`` or a hole.
"""
