# SPDX-License-Identifier: Apache-2.0
"""Fixtures of more than one module here."""

from __future__ import annotations

import pytest

from tests.world.core import World


@pytest.fixture
def world() -> World:
    """A consumer and a producer of 16 blocks, with the times that they have by default."""
    return World()
