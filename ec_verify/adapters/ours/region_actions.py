# SPDX-License-Identifier: Apache-2.0
"""What the adapters' ``region`` operations have in common."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from ec_verify.kit.adapter import Unsupported


class RegionActions(ABC):
    """Actions of ``docs/conformance/adapter.md``: one method ``do_NAME`` each."""

    def act(self, action: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out an action.

        Raises:
            Unsupported: There is no such action.
        """
        method = getattr(self, f"do_{action}", None)
        if method is None:
            raise Unsupported(f"region {action}")
        result: dict[str, Any] = method(**args)
        return result

    def do_files(self, settle_s: float = 0.0, count: int | None = None) -> dict[str, Any]:
        """Files of the case; waits up to ``settle_s`` until there are ``count``."""
        until = time.monotonic() + settle_s
        while True:
            names = sorted(self.names())
            if count is None or len(names) == count or time.monotonic() >= until:
                return {"names": names}
            time.sleep(0.01)

    @abstractmethod
    def names(self) -> list[str]:
        """Names of the files that there are, as the kit is told them."""
