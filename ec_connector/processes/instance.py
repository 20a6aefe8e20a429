# SPDX-License-Identifier: Apache-2.0
"""What the processes of an instance are told, out of the settings of its engine."""

from __future__ import annotations

import os
import secrets
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from ec_connector.config.settings import ECConfig
from ec_connector.engine.facts import ModelFacts
from ec_connector.processes.devices import reading_from, serving_on
from ec_connector.processes.spec import EventsSpec, InstanceSpec
from ec_protocol.p2p import wire
from ec_protocol.terms import XXH3_128

if TYPE_CHECKING:
    from ec_connector.region.shared import SharedRegion

#: Readers that work: one, and one for those who have done harm.
READERS: Final = 2


def instance_spec(
    config: ECConfig, facts: ModelFacts, region: SharedRegion, engine_id: str
) -> InstanceSpec:
    """Everything that is the same for all of them; a new incarnation each time (EC-9.2).

    Raises:
        BindError: Other hosts could reach what is to be bound, and nobody said that they may.
    """
    from ec_connector.network.addresses import address_to_bind
    from ec_connector.network.data.library import which_nixl

    events = config.events
    if config.side_channel is not None:
        # Now, and not only where it is bound: nothing is started in vain.
        address_to_bind(*config.side_channel, anywhere=config.serves_anywhere)
    return InstanceSpec(
        engine_id=engine_id,
        # Another start is another incarnation, also under the same engine id (EC-9.2).
        incarnation=secrets.token_hex(8),
        engine_pid=os.getpid(),
        num_blocks=region.num_blocks,
        block_size_bytes=region.block_size_bytes,
        compat_hash=wire.compatibility_hash(
            facts.vllm_version, facts.model, f"torch.{facts.dtype}", region.block_size_bytes
        ),
        encoder_hash=facts.encoder_hash,
        encoder_required=config.require_encoder_hash,
        checksum=XXH3_128 if config.integrity == "checksum" else "",
        timing={field.name: getattr(config.timing, field.name) for field in fields(config.timing)},
        nixl=which_nixl(),
        backends=config.nixl_backends,
        writable=config.server_maps_writable,
        bind=config.side_channel,
        advertised=config.advertised,
        peer_quota=config.peer_quota,
        grant_quota=config.grant_quota,
        events=None
        if events is None
        else EventsSpec(
            endpoint=events.endpoint,
            replay_endpoint=events.replay_endpoint,
            topic=events.topic,
            buffer=events.buffer,
            queue=events.queue,
        ),
        key_file=config.key_file,
        peer_keys=config.peer_keys,
        anywhere=config.serves_anywhere,
        allowed_peers=config.allowed_peers,
        server_devices=serving_on(config.side_channel[0]) if config.side_channel else "",
        reader_devices=reading_from(config.allowed_peers) if config.consumes else "",
        readers=READERS if config.consumes else 0,
        trace_file=config.trace_file,
    )
