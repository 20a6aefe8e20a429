# SPDX-License-Identifier: Apache-2.0
"""What this side says and demands beyond the compatibility hash (EC-8.9 to EC-8.11)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

#: Name of the one checksum that there is: XXH3 with 128 bits and seed 0.
XXH3_128: Final = "xxh3_128"
_DIGITS: Final = re.compile(r"[0-9a-f]{32}")

Judgement = Literal["same", "unproven", "differs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Beyond the compatibility hash; each is optional on the wire.

    Attributes:
        encoder_hash: Stands for everything else that decides what this side's encoder puts
            out: weights, configuration, processor. ``""``: nothing is said of it.
        encoder_required: Whether nothing is exchanged with who does not say the same.
        checksum: Name of the checksum that a consumer demands and a producer offers; ``""``:
            none.
    """

    encoder_hash: str = ""
    encoder_required: bool = False
    checksum: str = ""

    def has_checksum(self, said: str) -> bool:
        """Whether an ack's ``checksum`` is one that we can compare with."""
        name, _, digits = said.partition(":")
        return bool(name) and name == self.checksum and _DIGITS.fullmatch(digits) is not None

    def judge(self, theirs: str) -> Judgement:
        """What the other side's ``encoder_hash`` means; ``""`` if it has said none.

        Returns:
            ``same``: also where neither has said anything. ``differs``: the bytes of one
            are not to be used for the other's. ``unproven``: one has not said, and we do
            not demand it.
        """
        if theirs == self.encoder_hash and (theirs or not self.encoder_required):
            return "same"
        if self.encoder_required or (theirs and self.encoder_hash):
            return "differs"
        return "unproven"
