# SPDX-License-Identifier: Apache-2.0
"""Formal tooling: generated TLA+, the model manifest, the TLC runner.

Modules, in reading order:

* ``lifecycle_tla``: writes ``tla/Lifecycle.tla`` from the lifecycle tables.
* ``timing_tla``: writes ``tla/Timing.tla`` from the inequalities between timers.
* ``generated``: what these two share.
* ``diagrams``: writes the diagrams and tables of the documentation.
* ``cfg``: reads the parts of a TLC config that the manifest is checked against.
* ``manifest``: reads, checks and re-pins ``tla/manifest.json``.
* ``java``: finds a Java and the TLC jar.
* ``output``: turns what TLC prints with ``-tool`` into data.
* ``values``: shows how a printed value changed.
* ``graph``: reads a dumped state graph.
* ``edges``: compares such a graph with the tables.
* ``runner``: runs TLC in a folder of its own.
* ``check``: runs a set of models and judges each against the manifest.

The protocol core imports none of this, and none of this imports more than the
standard library and the core's tables: the terminal layer is ``ec_verify.cli``.
"""
