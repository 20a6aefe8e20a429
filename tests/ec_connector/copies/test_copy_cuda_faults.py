# SPDX-License-Identifier: Apache-2.0
"""The CUDA copy engine when something fails: submissions, page-locking, a second process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from ec_connector.copies import cuda_pinning
from ec_connector.copies.base import CopyJob, Verdict
from ec_connector.copies.cuda import CudaCopyEngine
from ec_connector.copies.cuda_methods import CopyMethod, Piece
from ec_protocol.tier.extents import Extents
from tests import needs
from tests.ec_connector.copies.cuda_kit import BLOCK, BLOCKS, busy
from tests.ec_connector.copies.kit import FILL, bits, drain, gather, random_bits

CHILD = Path(__file__).with_name("cuda_child.py")
pytestmark = pytest.mark.cuda
pytest_plugins = ["tests.ec_connector.copies.cuda_fixtures"]


# ------------------------------------------------------------------------ when it fails
class HalfMethod(CopyMethod):
    """Queues half of a batch and fails."""

    name = "half"

    def __init__(self, inner: CopyMethod) -> None:
        super().__init__(inner.region)
        self.inner = inner

    def submit(self, pieces: Sequence[Piece], save: bool, stream: torch.cuda.Stream) -> None:
        self.inner.submit(pieces[: len(pieces) // 2], save, stream)
        raise RuntimeError("half of it was queued")


def test_a_submission_that_fails_half_way_leaves_nothing_in_flight(region, engine):
    good, source = engine.method, random_bits((64, BLOCK), torch.uint8).cuda()
    engine.method = HalfMethod(good)
    busy()
    engine.submit_saves(
        [CopyJob(i, source[16 * i : 16 * i + 16], ((16 * i, 16),), 16 * BLOCK) for i in range(4)]
    )
    assert {v.copy_id: v.ok for v in engine.poll()} == dict.fromkeys(range(4), False)
    region.tensor.fill_(FILL)  # somebody else's bytes now
    torch.cuda.synchronize()
    assert int((region.tensor != FILL).sum()) == 0

    target = engine.empty((64, BLOCK), torch.uint8)
    engine.submit_loads([CopyJob(9, target, ((0, 32), (40, 32)), target.nbytes)])
    assert engine.order_loads() == {9}
    assert drain(engine) == {9: False}

    engine.method = good
    engine.submit_saves([CopyJob(10, source, ((0, 64),), source.nbytes)])
    assert drain(engine) == {10: True}
    assert gather(region, ((0, 64),), source.nbytes) == bits(source)


def test_without_a_proof_there_is_no_verdict(region, monkeypatch):
    """A lost device: its blocks stay held, and nothing more is begun."""
    engine = CudaCopyEngine(region)
    engine.method = HalfMethod(engine.method)
    source = random_bits((2, BLOCK), torch.uint8).cuda()

    def lost(stream: torch.cuda.Stream) -> None:
        raise RuntimeError("the device is lost")

    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda.Stream, "synchronize", lost)
        engine.submit_saves([CopyJob(i, source[i], ((i, 1),), BLOCK) for i in (0, 1)])
    assert engine.poll() == []
    assert engine.pending == 2
    target = engine.empty((BLOCK,), torch.uint8)
    engine.submit_loads([CopyJob(3, target, ((0, 1),), BLOCK)])
    assert engine.order_loads() == {3}
    assert engine.poll() == [Verdict(3, False)]
    assert engine.pending == 2
    engine.shutdown()


def test_jobs_that_make_no_sense_get_a_verdict_and_the_others_run(region, engine):
    source = random_bits((2, BLOCK), torch.uint8).cuda()
    jobs = [
        CopyJob(1, source, ((0, 1),), source.nbytes),  # too few blocks
        CopyJob(2, source, ((BLOCKS - 1, 2),), source.nbytes),  # outside
        CopyJob(3, source.cpu(), ((0, 2),), source.nbytes),  # not on the device
        CopyJob(4, source, ((0, 3),), 3 * BLOCK),  # not its size
        CopyJob(5, source, ((20, 2),), source.nbytes),
    ]
    engine.submit_saves(jobs)
    assert drain(engine) == {1: False, 2: False, 3: False, 4: False, 5: True}
    engine.submit_loads(
        [
            CopyJob(6, source.t(), ((20, 2),), source.nbytes),
            CopyJob(7, engine.empty((2, BLOCK), torch.uint8), ((20, 2),), source.nbytes),
        ]
    )
    assert engine.order_loads() == {6}
    assert drain(engine) == {6: False, 7: True}


def test_shutdown_waits_and_what_comes_later_fails(region):
    engine = CudaCopyEngine(region)
    source = random_bits((16, BLOCK), torch.uint8).cuda()
    busy()
    engine.submit_saves([CopyJob(1, source, ((0, 16),), source.nbytes)])
    engine.shutdown()
    assert gather(region, ((0, 16),), source.nbytes) == bits(source)
    engine.submit_saves([CopyJob(2, source, ((0, 16),), source.nbytes)])
    assert drain(engine) == {1: True, 2: False}
    engine.shutdown()
    assert cuda_pinning.clear_error() == 0


# ------------------------------------------------------------------------ page-locking
@pytest.mark.parametrize("refused", [(), (1,), (0, 1, 2, 3)])
def test_chunks_that_cannot_be_locked_are_copied_all_the_same(region, monkeypatch, refused):
    chunk = region.nbytes // 4
    real = torch.cuda.cudart()

    class Runtime:
        """CUDA's runtime, which refuses some chunks, and leaves its error pending."""

        def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> object:
            number = (address - region.address) // chunk
            bad = 0xFFFF if number in refused else flags
            return real.cudaHostRegister(address, nbytes, bad)

        def cudaHostUnregister(self, address: int) -> object:
            return real.cudaHostUnregister(address)

    monkeypatch.setattr(cuda_pinning, "_cudart", Runtime)
    engine = CudaCopyEngine(region, chunk_bytes=chunk)
    assert [c.pinned for c in engine.pinning.chunks] == [i not in refused for i in range(4)]
    assert cuda_pinning.clear_error() == 0
    torch.zeros(8, device="cuda").add_(1)  # would report an error that is still pending
    host = random_bits((BLOCKS - 1, BLOCK), torch.uint8)
    extents: Extents = ((BLOCKS // 2 - 5, 200), (0, BLOCKS // 2 - 5), (BLOCKS // 2 + 195, 61))
    engine.submit_saves([CopyJob(1, host.cuda(), extents, host.nbytes)])
    assert drain(engine) == {1: True}
    assert gather(region, extents, host.nbytes) == bits(host)
    target = engine.empty(host.shape, host.dtype)
    engine.submit_loads([CopyJob(2, target, extents, host.nbytes)])
    assert engine.order_loads() == set()
    assert bits(target) == bits(host)
    assert drain(engine) == {2: True}
    engine.shutdown()


def test_memory_that_is_locked_already_is_refused_without_a_trace(region):
    assert cuda_pinning.register(region.address, region.nbytes)
    second = CudaCopyEngine(region)
    assert second.pinning.pinned_bytes == 0
    assert cuda_pinning.clear_error() == 0
    second.shutdown()
    assert int(torch.cuda.cudart().cudaHostUnregister(region.address)) == 0


def test_an_unpinned_region_can_be_pinned_again(region):
    for _ in range(3):
        engine = CudaCopyEngine(region)
        assert engine.pinning.pinned_bytes == region.nbytes
        engine.shutdown()


# ------------------------------------------------------------------------ two processes
@pytest.mark.parametrize("device", [0, 1], ids=["one GPU", "two GPUs"])
def test_two_processes_share_a_region(region, engine, device):
    """Each saves half of the encodings while the other loads what it has been told of."""
    needs.optional(device < torch.cuda.device_count(), "needs a second CUDA device")
    child = subprocess.Popen(
        [
            sys.executable,
            str(CHILD),
            str(Path(region.path).parent),
            str(BLOCKS),
            str(BLOCK),
            str(device),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        for number in range(20):
            mine, theirs = ((4 * number, 4),), ((256 + 4 * number, 4),)
            source = random_bits((4, BLOCK), torch.uint8, number).cuda()
            engine.submit_saves([CopyJob(number, source, mine, source.nbytes)])
            assert drain(engine) == {number: True}
            child.stdin.write(f"{number} {mine[0][0]} {theirs[0][0]}\n")
            child.stdin.flush()
            assert child.stdout.readline() == f"{number} ok\n"
            target = engine.empty((4, BLOCK), torch.uint8)
            engine.submit_loads([CopyJob(number, target, theirs, target.nbytes)])
            assert engine.order_loads() == set()
            assert bits(target) == bits(random_bits((4, BLOCK), torch.uint8, 1000 + number))
            drain(engine)
        child.stdin.close()
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()
