# SPDX-License-Identifier: Apache-2.0
"""The CPU copy engine: bit-exact, within its blocks, a verdict for every job."""

from __future__ import annotations

import itertools
import random
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ec_connector.copies import cpu as copy_cpu
from ec_connector.copies.base import CopyJob, Verdict, byte_spans
from ec_connector.copies.cpu import CpuCopyEngine
from ec_connector.region.errors import RegionArgumentError
from ec_connector.region.shared import SharedRegion
from ec_protocol.tier.extents import ExtentAllocator, Extents
from tests.ec_connector.copies.kit import FILL, Broken, Gate, bits, drain, gather, random_bits
from tests.leftovers import shm_folder

BLOCKS, BLOCK = 64, 5120


@pytest.fixture
def region() -> Iterator[SharedRegion]:
    with (
        shm_folder() as folder,
        SharedRegion.open("t", 0, BLOCKS, BLOCK, directory=str(folder), guard=False) as opened,
    ):
        opened.tensor.fill_(FILL)
        yield opened


@pytest.fixture
def engine(region: SharedRegion) -> Iterator[CpuCopyEngine]:
    made = CpuCopyEngine(region)
    yield made
    made.shutdown()


DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.uint8, torch.int64]
EXTENTS: list[Extents] = [((0, 6),), ((40, 6),), ((10, 2), (3, 1), (60, 3)), ((63, 1), (0, 5))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("extents", EXTENTS, ids=str)
def test_a_save_and_a_load_give_the_same_bits(region, engine, dtype, extents):
    rows = 5 * BLOCK // dtype.itemsize // 16 + 3  # five blocks and a tail
    source = random_bits((rows, 16), dtype)
    engine.submit_saves([CopyJob(1, source, extents, source.nbytes)])
    assert drain(engine) == {1: True}
    assert gather(region, extents, source.nbytes) == bits(source)

    target = torch.zeros_like(source)
    engine.submit_loads([CopyJob(2, target, extents, target.nbytes)])
    assert engine.order_loads() == set()
    assert bits(target) == bits(source)  # already: order_loads waited
    assert drain(engine) == {2: True}


def test_only_the_bytes_of_the_encoding_are_written(region, engine):
    extents = ((10, 2), (3, 2))
    source = random_bits((3 * BLOCK + 77,), torch.uint8)
    engine.submit_saves([CopyJob(1, source, extents, source.nbytes)])
    assert drain(engine) == {1: True}
    expected = bytearray([FILL]) * region.nbytes
    raw = bits(source)
    expected[10 * BLOCK : 12 * BLOCK] = raw[: 2 * BLOCK]
    expected[3 * BLOCK : 4 * BLOCK + 77] = raw[2 * BLOCK :]
    assert bytes(region.buffer) == bytes(expected)


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_sources_of_any_layout_are_saved_in_row_order(region, engine, offset):
    whole = random_bits((40, 50), torch.bfloat16)
    sources = [whole.t(), whole[:, offset::2], whole[offset:], whole.requires_grad_()]
    jobs = [
        CopyJob(i, source, ((2 * i, 2),), source.numel() * 2) for i, source in enumerate(sources)
    ]
    engine.submit_saves(jobs)
    assert drain(engine) == dict.fromkeys(range(4), True)
    for job in jobs:
        assert gather(region, job.extents, job.nbytes) == bits(job.tensor.detach())


def test_many_copies_at_once(region, engine):
    dice = random.Random(5)
    space = ExtentAllocator(BLOCKS)
    for round_ in range(20):
        held: list[tuple[Extents, torch.Tensor]] = []
        while (count := dice.randint(1, 9)) <= space.free_blocks:
            extents = space.alloc(count)
            assert extents is not None
            nbytes = count * BLOCK - dice.randrange(BLOCK)
            held.append((extents, random_bits((nbytes,), torch.uint8, round_ * 100 + len(held))))
        engine.submit_saves(
            [CopyJob(i, tensor, extents, tensor.nbytes) for i, (extents, tensor) in enumerate(held)]
        )
        assert drain(engine) == dict.fromkeys(range(len(held)), True)
        targets = [torch.zeros_like(tensor) for _, tensor in held]
        engine.submit_loads(
            [
                CopyJob(i, target, extents, target.nbytes)
                for i, (target, (extents, _)) in enumerate(zip(targets, held, strict=True))
            ]
        )
        assert engine.order_loads() == set()
        drain(engine)
        for target, (_, tensor) in zip(targets, held, strict=True):
            assert torch.equal(target, tensor)
        # free every other one, so that the next round gets entries in pieces
        for extents, _ in held[::2]:
            space.free(extents)
        for extents, _ in held[1::2]:
            space.free(extents)
            assert space.free_blocks <= BLOCKS


# ------------------------------------------------------------------------ failures
def _bad_jobs() -> dict[str, CopyJob]:
    tensor = torch.zeros(BLOCK, dtype=torch.uint8)
    return {
        "extent beyond the region": CopyJob(7, tensor, ((BLOCKS, 1),), BLOCK),
        "negative extent": CopyJob(7, tensor, ((-1, 1),), BLOCK),
        "empty extent": CopyJob(7, tensor, ((0, 0), (1, 1)), BLOCK),
        "no extent": CopyJob(7, tensor, (), BLOCK),
        "too few blocks": CopyJob(
            7, torch.zeros(BLOCK + 1, dtype=torch.uint8), ((0, 1),), BLOCK + 1
        ),
        "too many extents": CopyJob(7, tensor, ((0, 1), (1, 1)), BLOCK),
        "overlapping extents": CopyJob(
            7, torch.zeros(3 * BLOCK, dtype=torch.uint8), ((0, 2), (1, 1)), 3 * BLOCK
        ),
        "tensor of another size": CopyJob(7, tensor[1:], ((0, 1),), BLOCK),
        "nothing to copy": CopyJob(7, tensor[:0], ((0, 1),), 0),
        "tensor elsewhere": CopyJob(7, torch.empty(BLOCK, device="meta"), ((0, 1),), 4 * BLOCK),
    }


@pytest.mark.clause("EC-4.1")
@pytest.mark.parametrize("kind", _bad_jobs())
@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("direction", ["save", "load"])
def test_a_job_that_cannot_start_is_reported_and_the_rest_is_copied(
    region, engine, kind, position, direction
):
    good = [
        CopyJob(1, random_bits((BLOCK,), torch.uint8, 1), ((20, 1),), BLOCK),
        CopyJob(2, random_bits((BLOCK,), torch.uint8, 2), ((21, 1),), BLOCK),
    ]
    batch = [*good]
    batch.insert(position, _bad_jobs()[kind])
    if direction == "save":
        engine.submit_saves(batch)
        assert drain(engine) == {1: True, 2: True, 7: False}
        assert bytes(region.view((21, 1))) == bits(good[1].tensor)
        assert set(bytes(region.view((0, 20)))) == {FILL}
    else:
        engine.submit_loads(batch)
        assert engine.order_loads() == {7}
        assert drain(engine) == {1: True, 2: True, 7: False}
        assert set(bits(good[1].tensor)) == {FILL}


def test_the_destination_of_a_load_must_be_contiguous(engine):
    target = torch.zeros((BLOCK, 2), dtype=torch.uint8)[:, 0]
    engine.submit_loads([CopyJob(1, target, ((0, 1),), BLOCK)])
    assert engine.order_loads() == {1}
    assert drain(engine) == {1: False}
    assert not target.any()


def test_a_pool_that_refuses_half_way_leaves_no_job_unreported(region, engine, monkeypatch):
    real = engine._pool.submit
    calls = itertools.count()

    def submit(*args: Any) -> Any:
        if next(calls) >= 2:
            raise RuntimeError("can't start new thread")
        return real(*args)

    monkeypatch.setattr(engine._pool, "submit", submit)
    tensor = random_bits((BLOCK,), torch.uint8)
    engine.submit_saves([CopyJob(i, tensor, ((i, 1),), BLOCK) for i in range(5)])
    assert drain(engine) == {0: True, 1: True, 2: False, 3: False, 4: False}
    assert set(bytes(region.view((2, 3)))) == {FILL}


def test_a_copy_that_fails_on_its_thread_is_reported(engine, monkeypatch):
    monkeypatch.setattr(copy_cpu, "_libc", Broken)
    tensor = torch.zeros(BLOCK, dtype=torch.uint8)
    engine.submit_loads([CopyJob(1, tensor, ((0, 1),), BLOCK)])
    assert engine.order_loads() == {1}
    assert drain(engine) == {1: False}


# ---------------------------------------------------------------- time and threads
@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    made = Gate()
    monkeypatch.setattr(copy_cpu, "_libc", made)
    return made


def test_submitting_and_polling_never_wait(engine, gate):
    tensor = random_bits((BLOCK,), torch.uint8)
    engine.submit_saves([CopyJob(i, tensor, ((i, 1),), BLOCK) for i in range(5)])
    assert gate.waits()
    assert gate.waits()  # two threads by default
    assert engine.poll() == []
    assert engine.pending == 5
    gate.open.set()
    assert len(drain(engine)) == 5


def test_loads_do_not_wait_for_saves(engine, gate, monkeypatch):
    engine.submit_saves([CopyJob(1, torch.zeros(BLOCK, dtype=torch.uint8), ((0, 1),), BLOCK)])
    assert gate.waits()
    monkeypatch.undo()
    target = torch.zeros(BLOCK, dtype=torch.uint8)
    engine.submit_loads([CopyJob(2, target, ((1, 1),), BLOCK)])
    assert engine.order_loads() == set()
    assert engine.poll() == [Verdict(2, True)]
    gate.open.set()
    assert drain(engine) == {1: True}


def test_order_loads_without_loads_returns_at_once(engine):
    assert engine.order_loads() == set()
    assert engine.device == torch.device("cpu")


def test_the_source_is_kept_alive_until_it_is_copied(region, engine, gate):
    tensor = random_bits((BLOCK,), torch.uint8)
    raw, storage = bits(tensor), weakref.ref(tensor.untyped_storage())
    engine.submit_saves([CopyJob(1, tensor, ((0, 1),), BLOCK)])
    assert gate.waits()
    del tensor
    gate.open.set()
    assert drain(engine) == {1: True}
    assert bytes(region.view((0, 1))) == raw
    engine.shutdown()
    assert storage() is None


def test_shutdown_waits_for_what_is_under_way(region, engine, gate):
    tensor = random_bits((BLOCK,), torch.uint8)
    engine.submit_saves([CopyJob(i, tensor, ((i, 1),), BLOCK) for i in range(4)])
    stopped = threading.Event()

    def stop() -> None:
        engine.shutdown()
        stopped.set()

    other = threading.Thread(target=stop)
    other.start()
    assert gate.waits()
    assert not stopped.is_set()
    gate.open.set()
    other.join(60)
    assert stopped.is_set()
    assert bytes(region.view((3, 1))) == bits(tensor)
    assert drain(engine) == dict.fromkeys(range(4), True)


def test_after_shutdown_jobs_fail_and_a_second_shutdown_does_nothing(region, engine):
    engine.shutdown()
    engine.shutdown()
    engine.submit_saves([CopyJob(1, torch.zeros(BLOCK, dtype=torch.uint8), ((0, 1),), BLOCK)])
    assert drain(engine) == {1: False}
    assert bytes(region.view((0, 1)))[0] == FILL


def test_closing_the_region_too_early_cannot_crash_a_copy(region, engine, gate):
    tensor = random_bits((BLOCK,), torch.uint8)
    engine.submit_saves([CopyJob(1, tensor, ((0, 1),), BLOCK)])
    assert gate.waits()
    region.close(unlink=True)
    gate.open.set()
    assert drain(engine) == {1: True}


# ----------------------------------------------------------------------- byte_spans
def test_byte_spans():
    assert byte_spans(((4, 2), (0, 3)), 4 * 10 + 1, 8, 10) == [(40, 20), (0, 21)]
    assert byte_spans(((0, 1),), 1, 8, 10) == [(0, 1)]
    assert byte_spans(((0, 8),), 80, 8, 10) == [(0, 80)]


@pytest.mark.parametrize(
    ("extents", "nbytes", "message"),
    [
        (((0, 9),), 1, "not inside 8 blocks"),
        (((8, 1),), 1, "not inside"),
        (((0, 1),), 11, "do not hold 11 bytes"),
        (((0, 1),), 0, "more than 0 bytes need"),
        ((), 0, "do not hold 0 bytes"),
        ((), 1, "do not hold"),
        (((0, 1), (1, 1)), 10, "more than 10 bytes need"),
        (((0, 2), (1, 2)), 40, "overlap"),
    ],
)
def test_byte_spans_refuses(extents, nbytes, message):
    with pytest.raises(RegionArgumentError, match=message):
        byte_spans(extents, nbytes, 8, 10)
