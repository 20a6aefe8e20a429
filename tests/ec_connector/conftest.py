# SPDX-License-Identifier: Apache-2.0
"""Fixtures of more than one module here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ec_connector.region.region_driver import Child, private_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as path:
        yield path


@pytest.fixture
def spawn() -> Iterator[Callable[[], Child]]:
    children: list[Child] = []

    def start() -> Child:
        children.append(Child())
        return children[-1]

    yield start
    for child in children:
        child.kill()
