# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the interop tests: processes and nodes that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from tests.needs import needs

needs("nixl", "zmq")

from tests.interop.driver import Builtin, Dealer, Ours
from tests.world.processes import several

Made = TypeVar("Made", Builtin, Dealer, Ours)
Factory = Callable[..., Made]


@pytest.fixture
def builtins() -> Iterator[Factory[Builtin]]:
    with several(Builtin, Builtin.close) as make:
        yield make


@pytest.fixture
def ours() -> Iterator[Factory[Ours]]:
    with several(Ours, Ours.close) as make:
        yield make


@pytest.fixture
def dealers() -> Iterator[Factory[Dealer]]:
    with several(Dealer, Dealer.close) as make:
        yield make


@pytest.fixture
def their_producer(builtins: Factory[Builtin]) -> Builtin:
    return builtins("ec_producer")


@pytest.fixture
def their_consumer(builtins: Factory[Builtin]) -> Builtin:
    return builtins("ec_consumer")


@pytest.fixture
def our_producer(ours: Factory[Ours]) -> Ours:
    return ours("ec_producer")


@pytest.fixture
def our_consumer(ours: Factory[Ours]) -> Ours:
    return ours("ec_consumer")
