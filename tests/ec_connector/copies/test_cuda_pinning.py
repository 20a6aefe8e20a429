# SPDX-License-Identifier: Apache-2.0
"""Page-locking in chunks, without a GPU: who is asked for what, and where copies are cut."""

from __future__ import annotations

import pytest

from ec_connector.copies import cuda_pinning
from ec_connector.copies.cuda_pinning import Pinning, Span

PAGE = 4096
BASE = 1 << 40


class Runtime:
    """Stands in for CUDA's runtime."""

    def __init__(self) -> None:
        self.refused: set[int] = set()
        self.broken = False
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        if self.broken:
            raise RuntimeError("no driver")
        if address in self.refused:
            return 2
        self.locked[address] = nbytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    made = Runtime()
    monkeypatch.setattr(cuda_pinning, "_cudart", lambda: made)
    return made


def test_a_region_is_locked_in_chunks(runtime):
    pinning = Pinning(BASE, 10 * PAGE + 5, 4 * PAGE)
    assert runtime.locked == {
        BASE: 4 * PAGE,
        BASE + 4 * PAGE: 4 * PAGE,
        BASE + 8 * PAGE: 2 * PAGE + 5,
    }
    assert pinning.pinned_bytes == 10 * PAGE + 5
    pinning.release()
    assert runtime.locked == {}
    pinning.release()


def test_a_chunk_that_is_refused_stays_as_it_is(runtime, caplog):
    runtime.refused = {BASE + 4 * PAGE}
    pinning = Pinning(BASE, 12 * PAGE, 4 * PAGE)
    assert [chunk.pinned for chunk in pinning.chunks] == [True, False, True]
    assert pinning.pinned_bytes == 8 * PAGE
    assert "ulimit -l" in caplog.text
    pinning.release()
    assert runtime.locked == {}


def test_a_runtime_that_raises_is_a_refusal(runtime):
    runtime.broken = True
    assert Pinning(BASE, PAGE).pinned_bytes == 0


def test_copies_are_cut_where_chunks_meet(runtime):
    runtime.refused = {BASE + 4 * PAGE}
    pinning = Pinning(BASE, 12 * PAGE, 4 * PAGE)
    assert pinning.cut(0, 4 * PAGE) == [Span(0, 4 * PAGE, True)]
    assert pinning.cut(5 * PAGE, 7) == [Span(5 * PAGE, 7, False)]
    assert pinning.cut(4 * PAGE - 1, 4 * PAGE + 2) == [
        Span(4 * PAGE - 1, 1, True),
        Span(4 * PAGE, 4 * PAGE, False),
        Span(8 * PAGE, 1, True),
    ]


@pytest.mark.parametrize("size", [0, -PAGE, PAGE + 1])
def test_chunks_are_whole_pages(size):
    with pytest.raises(ValueError, match=f"chunk_bytes={size}"):
        Pinning(BASE, PAGE, size)
