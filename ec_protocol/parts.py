# SPDX-License-Identifier: Apache-2.0
"""What a ``Node`` is made of, and what it needs to exchange encodings with others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ec_protocol.tables.timing import Timing
from ec_protocol.tier.copies import CopyTable
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.holds import HoldTable
from ec_protocol.trace import Trace

if TYPE_CHECKING:
    from ec_protocol.p2p.acks import Acks
    from ec_protocol.p2p.attempts import Attempts
    from ec_protocol.p2p.fetches import Fetches
    from ec_protocol.p2p.grants import ProducerGrants


@dataclass(frozen=True, slots=True, kw_only=True)
class Peering:
    """What a node needs to exchange encodings with others.

    Attributes:
        vllm_version: Version of the host; with model and dtype it decides whether two
            processes mean the same by their bytes (EC-8.4).
        model: Name of the model.
        dtype: As torch prints it, such as ``torch.bfloat16``.
        incarnation: Another one after every start (EC-9.2); 1 to 64 characters, no
            colon.
        base_addr: Address of block 0, as registered with the data plane.
        peer_quota: Share of the region that one peer may pin (EC-5.10).
        grant_quota: Share of the region that all peers together may pin.
    """

    vllm_version: str
    model: str
    dtype: str
    incarnation: str
    base_addr: int = 0
    peer_quota: float = 0.5
    grant_quota: float = 0.9


class Parts:
    """Makes the parts. Peer-to-peer is imported when a part of it is made (EC-12.2)."""

    def tier(self, blocks: int, block_bytes: int, trace: Trace | None) -> EncodingTier:
        """Entries and blocks."""
        return EncodingTier(blocks, block_bytes, trace)

    def holds(self, tier: EncodingTier, share: float) -> HoldTable:
        """Holds on announced and fetched entries."""
        return HoldTable(tier, share)

    def copies(self, tier: EncodingTier, ranks: int) -> CopyTable:
        """Saves and loads."""
        return CopyTable(tier, ranks)

    def attempts_type(self) -> type[Attempts]:
        """Class of what makes and moves attempts to READ."""
        from ec_protocol.p2p.attempts import Attempts

        return Attempts

    def acks_type(self) -> type[Acks]:
        """Class of what understands acks."""
        from ec_protocol.p2p.acks import Acks

        return Acks

    def fetches_type(self) -> type[Fetches]:
        """Class of the reading side, which is made of those two."""
        from ec_protocol.p2p.fetches import Fetches

        return Fetches

    def grants_type(self) -> type[ProducerGrants]:
        """Class of the serving side."""
        from ec_protocol.p2p.grants import ProducerGrants

        return ProducerGrants

    def reads(
        self, tier: EncodingTier, holds: HoldTable, timing: Timing, peering: Peering
    ) -> Fetches:
        """The reading side."""
        attempts = self.attempts_type()(
            tier,
            timing=timing,
            compat_hash=_compatibility(tier, peering),
            session=peering.incarnation,
        )
        return self.fetches_type()(attempts, self.acks_type()(attempts), holds)

    def grants(self, tier: EncodingTier, timing: Timing, peering: Peering) -> ProducerGrants:
        """The serving side."""
        return self.grants_type()(
            tier,
            timing=timing,
            compat_hash=_compatibility(tier, peering),
            incarnation=peering.incarnation,
            base_addr=peering.base_addr,
            peer_quota=peering.peer_quota,
            grant_quota=peering.grant_quota,
        )


def _compatibility(tier: EncodingTier, peering: Peering) -> str:
    from ec_protocol.p2p import wire

    return wire.compatibility_hash(
        peering.vllm_version, peering.model, peering.dtype, tier.block_size_bytes
    )
