# SPDX-License-Identifier: Apache-2.0
"""Formal tooling: generated TLA+, the model manifest, the TLC runner.

Modules, each usable alone:

* `tables`: `spec/lifecycle.toml` as plain frozen data, for the tools below.
* `lifecycle_tla`: writes `tla/Lifecycle.tla` from it.
* `diagrams`: writes the mermaid diagrams and tables of the documentation.
* `manifest`: reads and validates `tla/manifest.json`.
* `java`: finds a Java and the TLC jar.
* `output`: parses what TLC prints with `-tool`.
* `runner`: runs one model in a folder of its own.
* `edges`: compares a dumped state graph with the tables.
* `check`: runs a set of models and judges each against the manifest.

Nothing here is imported by the protocol core, and none of it imports more
than the standard library: the terminal layer lives in `ec_protocol.cli`.
"""
