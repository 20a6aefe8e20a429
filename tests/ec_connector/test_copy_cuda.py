# SPDX-License-Identifier: Apache-2.0
"""The CUDA copy engine: bit-exact beside running kernels, and honest when it fails.

`bench/gpu.sh` runs these on a machine with a GPU; elsewhere they are skipped.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from ec_connector import cuda_pinning
from ec_connector.copy_cuda import CudaCopyEngine
from ec_connector.copy_engine import CopyEngine, CopyJob
from ec_connector.cuda_methods import METHODS, CopyMethod, MethodUnavailable, Piece, choose_method
from ec_connector.region import SharedRegion
from ec_protocol.extents import ExtentAllocator, Extents

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BLOCKS, BLOCK = 512, 8192
FILL = 0xA5
#: Long enough that whatever is not ordered behind it runs before it.
SLEEP_CYCLES = 100_000_000
CHILD = Path(__file__).with_name("cuda_child.py")


@pytest.fixture
def region() -> Iterator[SharedRegion]:
    folder = Path(tempfile.mkdtemp(prefix="ec-test-", dir="/dev/shm"))
    with SharedRegion.open("t", 0, BLOCKS, BLOCK, directory=str(folder), guard=False) as opened:
        opened.tensor.fill_(FILL)
        yield opened
    shutil.rmtree(folder)


@pytest.fixture
def engine(region: SharedRegion) -> Iterator[CudaCopyEngine]:
    made = CudaCopyEngine(region)
    yield made
    made.shutdown()
    torch.cuda.synchronize()
    assert cuda_pinning.clear_error() == 0


def drain(engine: CopyEngine, timeout_s: float = 30.0) -> dict[int, bool]:
    """Every verdict owed; each must come once."""
    deadline = time.monotonic() + timeout_s
    verdicts: dict[int, bool] = {}
    while engine.pending:
        assert time.monotonic() < deadline
        for verdict in engine.poll():
            assert verdict.copy_id not in verdicts
            verdicts[verdict.copy_id] = verdict.ok
    return verdicts


def random_bits(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random *bits* in host memory: NaNs of all kinds included."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.empty(tuple(shape), dtype=dtype).nbytes
    raw = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(tuple(shape))


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return bytes(flat.numpy().tobytes())


def gather(region: SharedRegion, extents: Extents, nbytes: int) -> bytes:
    return b"".join(bytes(region.view(extent)) for extent in extents)[:nbytes]


def put(region: SharedRegion, extents: Extents, data: bytes) -> None:
    for extent in extents:
        view = region.view(extent)
        part, data = data[: len(view)], data[len(view) :]
        view[: len(part)] = part


def busy() -> None:
    """Keep the compute stream occupied for a while."""
    torch.cuda._sleep(SLEEP_CYCLES)


def available(name: str) -> bool:
    try:
        choose_method(torch.zeros(1, dtype=torch.uint8), name)
    except MethodUnavailable:
        return False
    return True


DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.uint8,
]
SHAPES = [(1, 1), (3, 17), (64, 3584), (255, 4096), (7, 5, 640), (1, 1280)]
LAYOUTS = ["one extent", "two extents", "scattered blocks"]


def lay_out(layout: str, nbytes: int, seed: int = 3) -> Extents:
    """Extents of a given kind that hold so many bytes."""
    count = -(-nbytes // BLOCK)
    if layout == "one extent" or count == 1:
        return ((BLOCKS - count, count),)
    if layout == "two extents":
        first = count // 2
        return ((BLOCKS - first, first), (1, count - first))
    blocks = random.Random(seed).sample(range(BLOCKS), count)
    return tuple((block, 1) for block in blocks)


# ------------------------------------------------------------------------ bit-exactness
@pytest.mark.parametrize("method", [kind.name for kind in METHODS])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_save_and_a_load_give_the_same_bits(
    region: SharedRegion, method: str, layout: str, dtype: torch.dtype
) -> None:
    if not available(method):
        pytest.skip(f"{method} cannot be used here")
    engine = CudaCopyEngine(region, method=method)
    for seed, shape in enumerate(SHAPES):
        host = random_bits(shape, dtype, seed)
        extents = lay_out(layout, host.nbytes)
        region.tensor.fill_(FILL)
        source = host.cuda()
        engine.submit_saves([CopyJob(1, source, extents, source.nbytes)])
        assert drain(engine) == {1: True}
        assert gather(region, extents, host.nbytes) == bits(host)
        assert int((region.tensor != FILL).sum()) <= host.nbytes, "beyond its bytes"

        target = engine.empty(shape, dtype)
        engine.submit_loads([CopyJob(2, target, extents, target.nbytes)])
        assert engine.order_loads() == set()
        assert bits(target) == bits(host)
        assert drain(engine) == {2: True}
    engine.shutdown()


def test_only_the_bytes_of_the_encoding_are_written(
    region: SharedRegion, engine: CudaCopyEngine
) -> None:
    extents = ((10, 2), (3, 2))
    source = random_bits((3 * BLOCK + 77,), torch.uint8)
    engine.submit_saves([CopyJob(1, source.cuda(), extents, source.nbytes)])
    assert drain(engine) == {1: True}
    expected = bytearray([FILL]) * region.nbytes
    raw = bits(source)
    expected[10 * BLOCK : 12 * BLOCK] = raw[: 2 * BLOCK]
    expected[3 * BLOCK : 4 * BLOCK + 77] = raw[2 * BLOCK :]
    assert bytes(region.buffer) == bytes(expected)


def test_sources_of_any_layout_are_saved_in_row_order(
    region: SharedRegion, engine: CudaCopyEngine
) -> None:
    whole = random_bits((40, 50), torch.bfloat16).cuda()
    sources = [whole.t(), whole[:, 1::2], whole[3:], whole.clone().requires_grad_()]
    jobs = [CopyJob(i, s, ((2 * i, 2),), s.numel() * 2) for i, s in enumerate(sources)]
    engine.submit_saves(jobs)
    assert drain(engine) == dict.fromkeys(range(4), True)
    for job in jobs:
        assert gather(region, job.extents, job.nbytes) == bits(job.tensor)


# ------------------------------------------------------------------ beside computation
def test_a_save_waits_for_the_encoder(region: SharedRegion, engine: CudaCopyEngine) -> None:
    source = torch.zeros((64, 4096), dtype=torch.bfloat16, device="cuda")
    wanted = random_bits((64, 4096), torch.bfloat16).cuda()
    torch.cuda.synchronize()
    busy()
    source.copy_(wanted)
    engine.submit_saves([CopyJob(1, source, ((0, 64),), source.nbytes)])
    assert engine.poll() == [], "a verdict before the encoder has run"
    assert engine.pending == 1
    assert drain(engine) == {1: True}
    assert gather(region, ((0, 64),), source.nbytes) == bits(wanted)


def test_the_model_waits_for_a_load(region: SharedRegion, engine: CudaCopyEngine) -> None:
    nbytes = region.nbytes
    for seed in range(10):
        data = random_bits((nbytes,), torch.uint8, seed)
        region.tensor.copy_(data)
        target = engine.empty((nbytes,), torch.uint8)
        engine.submit_loads([CopyJob(seed, target, ((0, BLOCKS),), nbytes)])
        assert engine.order_loads() == set()
        assert torch.equal(target.clone().cpu(), data)
        assert drain(engine) == {seed: True}


def test_a_load_does_not_wait_for_the_step_before(
    region: SharedRegion, engine: CudaCopyEngine
) -> None:
    """What makes a load cost the model nothing."""
    before = torch.cuda.Event()
    busy()
    before.record()
    target = engine.empty((4, BLOCK), torch.uint8)
    engine.submit_loads([CopyJob(1, target, ((0, 4),), target.nbytes)])
    assert drain(engine) == {1: True}
    assert not before.query(), "the load was held up by computation it does not need"
    assert engine.order_loads() == set()
    assert bits(target) == gather(region, ((0, 4),), target.nbytes)


# ------------------------------------------------------- memory of the caching allocator
def test_memory_that_a_kernel_still_writes_is_not_loaded_into(
    region: SharedRegion, engine: CudaCopyEngine
) -> None:
    """The caller's own tensor: freed memory is handed out before its last kernel ran."""
    shape = (32, BLOCK)
    for seed in range(5):
        data = random_bits(shape, torch.uint8, seed)
        put(region, ((7, 32),), bits(data))
        old = torch.empty(shape, dtype=torch.uint8, device="cuda")
        at = old.data_ptr()
        busy()
        old.fill_(0xEE)
        del old
        target = torch.empty(shape, dtype=torch.uint8, device="cuda")
        assert target.data_ptr() == at, "the hazard did not come about"
        engine.submit_loads([CopyJob(seed, target, ((7, 32),), target.nbytes)])
        assert engine.order_loads() == set()
        assert bits(target) == bits(data)
        assert drain(engine) == {seed: True}
        del target


def test_memory_that_the_model_still_reads_is_not_loaded_into(
    region: SharedRegion, engine: CudaCopyEngine
) -> None:
    """The engine's own tensor, evicted from the encoder cache right after its last use."""
    shape = (32, BLOCK)
    for seed in range(5):
        first, second = (random_bits(shape, torch.uint8, 2 * seed + i) for i in (0, 1))
        put(region, ((0, 32),), bits(first))
        put(region, ((32, 32),), bits(second))
        target = engine.empty(shape, torch.uint8)
        engine.submit_loads([CopyJob(1, target, ((0, 32),), target.nbytes)])
        assert engine.order_loads() == set()
        drain(engine)
        busy()
        read = target.clone()
        del target
        other = engine.empty(shape, torch.uint8)
        engine.submit_loads([CopyJob(2, other, ((32, 32),), other.nbytes)])
        assert engine.order_loads() == set()
        drain(engine)
        assert bits(read) == bits(first)
        assert bits(other) == bits(second)


def test_a_source_that_was_let_go_is_saved_before_its_memory_is_used_again(
    region: SharedRegion, engine: CudaCopyEngine
) -> None:
    shape = (32, BLOCK)
    for seed in range(5):
        data = random_bits(shape, torch.uint8, seed)
        source = data.cuda()
        busy()
        engine.submit_saves([CopyJob(seed, source, ((100, 32),), source.nbytes)])
        del source
        poison = [torch.full(shape, 0xEE, dtype=torch.uint8, device="cuda") for _ in range(8)]
        assert drain(engine) == {seed: True}
        assert gather(region, ((100, 32),), data.nbytes) == bits(data)
        del poison


def test_saves_and_loads_in_any_order_beside_a_model(
    region: SharedRegion, engine: CudaCopyEngine
) -> None:
    """Random schedule; every encoding is compared when it is loaded back."""
    dice = random.Random(11)
    space = ExtentAllocator(BLOCKS)
    weights = torch.randn((1024, 1024), device="cuda", dtype=torch.bfloat16)
    stored: dict[int, tuple[Extents, torch.Tensor]] = {}
    landing: dict[int, tuple[Extents, torch.Tensor]] = {}
    wanted: list[tuple[torch.Tensor, torch.Tensor]] = []
    number = 0
    for _ in range(150):
        activations = weights @ weights
        loads = []
        for key in dice.sample(sorted(stored), min(len(stored), dice.randrange(4))):
            extents, host = stored[key]
            target = engine.empty(host.shape, host.dtype)
            number += 1
            loads.append(CopyJob(number, target, extents, host.nbytes))
            wanted.append((target, host))
        engine.submit_loads(loads)
        assert engine.order_loads() == set()
        saves = []
        while len(saves) < 3 and (count := dice.randint(1, 40)) <= space.free_blocks:
            extents = space.alloc(count)
            assert extents is not None
            host = random_bits((count * BLOCK - dice.randrange(BLOCK),), torch.uint8, number)
            number += 1
            landing[number] = (extents, host)
            saves.append(CopyJob(number, host.cuda(non_blocking=True), extents, host.nbytes))
        engine.submit_saves(saves)
        activations = activations @ weights
        for verdict in engine.poll():
            assert verdict.ok
            if verdict.copy_id in landing:
                stored[verdict.copy_id] = landing.pop(verdict.copy_id)
        for target, host in wanted:
            assert torch.equal(target.cpu(), host)
        wanted.clear()
        # The loads are over (they were compared): their blocks may be reused.
        while stored and space.free_blocks < BLOCKS // 4:
            space.free(stored.pop(dice.choice(sorted(stored)))[0])
    assert all(drain(engine).values())


def test_contiguous_copies_launch_no_kernel(region: SharedRegion, engine: CudaCopyEngine) -> None:
    source = random_bits((64, 4096), torch.bfloat16).cuda()
    target = engine.empty(source.shape, source.dtype)
    extents = lay_out("scattered blocks", source.nbytes)
    engine.submit_saves([CopyJob(1, source, extents, source.nbytes)])
    drain(engine)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        engine.submit_saves([CopyJob(2, source, extents, source.nbytes)])
        engine.submit_loads([CopyJob(3, target, extents, source.nbytes)])
        engine.order_loads()
        drain(engine)
        torch.cuda.synchronize()
    on_device = [e.name for e in profile.events() if e.device_type.name == "CUDA"]
    assert [name for name in on_device if "memcpy" not in name.lower()] == []


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


def test_a_submission_that_fails_half_way_leaves_nothing_in_flight(
    region: SharedRegion, engine: CudaCopyEngine
) -> None:
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


def test_jobs_that_make_no_sense_get_a_verdict_and_the_others_run(
    region: SharedRegion, engine: CudaCopyEngine
) -> None:
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


def test_shutdown_waits_and_what_comes_later_fails(region: SharedRegion) -> None:
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
def test_chunks_that_cannot_be_locked_are_copied_all_the_same(
    region: SharedRegion, monkeypatch: pytest.MonkeyPatch, refused: tuple[int, ...]
) -> None:
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


def test_memory_that_is_locked_already_is_refused_without_a_trace(region: SharedRegion) -> None:
    assert cuda_pinning.register(region.address, region.nbytes)
    second = CudaCopyEngine(region)
    assert second.pinning.pinned_bytes == 0
    assert cuda_pinning.clear_error() == 0
    second.shutdown()
    assert int(torch.cuda.cudart().cudaHostUnregister(region.address)) == 0


def test_an_unpinned_region_can_be_pinned_again(region: SharedRegion) -> None:
    for _ in range(3):
        engine = CudaCopyEngine(region)
        assert engine.pinning.pinned_bytes == region.nbytes
        engine.shutdown()


# ------------------------------------------------------------------------ two processes
def test_two_processes_share_a_region_on_one_gpu(
    region: SharedRegion, engine: CudaCopyEngine
) -> None:
    """Each saves half of the encodings while the other loads what it has been told of."""
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(Path(region.path).parent), str(BLOCKS), str(BLOCK)],
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
