# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the data plane's tests: producer processes, readers, regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ec_connector.network.data import NixlReader
from tests.ec_connector.network.data_driver import Producer, Region
from tests.world.processes import several


@pytest.fixture
def producers() -> Iterator[Callable[..., Producer]]:
    with several(Producer, Producer.kill) as start:
        yield start


@pytest.fixture(scope="module")
def shared() -> Iterator[Producer]:
    made = Producer(name="shared", seed=4)
    yield made
    made.kill()


@pytest.fixture
def producer(shared: Producer) -> Iterator[Producer]:
    """One that is neither killed nor replaced; starting one takes a second."""
    shared.tell("poll")
    yield shared
    shared.resume()


@pytest.fixture
def region() -> Region:
    return Region()


@pytest.fixture
def readers() -> Iterator[Callable[..., NixlReader]]:
    def make(region: Region, **options: Any) -> NixlReader:
        options.setdefault("grace_s", 0.0)
        return NixlReader("consumer", region.address, region.nbytes, **options)

    with several(make, NixlReader.close) as one:
        yield one
