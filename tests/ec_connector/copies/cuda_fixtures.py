# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the CUDA tests: a plugin, so that each test module names it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ec_connector.copies.cuda import CudaCopyEngine
from ec_connector.region.shared import SharedRegion
from tests.ec_connector.copies.cuda_kit import open_engine, open_region


@pytest.fixture
def region() -> Iterator[SharedRegion]:
    with open_region() as opened:
        yield opened


@pytest.fixture
def engine(region: SharedRegion) -> Iterator[CudaCopyEngine]:
    with open_engine(region) as made:
        yield made
