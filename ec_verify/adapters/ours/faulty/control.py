# SPDX-License-Identifier: Apache-2.0
"""Instances whose control plane finds out about lost peers too late, or too soon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ec_connector.network.control import ControlClient
from ec_protocol.p2p.commands import PeerKey
from ec_verify.adapters.ours.adapter import Ours
from ec_verify.adapters.ours.faulty.registry import fault, with_timers
from ec_verify.kit.adapter import Json, Result


class _Control(Ours):
    """Another client of the control plane."""

    def client(self, client: ControlClient) -> ControlClient:
        """What stands in for the sound one."""
        raise NotImplementedError

    def start(self, *, now: float, settings: Mapping[str, Json]) -> Result:
        """See ``Adapter.start``."""
        result = super().start(now=now, settings=settings)
        if self.io is not None and self.io._client is not None:
            self.io._client = self.client(self.io._client)
        return result


def _with(client: ControlClient, **timers: float) -> ControlClient:
    return ControlClient(client._context, with_timers(client._timing, **timers))


@fault("heartbeats-are-off", "EC-9.1", part="adapter")
class HeartbeatsAreOff(_Control):
    """A peer that falls silent is never missed: its connections have no heartbeats."""

    def client(self, client: ControlClient) -> ControlClient:
        return _with(client, heartbeat_interval_s=0.0)


@fault("silence-counts-too-soon", "EC-9.1", part="adapter")
class SilenceCountsTooSoon(_Control):
    """A peer is given up after a quarter of the time that it has."""

    def client(self, client: ControlClient) -> ControlClient:
        timing = client._timing
        return _with(
            client,
            heartbeat_interval_s=timing.heartbeat_interval_s / 4,
            heartbeat_timeout_s=timing.heartbeat_timeout_s / 4,
        )


class _Patient(ControlClient):
    def open(self, peer: PeerKey, now: float) -> None:
        super().open(peer, now)
        if peer in self._connections:
            self._connections[peer].give_up_at = None


@fault("connections-are-waited-for", "EC-9.1", part="adapter")
class ConnectionsAreWaitedFor(_Control):
    """A connection that is not made is not given up."""

    def client(self, client: ControlClient) -> ControlClient:
        return _Patient(cast(Any, client._context), client._timing)
