# SPDX-License-Identifier: Apache-2.0
"""What a rank holds by a stranger's word: it is not saved, and gives way (EC-15.8)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ec_connector.engine.messages import LoadOp, StepMetadata
from tests.ec_connector.engine.test_worker import BLOCK, WIDTH, Rank, encoding, load_op, save_op

pytestmark = pytest.mark.clause("EC-15.8")

EVIL, OTHER = "evil:1", "other:1"
ROWS = 2


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path)
    yield made
    made.worker.shutdown()
    made.region.close(unlink=True)


class Step:
    """Steps of one rank, numbered; what lies in the region, by block."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.number = 0

    def put(self, start: int, value: int) -> None:
        self.rank.region.tensor[start * BLOCK : (start + ROWS) * BLOCK] = value

    def load(self, start: int, stranger: str = "") -> bool:
        """Load ``a`` from there; whether that is reported as landed."""
        self.number += 1
        op: LoadOp = load_op(self.number, "a", start, ROWS, stranger=stranger)
        report = self.rank.step(StepMetadata(self.number, (), (op,)))
        assert report is not None
        return report.entries[0].landed

    @property
    def held(self) -> int:
        """The byte of which all that the rank holds for ``a`` is made."""
        found = set(self.rank.cache["a"].view(torch.uint8).flatten().tolist())
        assert len(found) == 1
        return int(found.pop())


@pytest.fixture
def step(rank: Rank) -> Step:
    made = Step(rank)
    for start, value in ((0, 66), (2, 77), (4, 88)):
        made.put(start, value)
    return made


def test_a_strangers_word_gives_way_to_our_own(step: Step) -> None:
    assert step.load(0, EVIL)
    assert step.held == 66
    assert step.load(2)
    assert step.held == 77


def test_a_strangers_word_gives_way_to_another_strangers(step: Step) -> None:
    step.load(0, EVIL)
    assert step.load(2, OTHER)
    assert step.held == 77
    assert step.load(0, EVIL)
    assert step.held == 66


def test_the_same_word_is_not_loaded_twice(step: Step) -> None:
    step.load(0, EVIL)
    step.put(0, 99)
    assert step.load(0, EVIL)
    assert step.held == 66


def test_our_own_is_kept_whatever_a_stranger_says(step: Step) -> None:
    step.load(2)
    assert step.load(0, EVIL)
    assert step.held == 77
    # And it is not taken for the stranger's from then on.
    assert step.load(4)
    assert step.held == 77


def test_better_none_than_a_strangers_word_where_the_load_fails(step: Step) -> None:
    step.load(0, EVIL)
    bad = load_op(9, "a", 2, ROWS, dtype="no_such_dtype")
    report = step.rank.step(StepMetadata(9, (), (bad,)))
    assert report is not None
    assert not report.entries[0].landed
    assert "a" not in step.rank.cache


@pytest.mark.clause("EC-4.7")
def test_what_a_rank_holds_by_a_strangers_word_is_not_saved_as_ours(step: Step) -> None:
    step.load(0, EVIL)
    rank = step.rank
    metadata = rank.about_mine(StepMetadata(2, (save_op(7, "a", 6, ROWS),)))
    rank.worker.start_save_caches(metadata, rank.cache)
    rank.worker.get_finished()
    assert [(r.copy_id, r.landed) for r in rank.reports()] == [(7, False)]
    assert not rank.region.tensor[6 * BLOCK : 8 * BLOCK].any()


@pytest.mark.clause("EC-4.7")
def test_what_the_encoder_makes_is_ours_again(step: Step) -> None:
    step.load(0, EVIL)
    rank = step.rank
    metadata = rank.about_mine(StepMetadata(2, (save_op(7, "a", 6, ROWS),)))
    rank.worker.start_save_caches(metadata, rank.cache)
    rank.cache["a"] = encoding(ROWS)
    rank.worker.save_caches(rank.cache, "a", metadata)
    rank.worker.get_finished()
    assert [(r.copy_id, r.landed) for r in rank.reports()] == [(7, True)]
    saved = rank.region.tensor[6 * BLOCK : 8 * BLOCK].view(torch.bfloat16)
    assert torch.equal(saved.reshape(ROWS, WIDTH), encoding(ROWS))
    # From here on what is held is everybody's.
    metadata = rank.about_mine(StepMetadata(3, (save_op(8, "a", 8, ROWS),)))
    rank.worker.start_save_caches(metadata, rank.cache)
    rank.worker.get_finished()
    assert [(r.copy_id, r.landed) for r in rank.reports()] == [(8, True)]


def test_what_the_host_has_evicted_is_remembered_by_nobody(step: Step) -> None:
    step.load(0, EVIL)
    step.rank.cache.pop("a")
    step.rank.step(StepMetadata(5, (), (load_op(5, "b", 4, ROWS),)))
    assert not step.rank.worker._strangers
    step.rank.cache["a"] = encoding(ROWS)
    metadata = step.rank.about_mine(StepMetadata(6, (save_op(7, "a", 6, ROWS),)))
    step.rank.worker.start_save_caches(metadata, step.rank.cache)
    step.rank.worker.get_finished()
    assert [(r.copy_id, r.landed) for r in step.rank.reports()] == [(7, True)]
