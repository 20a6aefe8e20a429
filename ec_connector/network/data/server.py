# SPDX-License-Identifier: Apache-2.0
"""Producer side of the data plane: memory to read from, and completion notices."""

from __future__ import annotations

from collections.abc import Sequence

from ec_connector.network.data.base import DataPlaneError, DataPlaneServer
from ec_connector.network.data.library import Agent, attempt


class NixlServer(DataPlaneServer):
    """Offers one region to READs by other processes. One thread only.

    Args:
        name: Unique per process incarnation: consumers key their connections by it.
        address: First byte of the region.
        nbytes: Its length.
        backends: NIXL backends, in order of preference.
        package: See ``library.which_nixl``.

    Raises:
        DataPlaneConfigError: A backend is unknown, or nixl is missing.
        DataPlaneError: The region cannot be registered.
    """

    def __init__(
        self,
        name: str,
        address: int,
        nbytes: int,
        backends: Sequence[str] = ("UCX",),
        package: str = "nixl",
    ) -> None:
        super().__init__()
        self._agent: Agent | None = Agent(f"{name}.serve", backends, address, nbytes, package)
        self._metadata = self._agent.metadata()

    @property
    def agent_metadata(self) -> bytes:
        """What a consumer needs to READ from us."""
        return self._metadata

    def poll_notices(self) -> list[bytes]:
        """Progress the agent and take the completion notices (EC-5.5)."""
        self._check_thread()
        if self._agent is None:
            raise DataPlaneError("the data plane's server is closed")
        by_agent = attempt("polling for notices", self._agent.nixl.get_new_notifs)
        return [notice for notices in by_agent.values() for notice in notices]

    def close(self) -> None:
        """Destroy the agent: READs from us fail from here on."""
        self._check_thread()
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.destroy()
