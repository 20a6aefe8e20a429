# SPDX-License-Identifier: Apache-2.0
"""Shared by all tests: how hypothesis runs.

A failing example prints the blob that reproduces it. ``HYPOTHESIS_PROFILE=thorough``
looks longer; ``pytest --hypothesis-seed=N`` repeats a run.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "ec",
    print_blob=True,
    # One slow example on a busy machine is no fault of the code under test.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", parent=settings.get_profile("ec"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ec"))
