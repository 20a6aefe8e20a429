# SPDX-License-Identifier: Apache-2.0
"""Scenarios: behaviours of the models as schedules that implementations are driven by.

* ``make``: runs a model and makes cases of what it finds. ``expressible``: of which models
  a schedule can show anything. ``files``: the case files.
* ``command``: ``ec-protocol scenario``.
"""
