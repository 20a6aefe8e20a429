# SPDX-License-Identifier: Apache-2.0
"""What every step of the schedule language has."""

from __future__ import annotations

from typing import Literal

import msgspec

#: A time expression: ``"sent + lease_s - lease_margin_s - eps"`` or a number of seconds.
Time = str | float


class Step(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename={"source": "from"}):
    """Fields that every step may have.

    Attributes:
        note: For people; shown with a failure.
        level: ``SHOULD`` makes a missed expectation of this step NON-STRICT.
        clause: The clause of this step's expectation, if not the case's own.
    """

    note: str = ""
    level: Literal["MUST", "SHOULD"] | None = None
    clause: str = ""
