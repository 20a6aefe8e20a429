# SPDX-License-Identifier: Apache-2.0
"""Everything that proves: nothing of it runs in a server.

* ``models``: TLC over ``tla/``. ``mutants``: changes that must be noticed.
* ``traces``: recorded runs against the specification.
* ``behaviours``: behaviours of the models, read once. ``pictures``: drawn.
  ``scenarios``: as schedules for implementations.
* ``kit``: the conformance kit. ``adapters``: ours, and vLLM's built-in connector.
* ``cli``: the ``ec-protocol`` command.
"""
