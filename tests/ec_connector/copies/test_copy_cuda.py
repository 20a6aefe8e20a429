# SPDX-License-Identifier: Apache-2.0
"""The CUDA copy engine: bit-exact beside running kernels and the caching allocator.

`tools/gpu.sh` runs these on a machine with a GPU; elsewhere they are skipped.
"""

from __future__ import annotations

import random

import pytest
import torch

from ec_connector.copies.base import CopyJob
from ec_connector.copies.cuda import CudaCopyEngine
from ec_connector.copies.cuda_methods import METHODS, MethodUnavailable, choose_method
from ec_protocol.tier.extents import ExtentAllocator, Extents
from tests import needs
from tests.ec_connector.copies.cuda_kit import BLOCK, BLOCKS, busy, lay_out, put
from tests.ec_connector.copies.kit import FILL, bits, drain, gather, random_bits

pytestmark = pytest.mark.cuda
pytest_plugins = ["tests.ec_connector.copies.cuda_fixtures"]


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


# ------------------------------------------------------------------------ bit-exactness
@pytest.mark.parametrize("method", [kind.name for kind in METHODS])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_save_and_a_load_give_the_same_bits(region, method, layout, dtype):
    needs.optional(available(method), f"{method} cannot be used here")
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


def test_only_the_bytes_of_the_encoding_are_written(region, engine):
    extents = ((10, 2), (3, 2))
    source = random_bits((3 * BLOCK + 77,), torch.uint8)
    engine.submit_saves([CopyJob(1, source.cuda(), extents, source.nbytes)])
    assert drain(engine) == {1: True}
    expected = bytearray([FILL]) * region.nbytes
    raw = bits(source)
    expected[10 * BLOCK : 12 * BLOCK] = raw[: 2 * BLOCK]
    expected[3 * BLOCK : 4 * BLOCK + 77] = raw[2 * BLOCK :]
    assert bytes(region.buffer) == bytes(expected)


def test_sources_of_any_layout_are_saved_in_row_order(region, engine):
    whole = random_bits((40, 50), torch.bfloat16).cuda()
    sources = [whole.t(), whole[:, 1::2], whole[3:], whole.clone().requires_grad_()]
    jobs = [CopyJob(i, s, ((2 * i, 2),), s.numel() * 2) for i, s in enumerate(sources)]
    engine.submit_saves(jobs)
    assert drain(engine) == dict.fromkeys(range(4), True)
    for job in jobs:
        assert gather(region, job.extents, job.nbytes) == bits(job.tensor)


# ------------------------------------------------------------------ beside computation
def test_a_save_waits_for_the_encoder(region, engine):
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


def test_the_model_waits_for_a_load(region, engine):
    nbytes = region.nbytes
    for seed in range(10):
        data = random_bits((nbytes,), torch.uint8, seed)
        region.tensor.copy_(data)
        target = engine.empty((nbytes,), torch.uint8)
        engine.submit_loads([CopyJob(seed, target, ((0, BLOCKS),), nbytes)])
        assert engine.order_loads() == set()
        assert torch.equal(target.clone().cpu(), data)
        assert drain(engine) == {seed: True}


def test_a_load_does_not_wait_for_the_step_before(region, engine):
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
def test_memory_that_a_kernel_still_writes_is_not_loaded_into(region, engine):
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


def test_memory_that_the_model_still_reads_is_not_loaded_into(region, engine):
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


def test_a_source_that_was_let_go_is_saved_before_its_memory_is_used_again(region, engine):
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


def test_saves_and_loads_in_any_order_beside_a_model(region, engine):
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


def test_contiguous_copies_launch_no_kernel(region, engine):
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
