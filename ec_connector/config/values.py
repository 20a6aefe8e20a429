# SPDX-License-Identifier: Apache-2.0
"""Parsers of single configuration values: each returns a checked value or says what is wrong.

All take the key's name and the value as it was typed, and raise ``ConfigError`` with
key, value and what was expected (EC-12.1).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Final

from ec_connector.config.peers import AllowedPeers
from ec_protocol.announcements import HOST
from ec_protocol.errors import ConfigError

logger = logging.getLogger(__name__)

#: Most of anything that is counted: a larger buffer would only be a typing error.
MAX_COUNT: Final = 1 << 24
#: Widest row: one of 4 MiB at four bytes per element.
MAX_WIDTH: Final = 1 << 20
#: The kernel's bound for the path of a socket, less a suffix for the rank.
MAX_IPC_PATH: Final = 95
#: What can be bound and not be connected to from elsewhere.
WILDCARDS: Final = frozenset({"*", "0.0.0.0", "::", "[::]"})

_TRUE: Final = frozenset({"true", "1", "yes"})
_FALSE: Final = frozenset({"false", "0", "no"})
_OFF_WORDS: Final = _FALSE | {"", "none", "null", "off"}


def wrong(key: str, value: object, expected: str) -> ConfigError:
    """The error for a value that is not ``expected``."""
    return ConfigError(f"{key}={value!r} ({type(value).__name__}): expected {expected}")


def seconds(key: str, value: object) -> float:
    """A number, or a string that reads as one; ``Timing`` checks the range."""
    return number_of(key, value, "seconds as a number, for example 2.0")


def number_of(key: str, value: object, expected: str) -> float:
    """A finite number, or a string that reads as one."""
    number = math.nan
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
    if not math.isfinite(number):
        raise wrong(key, value, expected)
    return number


def whole(key: str, value: object, expected: str) -> int:
    """A positive whole number, as a number or as its decimal digits."""
    number: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, float) and value.is_integer():  # JSON's 1e9
        number = int(value)
    elif isinstance(value, str) and value.isascii() and value.isdecimal():
        number = int(value) if len(value) < 20 else None
    if number is None or not 0 < number < 1 << 62:
        raise wrong(key, value, expected)
    return number


def size(key: str, value: object) -> int:
    """A positive number of bytes."""
    return whole(key, value, "a positive whole number of bytes, for example 1073741824")


def count(key: str, value: object) -> int:
    """A number of things that are kept in memory."""
    expected = f"a positive whole number of at most {MAX_COUNT}"
    number = whole(key, value, expected)
    if number > MAX_COUNT:
        raise wrong(key, value, expected)
    return number


def gate(key: str, value: object) -> bool:
    """``true``, ``1`` and ``yes`` switch on; whatever else is said does not."""
    word = str(value).lower()
    if word not in _TRUE and word not in _OFF_WORDS:
        logger.warning('%s=%r counts as false: only "true", "1" and "yes" enable it', key, value)
    return word in _TRUE


def flag(key: str, value: object) -> bool:
    """A switch of which a typing error must decide nothing."""
    word = str(value).lower() if isinstance(value, str | bool | int) else ""
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise wrong(key, value, "true or false")


def names_of(key: str, value: object) -> tuple[str, ...]:
    """Names of NIXL backends, each once."""
    items = value.split(",") if isinstance(value, str) else value
    expected = 'backend names as a list or a comma-separated string, for example ["UCX"]'
    if not isinstance(items, list | tuple) or not items:
        raise wrong(key, value, expected)
    names = tuple(item.strip() if isinstance(item, str) else "" for item in items)
    if not all(names) or len(set(names)) != len(names):
        raise wrong(key, value, expected + ", each once")
    return names


def peers(key: str, value: object) -> tuple[str, ...]:
    """Rules of ``AllowedPeers``."""
    expected = (
        "host names, addresses or networks as a list or a comma-separated string, for example "
        '["10.1.0.0/16", "encoder-0"]'
    )
    rules = value.split(",") if isinstance(value, str) else value
    if not isinstance(rules, list | tuple) or not all(isinstance(rule, str) for rule in rules):
        raise wrong(key, value, expected)
    names = tuple(rule.strip() for rule in rules)
    try:
        AllowedPeers(names)
    except ValueError as exc:
        raise wrong(key, value, f"{expected}; {exc}") from exc
    return names


def share_of(key: str, value: object) -> float:
    """More than 0 and at most 1."""
    expected = "a share of the region, more than 0 and at most 1"
    share = number_of(key, value, expected)
    if not 0 < share <= 1:
        raise wrong(key, value, expected)
    return share


def path(key: str, value: object) -> str:
    """A path of a file, as far as its text can tell."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise wrong(key, value, "the path of a file")
    return value


def widths(key: str, value: object) -> dict[str, int]:
    """Elements per row of the encoder output, by modality; ``*`` stands for the others."""
    expected = (
        "elements per row as a number for every modality, or by modality, for example "
        '{"image": 14336, "audio": 3584} or "image=14336,audio=3584"'
    )
    pairs: dict[object, object]
    if isinstance(value, Mapping):
        pairs = dict(value)
    elif isinstance(value, str) and "=" in value:
        parts = [part.partition("=") for part in value.split(",")]
        pairs = {name.strip(): number.strip() for name, _, number in parts}
        if len(pairs) != len(parts):
            raise wrong(key, value, expected + ", each modality once")
    else:
        pairs = {"*": value}
    found: dict[str, int] = {}
    for modality, number in pairs.items():
        if not isinstance(modality, str) or not modality:
            raise wrong(key, value, expected)
        found[modality] = whole(key, number, expected)
        if found[modality] > MAX_WIDTH:
            raise wrong(key, value, f"{expected}; at most {MAX_WIDTH}")
    if not found:
        raise wrong(key, value, expected)
    return found


def host(key: str, value: object) -> str:
    """A host name or address that peers can connect to."""
    expected = "a host name or address that consumers can reach, for example 10.0.0.5"
    if not isinstance(value, str) or not HOST.fullmatch(value) or value in WILDCARDS:
        raise wrong(key, value, expected)
    return value.strip("[]")  # an address is announced as it is, whatever its family


def port(key: str, value: object) -> int:
    """A TCP port."""
    expected = "a port from 1 to 65535"
    number = whole(key, value, expected)
    if number > 65535:
        raise wrong(key, value, expected)
    return number


def name(key: str, value: object) -> str:
    """A word that stands for something."""
    if not isinstance(value, str) or not 0 < len(value) <= 256:
        raise wrong(key, value, "a text of 1 to 256 characters")
    return value


def integrity(key: str, value: object) -> str:
    """How it is made sure that what came is what was there."""
    if value not in ("off", "checksum"):
        raise wrong(key, value, "off or checksum")
    return str(value)


def topic(key: str, value: object) -> str:
    """The first frame of an event message."""
    if not isinstance(value, str) or len(value.encode(errors="replace")) > 256:
        raise wrong(key, value, "a short text, for example ec; empty is allowed")
    return value


def endpoint(key: str, value: object) -> str:
    """Where a ZMQ socket is bound: ``tcp://HOST:PORT`` or ``ipc://PATH``."""
    expected = 'a ZMQ endpoint to bind, for example "tcp://*:5650" or "ipc:///run/ec.sock"'
    if not isinstance(value, str) or "\0" in value:
        raise wrong(key, value, expected)
    scheme, _, rest = value.partition("://")
    if scheme == "ipc" and 0 < len(rest.encode(errors="replace")) <= MAX_IPC_PATH:
        return value
    name, colon, number = rest.rpartition(":")
    if scheme != "tcp" or not colon or not (name == "*" or HOST.fullmatch(name)):
        raise wrong(key, value, expected)
    port(key, number)
    return value
