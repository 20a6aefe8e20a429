# SPDX-License-Identifier: Apache-2.0
"""Names under which a tier keeps encodings: the encoding's own, or a stranger's (EC-15.8).

What was read from a peer that has not authenticated is kept under a name of its own, made
of the peer and the encoding. A request finds it only if it names that peer itself; to
everybody else it is not there. The tier need not know: to it this is a name like any other.
"""

from __future__ import annotations

from typing import Final

#: How such a name begins. An encoding whose own name does is not kept at all.
_MARK: Final = "peer://"


def stranger_name(mm_hash: str, host: str, port: int) -> str:
    """The name for what a peer that has not authenticated says an encoding is.

    Args:
        mm_hash: The encoding.
        host: The peer's host, as the request names it; no slash.
        port: Its port.
    """
    return f"{_MARK}{host}:{port}/{mm_hash}"


def is_strangers(name: str) -> bool:
    """Whether what is kept under a name is a stranger's word."""
    return name.startswith(_MARK)


def encoding_of(name: str) -> str:
    """The encoding that is kept, or said to be, under a name."""
    return name[len(_MARK) :].partition("/")[2] if is_strangers(name) else name


def stranger_of(name: str) -> str:
    """The peer by whose word; ``""``: it is nobody's but our own."""
    return name[len(_MARK) :].partition("/")[0] if is_strangers(name) else ""
