# SPDX-License-Identifier: Apache-2.0
"""The core: an event through the dispatcher, and the size of an ack.

* The compiled dispatcher, beside the ``transitions`` machine that it was compiled from.
* A producer's answer without its agent's metadata, beside one that describes every block
  of the region, as hand-written connectors send it.
"""

from __future__ import annotations

from typing import Final

from ec_connector.bench.rows import Row, in_turns
from ec_protocol import Node, Peering
from ec_protocol.p2p import wire
from ec_protocol.tables.dispatch import ENTRY
from ec_protocol.tables.lifecycle import load_lifecycles
from ec_protocol.tables.machines import GuardedModel, build_machine
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.entry import Entry

_BLOCK: Final = 8192
_WANTED_BLOCKS: Final = 880
_BASE: Final = 0x7F00_0000_0000


def run(quick: bool = False) -> list[Row]:
    """All rows.

    Args:
        quick: Fewer repetitions.
    """
    return [dispatch(5 if quick else 15), *(ack(gib) for gib in (1, 64))]


def dispatch(rounds: int) -> Row:
    """Events ``pin`` and ``unpin`` of an entry: one edge without guards, one with."""
    lifecycle = load_lifecycles()["entry"]
    machine = build_machine(lifecycle)
    model = GuardedModel(lifecycle, frozenset({"last_holder"}))
    machine.add_model(model, initial="ready")
    last_holder = ENTRY.mask("last_holder")

    def ours() -> None:
        step = ENTRY.fire("ready", "pin")
        ENTRY.fire(step.state, "unpin", last_holder)

    def theirs() -> None:
        model.pin()  # type: ignore[attr-defined]
        model.unpin()  # type: ignore[attr-defined]
        model.effects.clear()

    # The best round: other processes can only add to one, never take from it.
    mine, reference = (min(taken) / 2 * 1e6 for taken in in_turns(rounds, 1000, ours, theirs))
    return Row("core", "one event, beside a trigger of transitions", mine, reference, "us")


def ack(gib: int) -> Row:
    """The answer for an entry in two extents. The region is not mapped.

    Args:
        gib: Size of the region.
    """
    node = Node(
        blocks=(gib << 30) // _BLOCK,
        block_bytes=_BLOCK,
        role="producer",
        peering=Peering(
            vllm_version="bench",
            model="bench",
            dtype="torch.bfloat16",
            incarnation="i" * 32,
            base_addr=_BASE,
        ),
    )
    node.offer(b"m")
    tier = node.tier
    _land(tier, "first", _WANTED_BLOCKS // 2, 1)
    wall = _land(tier, "wall", tier.num_blocks - _WANTED_BLOCKS, 2)
    tier.pin(wall, ("hold", 1))
    # Evicts "first": one extent on each side of the wall.
    entry = _land(tier, "wanted", _WANTED_BLOCKS, 3)
    if len(entry.extents) != 2:
        raise RuntimeError(f"expected two extents, not {entry.extents}")
    request = wire.XferReq(
        mm_hash="wanted",
        compatibility_hash=wire.compatibility_hash("bench", "bench", "torch.bfloat16", _BLOCK),
        session_id="s" * 40,
        connector_version=wire.PREFERRED_VERSION,
        attempt_id=1,
    )
    answer = node.request(b"peer", request, 0.0)
    if answer.status != wire.XferStatus.OK:
        raise RuntimeError(f"expected a grant, not {answer}")
    # Addresses of one region all take the same number of bytes, so the whole
    # descriptor's size follows from two of them.
    one, two = (len(wire.mem_descriptor(_BASE, n, _BLOCK)) for n in (1, 2))
    described = (two - one) * tier.num_blocks
    ours = len(wire.encode(answer)) - 1
    return Row("core", f"ack, region of {gib} GiB, beside all blocks", ours, described, "bytes")


def _land(tier: EncodingTier, name: str, blocks: int, number: int) -> Entry:
    entry = tier.alloc(name, blocks * _BLOCK)
    if entry is None:
        raise RuntimeError("the region is large enough")
    tier.begin_write(entry, ("save", number))
    tier.write_landed(entry, ("save", number))
    return entry
