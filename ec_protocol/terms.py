# SPDX-License-Identifier: Apache-2.0
"""What this side says of its encoder, and what it demands of the other side (EC-8.9, EC-8.10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Judgement = Literal["same", "unproven", "differs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Beyond the compatibility hash; each is optional on the wire.

    Attributes:
        encoder_hash: Stands for everything else that decides what this side's encoder puts
            out: weights, configuration, processor. ``""``: nothing is said of it.
        encoder_required: Whether nothing is exchanged with who does not say the same.
    """

    encoder_hash: str = ""
    encoder_required: bool = False

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
