# SPDX-License-Identifier: Apache-2.0
"""How strictly a clause may be judged: RFC 2119's words in its text."""

from __future__ import annotations

import re
from typing import Final, Literal

Level = Literal["MUST", "SHOULD"]

_KEYWORD: Final = re.compile(r"\b(?:MUST|SHOULD|MAY)\b")


def strictest(text: str) -> Level:
    """The level of a clause, or of a sentence of one: that of its strongest keyword.

    What is stated without a keyword has to be so. What MAY be is at most expected.
    """
    words = set(_KEYWORD.findall(text))
    return "MUST" if "MUST" in words or not words else "SHOULD"
