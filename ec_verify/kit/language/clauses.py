# SPDX-License-Identifier: Apache-2.0
"""The clauses of the protocol, and how strictly each may be judged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Final, Literal

from ec_protocol.tables.files import spec_path

Level = Literal["MUST", "SHOULD"]

_CLAUSE: Final = re.compile(r"^- \*\*(EC-\d+\.\d+)\*\* (.*)$", re.M)
#: RFC 2119's words.
_KEYWORD: Final = re.compile(r"\b(?:MUST|SHOULD|MAY)\b")


@cache
def clauses() -> Mapping[str, str]:
    """Every clause of ``PROTOCOL.md`` by its address, without markup around it."""
    return dict(_CLAUSE.findall(spec_path("PROTOCOL.md").read_text(encoding="utf-8")))


def strictest(text: str) -> Level:
    """The level of a clause, or of a sentence of one: that of its strongest keyword.

    What is stated without a keyword has to be so. What MAY be is at most expected.
    """
    words = set(_KEYWORD.findall(text))
    return "MUST" if "MUST" in words or not words else "SHOULD"
