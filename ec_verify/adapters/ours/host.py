# SPDX-License-Identifier: Apache-2.0
"""The half of the adapter ``ours`` that needs no engine: settings, hashes, real files."""

from __future__ import annotations

from collections.abc import Mapping

from ec_connector.config.settings import ECConfig
from ec_protocol.errors import ECError
from ec_protocol.p2p import wire
from ec_verify.adapters.ours.processes import Processes
from ec_verify.kit.adapter import Adapter, Json, Result


class HostSide(Adapter):
    """Operations that work before ``start``."""

    def __init__(self) -> None:
        super().__init__()
        self._processes: Processes | None = None

    def config(self, *, now: float, settings: Mapping[str, Json]) -> Result:
        """See ``Adapter.config``."""
        try:
            ECConfig.parse(settings, "ec_both", environ={})
        except ECError as exc:
            return {"ok": False, "error": str(exc)}
        return {"ok": True, "error": ""}

    def compat_hash(self, *, now: float, facts: Mapping[str, Json]) -> Result:
        """See ``Adapter.compat_hash``."""
        return {"hash": wire.compatibility_hash(**facts)}

    def region(self, *, now: float, action: str, args: Mapping[str, Json]) -> Result:
        """See ``Adapter.region``."""
        if self._processes is None:
            self._processes = Processes()
        return self._processes.act(action, args)

    def close(self) -> None:
        """End the processes and remove their files."""
        if self._processes is not None:
            self._processes.close()
            self._processes = None
