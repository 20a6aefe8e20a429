# SPDX-License-Identifier: Apache-2.0
"""Formal tooling: generated TLA+, the model manifest, the TLC runner.

Modules, in reading order:

* ``generate``: writes ``tla/common/Lifecycle.tla`` and ``Timing.tla`` from the tables, and
  the diagrams and tables of the documentation.
* ``config``: a TLC config, and its text.
* ``model``: one model, and what it must show.
* ``declared``: reads ``models.toml``, in which models share what they have in common.
* ``modules``: finds the TLA+ modules in their folders.
* ``manifest``: all models with their pins; checks them against the files, writes new pins.
* ``errors``: what is wrong with any of these.
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
