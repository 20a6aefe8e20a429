# SPDX-License-Identifier: Apache-2.0
"""The switch interval is lowered while a pump runs, and put back after the last."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from ec_connector.network.switching import INTERVAL, prompt_switching


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


def test_the_last_one_puts_it_back() -> None:
    with prompt_switching():
        with prompt_switching():
            assert sys.getswitchinterval() == pytest.approx(INTERVAL)
        assert sys.getswitchinterval() == pytest.approx(INTERVAL)
    assert sys.getswitchinterval() == pytest.approx(0.005)


def test_it_is_never_made_longer() -> None:
    sys.setswitchinterval(INTERVAL / 4)
    with prompt_switching():
        assert sys.getswitchinterval() == pytest.approx(INTERVAL / 4)


def test_an_error_puts_it_back_too() -> None:
    with pytest.raises(KeyError), prompt_switching():
        raise KeyError
    assert sys.getswitchinterval() == pytest.approx(0.005)
