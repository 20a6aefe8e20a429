# SPDX-License-Identifier: Apache-2.0
"""Whether vLLM names media by their content, or by counting requests (EC-2.8).

vLLM hashes the content of media to find them again in its own caches. With the cache of
processed media and prefix caching both off it has no use for that and counts instead:
``renderer0-mm-25-image-0``. Another server, or the same one after a restart, gives that
name to another picture. A UUID that a client sends stays a name in either case; but with
options for the processor in the request, UUID or count go into a hash, and nobody can
tell any more which of them it was.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ec_protocol.items import is_counted

logger = logging.getLogger(__name__)

#: Releases whose counted names are known to have the form of ``is_counted``.
_KNOWN_RELEASES: Final = re.compile(r"0\.3[23](\.|\Z)")
#: What a hash of 256 or 512 bits looks like.
_DIGEST: Final = re.compile(r"[0-9a-f]{64}|[0-9a-f]{128}")


@dataclass(frozen=True, slots=True)
class Names:
    """Which names of media may stand for their encodings.

    Attributes:
        counting: Whether this server names media by counting requests.
        known_release: Whether the form of counted names is known.
    """

    counting: bool = False
    known_release: bool = True

    def follows_content(self, mm_hash: str, params: object) -> bool:
        """Whether equal names mean equal media, as far as can be told; else False.

        Args:
            mm_hash: The name, by whoever gave it.
            params: ``ec_transfer_params`` of the request, of any type. A name that they
                hold was there before this server could count.
        """
        if is_counted(mm_hash):
            return False
        if not self.counting or (isinstance(params, Mapping) and mm_hash in params):
            return True
        if not self.known_release:
            return False
        return _DIGEST.fullmatch(mm_hash[mm_hash.rfind(":") + 1 :]) is None

    def warn(self) -> None:
        """Say at start-up what will not work, and which flag to change."""
        if self.counting:
            logger.error(
                "--mm-processor-cache-gb 0 together with --no-enable-prefix-caching: vLLM names "
                "pictures, videos and sounds by counting requests, not by their content, so "
                "their encodings are neither kept nor exchanged, except under UUIDs that a "
                "request brings. Remove one of the two flags, on every server, also those that "
                "only render requests"
            )


def read_names(vllm_config: Any, vllm_version: str) -> Names:
    """How the server with this ``VllmConfig`` names media.

    What cannot be read counts as off: then names are trusted less, not more.
    """
    media = getattr(vllm_config.model_config, "multimodal_config", None)
    cache = getattr(vllm_config, "cache_config", None)
    processor_cache = getattr(media, "mm_processor_cache_gb", 0)
    prefix_caching = getattr(cache, "enable_prefix_caching", False)
    return Names(
        counting=not processor_cache and not prefix_caching,
        known_release=_KNOWN_RELEASES.match(vllm_version) is not None,
    )
