# SPDX-License-Identifier: Apache-2.0
"""What holds of every message that was decoded, whoever has sent it (EC-8.8)."""

from __future__ import annotations

import math
from typing import Final

from ec_protocol.p2p import wire
from ec_protocol.p2p.wire import XferAck, XferReq

U63: Final = (1 << 63) - 1


def check_request(req: XferReq) -> None:
    """Bounds of EC-8.8."""
    assert 1 <= len(req.mm_hash) <= 512
    assert len(req.compatibility_hash) <= 128
    assert len(req.session_id) <= 256
    assert len(req.incarnation) <= 128
    for number in (req.connector_version, req.attempt_id or 0):
        assert type(number) is int
        assert 0 <= number <= U63
    assert len(wire.notice(req.session_id, req.mm_hash)) <= 4 * (512 + 256) + 1


def check_ack(ack: XferAck) -> None:
    """Bounds of EC-8.8."""
    assert 1 <= len(ack.mm_hash) <= 512
    assert len(ack.session_id) <= 256
    assert len(ack.incarnation) <= 128
    assert len(ack.agent_metadata) <= 1 << 20
    assert len(ack.extents) <= 4096
    assert len(ack.src_block_indices) <= 1 << 20
    assert 0 <= ack.status <= 255
    numbers = [ack.base_addr, ack.block_size, ack.nbytes, ack.attempt_id or 0]
    numbers += ack.src_block_indices + [n for extent in ack.extents for n in extent]
    assert all(type(n) is int and 0 <= n <= U63 for n in numbers)
    if ack.lease_s is not None:
        assert math.isfinite(ack.lease_s)
        assert 0 <= ack.lease_s <= 86400
