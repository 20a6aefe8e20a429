# SPDX-License-Identifier: Apache-2.0
"""What a ``Node`` is made of, and what it needs to exchange encodings with others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ec_protocol.tables.timing import Timing
from ec_protocol.terms import Terms
from ec_protocol.tier.copies import CopyTable
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.holds import HoldTable

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
        terms: What is said of the encoder and demanded of peers beyond these (EC-8.9).
    """

    vllm_version: str
    model: str
    dtype: str
    incarnation: str
    base_addr: int = 0
    peer_quota: float = 0.5
    grant_quota: float = 0.9
    terms: Terms = field(default_factory=Terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Classes of the parts; None stands for the one that peer-to-peer imports (EC-12.2)."""

    tier: type[EncodingTier] = EncodingTier
    holds: type[HoldTable] = HoldTable
    copies: type[CopyTable] = CopyTable
    attempts: type[Attempts] | None = None
    acks: type[Acks] | None = None
    fetches: type[Fetches] | None = None
    grants: type[ProducerGrants] | None = None

    def make_reads(self, tier: EncodingTier, timing: Timing, peering: Peering) -> Fetches:
        """The reading side."""
        from ec_protocol.p2p.acks import Acks
        from ec_protocol.p2p.attempts import Attempts
        from ec_protocol.p2p.fetches import Fetches

        attempts = (self.attempts or Attempts)(
            tier,
            timing=timing,
            compat_hash=_compatibility(tier, peering),
            session=peering.incarnation,
            terms=peering.terms,
        )
        acks = (self.acks or Acks)(attempts)
        return (self.fetches or Fetches)(attempts, acks)

    def make_grants(self, tier: EncodingTier, timing: Timing, peering: Peering) -> ProducerGrants:
        """The serving side."""
        from ec_protocol.p2p.grants import ProducerGrants
        from ec_protocol.p2p.shelf import TierShelf

        return (self.grants or ProducerGrants)(
            TierShelf(tier),
            timing=timing,
            compat_hash=_compatibility(tier, peering),
            incarnation=peering.incarnation,
            base_addr=peering.base_addr,
            peer_quota=peering.peer_quota,
            grant_quota=peering.grant_quota,
            terms=peering.terms,
        )


def _compatibility(tier: EncodingTier, peering: Peering) -> str:
    from ec_protocol.p2p import wire

    return wire.compatibility_hash(
        peering.vllm_version, peering.model, peering.dtype, tier.block_size_bytes
    )
