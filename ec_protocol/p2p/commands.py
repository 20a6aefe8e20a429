# SPDX-License-Identifier: Apache-2.0
"""What the reading side asks for. Plain data; whoever has the sockets carries it out."""

from __future__ import annotations

from dataclasses import dataclass

from ec_protocol.announcements import Address
from ec_protocol.p2p.wire import XferReq

#: Address of a producer's control socket, with its public key where peers have keys.
PeerKey = Address


@dataclass(frozen=True, slots=True)
class OpenPeer:
    """Connect to a producer. A fresh socket: nothing queued for an older one is sent."""

    peer: PeerKey


@dataclass(frozen=True, slots=True)
class ClosePeer:
    """Drop the connection."""

    peer: PeerKey


@dataclass(frozen=True, slots=True)
class SendReq:
    """Send one XferReq."""

    peer: PeerKey
    req: XferReq


@dataclass(frozen=True, slots=True)
class PrepareRead:
    """Get a READ ready, ask ``Fetches.post_read`` for leave, and post it.

    Attributes:
        attempt_id: The attempt.
        peer: Where the grant came from.
        agent_metadata: NIXL metadata of the producer's agent.
        incarnation: The producer process's own number; ``""`` for old peers.
        local: ``(byte offset in our region, bytes)`` pieces, in order.
        remote: ``(address in the producer, bytes)`` pieces; as long as ``local``
            and piece by piece of equal size.
        device_id: NIXL device id of the remote memory.
        notice: Completion notice to deliver with the READ.
        checksum: What to compare the bytes with once it is done, as the ack says it; ``""``:
            nothing. See ``Fetches.read_corrupt``.
    """

    attempt_id: int
    peer: PeerKey
    agent_metadata: bytes
    incarnation: str
    local: tuple[tuple[int, int], ...]
    remote: tuple[tuple[int, int], ...]
    device_id: int
    notice: bytes
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseGrant:
    """Tell the producer, over the data plane, that an attempt ended without a READ."""

    peer: PeerKey
    agent_metadata: bytes
    notice: bytes


@dataclass(frozen=True, slots=True)
class AbandonRead:
    """The READ is quarantined: keep its handle, go on polling, retire its endpoint."""

    attempt_id: int


@dataclass(frozen=True, slots=True)
class ForgetRead:
    """The READ is over: release its handle."""

    attempt_id: int


Command = OpenPeer | ClosePeer | SendReq | PrepareRead | ReleaseGrant | AbandonRead | ForgetRead
