# SPDX-License-Identifier: Apache-2.0
"""Fixtures of more than one module here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ec_connector.region.region_driver import Child, private_folder
from tests.world.processes import several


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as path:
        yield path


@pytest.fixture
def spawn() -> Iterator[Callable[[], Child]]:
    with several(Child, Child.kill) as start:
        yield start
