# SPDX-License-Identifier: Apache-2.0
"""The worker delegate: every copy of the metadata is reported once by each rank that takes part."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ec_connector.config.settings import ECConfig
from ec_connector.copies import cpu as copy_cpu
from ec_connector.copies.cpu import CpuCopyEngine
from ec_connector.engine.messages import CopyReport, LoadOp, SaveOp, StepMetadata, WorkerReport
from ec_connector.engine.worker import ECWorker
from ec_connector.region.errors import RegionIdentityError
from ec_connector.region.shared import SharedRegion
from ec_protocol.errors import ConfigError
from ec_protocol.tier.copies import CopyTable
from ec_protocol.tier.encodings import EncodingTier
from tests import ROOT
from tests.ec_connector.copies.kit import Broken, Gate
from tests.recording import played

BLOCKS, BLOCK = 32, 128  # a block is a row of 64 bf16 numbers
WIDTH = 64
CONFIG = ECConfig.parse({"ec_cpu_bytes": BLOCKS * BLOCK}, "ec_both")


class Rank:
    """One rank with a mapping, an engine and an encoder cache of its own."""

    def __init__(self, folder: Path, rank: int = 0, world_size: int = 1, **more: Any) -> None:
        self.region = SharedRegion.open("t", 0, BLOCKS, BLOCK, directory=str(folder), guard=False)
        self.engine = CpuCopyEngine(self.region)
        self.worker = ECWorker(CONFIG, self.region, self.engine, rank, world_size, **more)
        self.cache: dict[str, torch.Tensor] = {}

    def step(
        self, metadata: StepMetadata, encoded: dict[str, torch.Tensor] | None = None
    ) -> WorkerReport | None:
        """The hooks of one engine step in the host's order; returns what was reported."""
        self.begin(metadata, encoded)
        return self.worker.build_connector_worker_meta()

    def begin(self, metadata: StepMetadata, encoded: dict[str, torch.Tensor] | None = None) -> None:
        metadata = self.about_mine(metadata)
        self.worker.start_save_caches(metadata)
        self.worker.start_load_caches(self.cache, metadata)
        for mm_hash, tensor in (encoded or {}).items():
            self.cache[mm_hash] = tensor
            self.worker.save_caches(self.cache, mm_hash, metadata)
        assert self.worker.get_finished(set()) == (None, None)

    def about_mine(self, metadata: StepMetadata) -> StepMetadata:
        """The same step, of a scheduler that has this rank's region."""
        return dataclasses.replace(metadata, region=self.region.identity)

    def reports(self) -> list[CopyReport]:
        """Every report that is still owed."""
        found: list[CopyReport] = []
        while self.worker.has_pending:
            report = self.worker.build_connector_worker_meta()
            found += report.entries if report is not None else ()
        return found

    def close(self) -> None:
        self.worker.shutdown()
        self.region.close(unlink=True)


@pytest.fixture
def one(folder: Path) -> Iterator[Rank]:
    rank = Rank(folder)
    yield rank
    rank.close()


def encoding(rows: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((rows, WIDTH), generator=generator).to(torch.bfloat16)


def save_op(copy_id: int, mm_hash: str, start: int, rows: int) -> SaveOp:
    return SaveOp(copy_id, mm_hash, ((start, rows),), rows * BLOCK)


def load_op(copy_id: int, mm_hash: str, start: int, rows: int, **more: Any) -> LoadOp:
    fields: dict[str, Any] = {"shape": (rows, WIDTH), "dtype": "bfloat16", **more}
    return LoadOp(copy_id, mm_hash, ((start, rows),), rows * BLOCK, **fields)


# ------------------------------------------------------------------------ main job
def test_save_then_load_gives_the_same_bits(one):
    a, b = encoding(3, 1), encoding(5, 2)
    one.begin(StepMetadata(1, (save_op(1, "a", 0, 3), save_op(2, "b", 3, 5))), {"a": a, "b": b})
    assert sorted(one.reports(), key=lambda r: r.copy_id) == [
        CopyReport(1, 0, True),
        CopyReport(2, 0, True),
    ]
    one.cache.clear()
    metadata = one.about_mine(StepMetadata(2, (), (load_op(3, "a", 0, 3), load_op(4, "b", 3, 5))))
    one.worker.start_save_caches(metadata)
    one.worker.start_load_caches(one.cache, metadata)
    # The model may read now.
    assert torch.equal(one.cache["a"], a)
    assert torch.equal(one.cache["b"], b)
    assert one.cache["a"].dtype == torch.bfloat16
    one.worker.get_finished()
    assert {r.copy_id for r in one.reports()} == {3, 4}
    assert one.worker.build_connector_worker_meta() is None


def test_a_step_without_copies_reports_nothing(one):
    assert one.step(StepMetadata(1)) is None
    assert not one.worker.has_pending


def test_a_load_in_the_cache_already_is_landed_without_a_copy(one):
    mine = encoding(3)
    one.cache["a"] = mine
    report = one.step(StepMetadata(1, (), (load_op(1, "a", 0, 3),)))
    assert report == WorkerReport((CopyReport(1, 0, True),))
    assert one.cache["a"] is mine
    assert one.engine.pending == 0


def test_outputs_that_the_step_does_not_save_are_left_alone(one):
    report = one.step(StepMetadata(1), {"a": encoding(3)})
    assert report is None
    assert not one.region.tensor.any()


def test_an_output_offered_twice_is_saved_once(one: Rank) -> None:
    metadata = one.about_mine(StepMetadata(1, (save_op(1, "a", 0, 3),)))
    one.worker.start_save_caches(metadata)
    one.cache["a"] = encoding(3)
    one.worker.save_caches(one.cache, "a", metadata)
    one.worker.save_caches(one.cache, "a", metadata)
    one.worker.get_finished()
    assert one.reports() == [CopyReport(1, 0, True)]


def test_all_saves_of_a_step_are_one_submission(one, monkeypatch):
    batches: list[list[int]] = []
    real = one.engine.submit_saves

    def submit(batch: Any) -> None:
        batches.append([job.copy_id for job in batch])
        real(batch)

    monkeypatch.setattr(one.engine, "submit_saves", submit)
    saves = tuple(save_op(i, f"h{i}", i, 1) for i in range(6))
    one.begin(StepMetadata(1, saves), {op.mm_hash: encoding(1, op.copy_id) for op in saves})
    one.begin(StepMetadata(2))
    assert batches == [[0, 1, 2, 3, 4, 5]]


# -------------------------------------------------------------------- what goes wrong
@pytest.mark.clause("EC-4.3")
def test_a_planned_save_whose_encoder_never_ran_is_reported(one):
    metadata = StepMetadata(1, (save_op(1, "a", 0, 3), save_op(2, "b", 3, 5)))
    one.begin(metadata, {"b": encoding(5)})
    assert sorted(one.reports(), key=lambda r: r.copy_id) == [
        CopyReport(1, 0, False),
        CopyReport(2, 0, True),
    ]
    assert not one.region.tensor[: 3 * BLOCK].any()


@pytest.mark.clause("EC-4.7")
def test_what_the_host_holds_already_is_saved_at_once(one: Rank) -> None:
    metadata = one.about_mine(StepMetadata(1, (save_op(1, "a", 0, 3), save_op(2, "b", 3, 5))))
    one.cache["a"] = encoding(3)
    one.worker.start_save_caches(metadata, one.cache)
    # A host that encodes it all the same changes nothing.
    one.worker.save_caches(one.cache, "a", metadata)
    one.worker.get_finished()
    assert {(r.copy_id, r.landed) for r in one.reports()} == {(1, True), (2, False)}
    saved = one.region.tensor[: 3 * BLOCK].view(torch.bfloat16)
    assert torch.equal(saved.reshape(3, WIDTH), encoding(3))


@pytest.mark.clause("EC-4.3")
def test_a_step_given_up_half_way_is_settled_by_the_next(one: Rank) -> None:
    metadata = one.about_mine(StepMetadata(1, (save_op(1, "a", 0, 3), save_op(2, "b", 3, 5))))
    one.worker.start_save_caches(metadata)
    one.cache["a"] = encoding(3)
    one.worker.save_caches(one.cache, "a", metadata)
    assert one.worker.has_pending
    one.begin(StepMetadata(2, (save_op(3, "c", 8, 1),)), {"c": encoding(1)})
    assert {(r.copy_id, r.landed) for r in one.reports()} == {(1, True), (2, False), (3, True)}


def test_an_output_that_is_not_in_the_cache_is_reported(one: Rank) -> None:
    metadata = one.about_mine(StepMetadata(1, (save_op(1, "a", 0, 3),)))
    one.worker.start_save_caches(metadata)
    one.worker.save_caches(one.cache, "a", metadata)
    one.worker.get_finished()
    assert one.reports() == [CopyReport(1, 0, False)]


def test_an_output_of_another_size_is_reported_and_not_written(one):
    one.begin(StepMetadata(1, (save_op(1, "a", 0, 3),)), {"a": encoding(4)})
    assert one.reports() == [CopyReport(1, 0, False)]
    assert not one.region.tensor.any()


def test_one_hash_planned_twice_in_a_step_is_reported_twice(one):
    metadata = StepMetadata(1, (save_op(1, "a", 0, 3), save_op(2, "a", 3, 3)))
    one.begin(metadata, {"a": encoding(3)})
    assert {(r.copy_id, r.landed) for r in one.reports()} == {(1, True), (2, False)}


@pytest.mark.parametrize(
    "bad",
    [
        load_op(1, "a", 0, 3, dtype="no_such_dtype"),
        load_op(1, "a", 0, 3, dtype="nn"),
        load_op(1, "a", 0, 3, shape=(-1, WIDTH)),
        load_op(1, "a", 0, 3, shape=(4, WIDTH)),
        load_op(1, "a", BLOCKS, 3),
    ],
    ids=["unknown dtype", "not a dtype", "impossible shape", "other size", "outside"],
)
def test_a_load_that_cannot_be_made_is_reported_and_the_others_are_loaded(one, bad):
    good = encoding(2)
    one.begin(StepMetadata(1, (save_op(9, "b", 5, 2),)), {"b": good})
    one.reports()
    one.cache.clear()
    one.begin(StepMetadata(2, (), (bad, load_op(2, "b", 5, 2))))
    assert {(r.copy_id, r.landed) for r in one.reports()} == {(1, False), (2, True)}
    assert "a" not in one.cache
    assert torch.equal(one.cache["b"], good)


def test_a_failed_copy_is_reported(one, monkeypatch):
    monkeypatch.setattr(copy_cpu, "_libc", Broken)
    one.begin(
        StepMetadata(1, (save_op(1, "a", 0, 3),), (load_op(2, "b", 3, 1),)), {"a": encoding(3)}
    )
    assert {(r.copy_id, r.landed) for r in one.reports()} == {(1, False), (2, False)}
    assert "b" not in one.cache


# ------------------------------------------------------------------- asynchronous saves
def test_a_slow_save_does_not_hold_the_step_and_is_reported_later(one, monkeypatch):
    gate = Gate()
    monkeypatch.setattr(copy_cpu, "_libc", gate)
    assert one.step(StepMetadata(1, (save_op(1, "a", 0, 3),)), {"a": encoding(3)}) is None
    assert one.worker.has_pending
    assert one.step(StepMetadata(2)) is None
    gate.open.set()
    assert one.reports() == [CopyReport(1, 0, True)]
    assert not one.worker.has_pending


def test_shutdown_finishes_what_was_offered_and_reports_the_rest(folder):
    rank = Rank(folder)
    metadata = rank.about_mine(StepMetadata(1, (save_op(1, "a", 0, 3), save_op(2, "b", 3, 5))))
    rank.worker.start_save_caches(metadata)
    rank.cache["a"] = encoding(3)
    rank.worker.save_caches(rank.cache, "a", metadata)
    rank.worker.shutdown()
    assert {(r.copy_id, r.landed) for r in rank.reports()} == {(1, True), (2, False)}
    assert not rank.region.closed
    rank.close()
    rank.close()


# --------------------------------------------------------------------- another region
@pytest.mark.clause("EC-10.7")
@pytest.mark.parametrize("named", [b"", bytes(16), b"another region's"])
def test_a_step_about_another_region_is_refused_before_any_copy(one: Rank, named: bytes) -> None:
    data, untouched = encoding(3), one.region.tensor.clone()
    for submit in ("submit_saves", "submit_loads"):
        setattr(one.engine, submit, None)
    step = StepMetadata(7, (save_op(1, "a", 0, 3),), (load_op(2, "b", 3, 3),), named)
    hooks: list[Callable[[], object]] = [
        lambda: one.worker.start_save_caches(step),
        lambda: one.worker.start_load_caches(one.cache, step),
        lambda: one.worker.save_caches({"a": data}, "a", step),
    ]
    for hook in hooks:
        with pytest.raises(RegionIdentityError, match="step 7 is about region") as caught:
            hook()
        assert caught.value.path == one.region.path
        assert one.region.identity.hex() in str(caught.value)
        assert (named.hex() or "of no name") in str(caught.value)
    assert one.cache == {}
    assert torch.equal(one.region.tensor, untouched)
    assert not one.worker.has_pending


@pytest.mark.clause("EC-10.7")
def test_a_refused_step_does_not_start_what_the_one_before_left(one: Rank) -> None:
    metadata = one.about_mine(StepMetadata(1, (save_op(1, "a", 0, 3),)))
    one.worker.start_save_caches(metadata)
    one.worker.save_caches({"a": encoding(3)}, "a", metadata)
    with pytest.raises(RegionIdentityError):
        one.worker.start_save_caches(StepMetadata(2))
    assert not one.region.tensor.any()
    assert one.engine.pending == 0


# --------------------------------------------------------------------- several ranks
@pytest.mark.clause("EC-4.1")
def test_rank_0_writes_and_every_rank_loads(folder):
    ranks = [Rank(folder, rank, 3) for rank in range(3)]
    data = encoding(4)
    for rank in ranks:
        rank.begin(StepMetadata(1, (save_op(1, "a", 2, 4),)), {"a": data})
    assert [rank.reports() for rank in ranks] == [[CopyReport(1, 0, True)], [], []]
    for rank in ranks:
        rank.cache.clear()
        rank.begin(StepMetadata(2, (), (load_op(2, "a", 2, 4),)))
        assert torch.equal(rank.cache["a"], data)
    assert [rank.reports() for rank in ranks] == [[CopyReport(2, i, True)] for i in range(3)]
    for rank in ranks:
        rank.close()


def test_the_saver_can_be_chosen(folder):
    other = Rank(folder, 1, 2, is_saver=True)
    other.begin(StepMetadata(1, (save_op(1, "a", 0, 1),)), {"a": encoding(1)})
    assert other.reports() == [CopyReport(1, 1, True)]
    other.close()


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 1), (1, 1), (0, 0)])
def test_a_rank_outside_the_world_is_refused(one, rank, world_size):
    with pytest.raises(ConfigError, match=f"rank={rank}"):
        ECWorker(CONFIG, one.region, one.engine, rank, world_size)


@pytest.mark.clause("EC-4.1", "EC-4.2", "EC-4.3")
def test_the_core_accepts_every_report_and_ends_idle(folder):
    """Random steps through the real copy table: each report is accepted exactly once."""
    import random

    dice = random.Random(11)
    world = 3
    ranks = [Rank(folder, rank, world) for rank in range(world)]
    tier = EncodingTier(BLOCKS, BLOCK, played("copies", time.monotonic))
    copies = CopyTable(tier, world)
    truth = {f"h{i}": encoding(dice.randint(1, 9), i) for i in range(24)}
    outcome: Counter[str] = Counter()

    def collect() -> None:
        reports = [r.worker.build_connector_worker_meta() for r in ranks]
        for report in filter(None, reports):
            for item in report.entries:
                copy = copies.report(item.copy_id, item.rank, item.landed)
                outcome[f"{copy.kind} {copy.state}"] += 1

    def finish() -> None:
        while any(rank.worker.has_pending for rank in ranks):
            collect()

    for step in range(150):
        saves, loads, encoded = [], [], {}
        for mm_hash in dice.sample(sorted(truth), 4):
            tensor = truth[mm_hash]
            if tier.reserve(mm_hash):
                copy = copies.plan_load(mm_hash)
                copies.submit(copy)
                entry = copy.entry
                assert entry.shape is not None
                loads.append(
                    LoadOp(
                        copy.copy_id, mm_hash, entry.extents, entry.nbytes, entry.shape, "bfloat16"
                    )
                )
                continue
            planned = copies.plan_save(mm_hash, tensor.nbytes, tuple(tensor.shape))
            if planned is not None:
                copies.submit(planned)
                entry = planned.entry
                saves.append(SaveOp(planned.copy_id, mm_hash, entry.extents, entry.nbytes))
                if dice.random() < 0.8:
                    encoded[mm_hash] = tensor  # else: the encoder never runs (F7)
        tier.end_step()
        metadata = StepMetadata(step, tuple(saves), tuple(loads))
        for rank in ranks:
            # the host may have freed anything in its own cache
            kept = dice.sample(sorted(rank.cache), len(rank.cache) // 2)
            rank.cache = {h: rank.cache[h] for h in kept}
            rank.begin(metadata, encoded)
            for op in loads:
                assert torch.equal(rank.cache[op.mm_hash], truth[op.mm_hash])
        # Reports come late as often as not.
        if dice.random() < 0.5:
            collect()
        else:
            finish()
        tier.check()
    finish()
    assert len(copies) == 0
    assert outcome["load landed"] > 30, outcome
    assert outcome["save landed"] > 50, outcome
    assert outcome["save skipped"] > 10, outcome
    for rank in ranks:
        rank.close()


@pytest.mark.clause("EC-12.2")
def test_the_local_tier_imports_nothing_of_peer_to_peer():
    code = (
        "import sys\n"
        "import ec_connector.engine.worker, ec_connector.copies.cpu, ec_connector.region.shared\n"
        "import ec_connector.config.settings, ec_connector.engine.messages\n"
        "bad = {'nixl', 'zmq', 'msgspec'} & {m.split('.')[0] for m in sys.modules}\n"
        "sys.exit(repr(bad) if bad else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
