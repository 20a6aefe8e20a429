# SPDX-License-Identifier: Apache-2.0
"""A producer and a consumer with all their processes, for a module's tests.

Both are started once. A test leaves them complete again, whatever it has done to them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.needs import needs

needs("nixl", "zmq")


from tests.ec_connector.processes.alive import (
    wait_complete,
)
from tests.ec_connector.processes.arriving import MARK
from tests.world.instance import Node

#: A busy machine may take long to start a process, and must not take it for one that stands.
#: Here they die one after the other, and each death is to be as the first after a while.
PATIENT = {"data_start_s": 120.0, "data_stall_s": 4.0, "data_lived_s": 0.001}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    mark = os.open(tmp_path_factory.mktemp("mark") / MARK, os.O_CREAT | os.O_RDWR)
    os.set_inheritable(mark, True)
    with Node("ec_producer", extra=PATIENT) as producer, Node("ec_consumer", extra=PATIENT) as c:
        wait_complete(producer)
        wait_complete(c)
        yield producer, c
    os.close(mark)


@pytest.fixture
def producer(pair: tuple[Node, Node]) -> Iterator[Node]:
    yield pair[0]
    wait_complete(pair[0])


@pytest.fixture
def consumer(pair: tuple[Node, Node]) -> Iterator[Node]:
    yield pair[1]
    wait_complete(pair[1])
