# SPDX-License-Identifier: Apache-2.0
"""What the data processes of an instance of the kit's are started with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ec_connector.processes.instance import READERS
from ec_connector.processes.spec import EventsSpec, InstanceSpec
from ec_protocol.p2p import wire


def make_spec(
    settings: Mapping[str, Any], incarnation: str, timing: dict[str, float]
) -> InstanceSpec:
    """What the data processes of an instance are started with.

    Args:
        settings: Of ``Adapter.start``.
        incarnation: Of this start.
        timing: Timers by name.
    """
    facts, quotas = settings["compat"], settings["quotas"]
    host, port = settings["peer"]
    serves = settings["role"] != "consumer"
    events = EventsSpec(
        endpoint="inproc://events", replay_endpoint=None, topic="ec", buffer=64, queue=64
    )
    return InstanceSpec(
        engine_id="conformance",
        incarnation=incarnation,
        engine_pid=0,
        num_blocks=settings["blocks"],
        block_size_bytes=settings["block_size_bytes"],
        compat_hash=wire.compatibility_hash(
            facts["vllm_version"], facts["model"], facts["dtype"], settings["block_size_bytes"]
        ),
        **settings["terms"],
        timing=timing,
        nixl="",
        backends=(),
        bind=("127.0.0.1", 0) if serves else None,
        advertised=(host, port),
        allowed_peers=("*",),
        peer_quota=quotas.get("peer", 0.5),
        grant_quota=quotas.get("grants", 0.9),
        events=events if settings["events"] else None,
        readers=READERS if settings["role"] != "producer" else 0,
    )
