# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the interop tests: processes and nodes that end with their test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from tests.needs import needs

needs("nixl", "zmq")

from tests.interop.driver import Builtin, Dealer, Ours

Made = TypeVar("Made", Builtin, Dealer, Ours)
Factory = Callable[..., Made]


@contextlib.contextmanager
def closing(kind: type[Made]) -> Iterator[Factory[Made]]:
    with contextlib.ExitStack() as stack:

        def make(*arguments: Any, **options: Any) -> Made:
            made = kind(*arguments, **options)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def builtins() -> Iterator[Factory[Builtin]]:
    with closing(Builtin) as make:
        yield make


@pytest.fixture
def ours() -> Iterator[Factory[Ours]]:
    with closing(Ours) as make:
        yield make


@pytest.fixture
def dealers() -> Iterator[Factory[Dealer]]:
    with closing(Dealer) as make:
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
