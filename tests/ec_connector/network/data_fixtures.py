# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the data plane's tests: producer processes, readers, regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ec_connector.network.data import NixlReader
from tests.ec_connector.network.data_driver import Producer, Region


@pytest.fixture
def producers() -> Iterator[Callable[..., Producer]]:
    made: list[Producer] = []

    def make(*args, **kwargs) -> Producer:
        made.append(Producer(*args, **kwargs))
        return made[-1]

    yield make
    for producer in made:
        producer.kill()


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
    made: list[NixlReader] = []

    def make(region: Region, **kwargs) -> NixlReader:
        made.append(NixlReader("consumer", region.address, region.nbytes, **kwargs))
        return made[-1]

    yield make
    for reader in made:
        reader.close()
