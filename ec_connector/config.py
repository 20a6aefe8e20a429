# SPDX-License-Identifier: Apache-2.0
"""What ``ec_connector_extra_config`` may say, checked before anything starts (EC-12).

The host hands the mapping over as it was typed: numbers may be strings, and nobody
has looked at the keys. ``KEYS`` is the one table of them; the parser, the
did-you-mean of an unknown key and the reference in the documentation
(``config_reference``) are made from it. Nothing of the peer-to-peer half is
imported here, not even to see whether it is there.
"""

from __future__ import annotations

import difflib
import importlib.util
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from ec_connector.params import AllowedPeers
from ec_protocol.errors import ConfigError, ECError
from ec_protocol.timing import Timing, timer_specs

logger = logging.getLogger(__name__)

Role = Literal["ec_producer", "ec_consumer", "ec_both"]

HOST_VARIABLE: Final = "VLLM_EC_SIDE_CHANNEL_HOST"
PORT_VARIABLE: Final = "VLLM_EC_SIDE_CHANNEL_PORT"
DEFAULT_HOST: Final = "localhost"
DEFAULT_PORT: Final = 5601

_MISSING_NIXL: Final = (
    "ec_enable_nixl requires NIXL; install the nixl package or remove ec_enable_nixl from "
    "ec_connector_extra_config."
)
_TRUE: Final = frozenset({"true", "1", "yes"})
_FALSE: Final = frozenset({"false", "0", "no"})
_OFF_WORDS: Final = _FALSE | {"", "none", "null", "off"}


class PeerToPeerMissing(ECError, RuntimeError):
    """``ec_enable_nixl`` is on, but a package that it needs cannot be imported."""


# --------------------------------------------------------------------- value parsers
def _wrong(key: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"{key}={value!r} ({type(value).__name__}): expected {expected}")


def _seconds(key: str, value: object) -> float:
    """A number, or a string that reads as one; ``Timing`` checks the range."""
    return _number(key, value, "seconds as a number, for example 2.0")


def _number(key: str, value: object, expected: str) -> float:
    number = math.nan
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
    if not math.isfinite(number):
        raise _wrong(key, value, expected)
    return number


def _bytes(key: str, value: object) -> int:
    expected = "a positive whole number of bytes, for example 1073741824"
    number: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, float) and value.is_integer():  # JSON's 1e9
        number = int(value)
    elif isinstance(value, str) and value.isascii() and value.isdecimal():
        number = int(value) if len(value) < 20 else None
    if number is None or not 0 < number < 1 << 62:
        raise _wrong(key, value, expected)
    return number


def _gate(key: str, value: object) -> bool:
    """``true``, ``1`` and ``yes`` switch on; whatever else is said does not."""
    word = str(value).lower()
    if word not in _TRUE and word not in _OFF_WORDS:
        logger.warning('%s=%r counts as false: only "true", "1" and "yes" enable it', key, value)
    return word in _TRUE


def _flag(key: str, value: object) -> bool:
    """A switch that is on by default: a typing error must not switch it off."""
    word = str(value).lower() if isinstance(value, str | bool | int) else ""
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise _wrong(key, value, "true or false")


def _names(key: str, value: object) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    expected = 'backend names as a list or a comma-separated string, for example ["UCX"]'
    if not isinstance(items, list | tuple) or not items:
        raise _wrong(key, value, expected)
    names = tuple(item.strip() if isinstance(item, str) else "" for item in items)
    if not all(names) or len(set(names)) != len(names):
        raise _wrong(key, value, expected + ", each once")
    return names


def _peers(key: str, value: object) -> tuple[str, ...]:
    expected = (
        "host names, addresses or networks as a list or a comma-separated string, for example "
        '["10.1.0.0/16", "encoder-0"]'
    )
    rules = value.split(",") if isinstance(value, str) else value
    if not isinstance(rules, list | tuple) or not all(isinstance(rule, str) for rule in rules):
        raise _wrong(key, value, expected)
    names = tuple(rule.strip() for rule in rules)
    try:
        AllowedPeers(names)
    except ValueError as exc:
        raise _wrong(key, value, f"{expected}; {exc}") from exc
    return names


def _share(key: str, value: object) -> float:
    expected = "a share of the region, more than 0 and at most 1"
    share = _number(key, value, expected)
    if not 0 < share <= 1:
        raise _wrong(key, value, expected)
    return share


def _path(key: str, value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise _wrong(key, value, "the path of a file")
    return value


# ----------------------------------------------------------------------- the table
@dataclass(frozen=True, slots=True)
class Key:
    """One key of ``ec_connector_extra_config``.

    Attributes:
        name: The key.
        type: Its type, for the reference.
        default: Its default; None where there is none.
        doc: What it does.
        parse: Turns a raw value into a checked one, or raises ``ConfigError``.
        required: Whether it must be given.
    """

    name: str
    type: str
    default: Any
    doc: str
    parse: Callable[[str, object], Any]
    required: bool = False


def _keys() -> dict[str, Key]:
    keys = [
        Key(
            "ec_cpu_bytes",
            "int",
            None,
            "Bytes of the shared region of one instance and data-parallel rank. Whole blocks "
            "are used; a block is one row of the encoder output.",
            _bytes,
            required=True,
        ),
        Key(
            "ec_enable_nixl",
            "bool",
            False,
            'Peer-to-peer reads over NIXL. "true", "1" and "yes" enable it, anything else does '
            "not. While it is off, no NIXL, ZMQ or msgspec is imported.",
            _gate,
        ),
        Key(
            "ec_nixl_backends",
            "list[str]",
            ("UCX",),
            "NIXL backends, in order of preference; a list or a comma-separated string.",
            _names,
        ),
        Key(
            "ec_peer_quota",
            "float",
            0.5,
            "Producer: share of the region that one peer may keep pinned at a time.",
            _share,
        ),
        Key(
            "ec_grant_quota",
            "float",
            0.9,
            "Producer: share of the region that all peers together may keep pinned at a time.",
            _share,
        ),
        Key(
            "ec_allowed_peers",
            "list[str]",
            (),
            "Consumer: hosts that a request may name as producers: names, addresses or networks; "
            "a list or a comma-separated string. Empty allows every host.",
            _peers,
        ),
        Key(
            "ec_region_guard",
            "bool",
            True,
            "Start a tiny process that removes the region's file even when every process of "
            "the instance is killed. Without it the next start on the host does.",
            _flag,
        ),
        Key(
            "ec_trace_file",
            "str",
            None,
            "Write every protocol action to this file, for `ec-protocol trace check`.",
            _path,
        ),
    ]
    keys += [
        Key(timer.key, "float", timer.default, f"Seconds. {timer.doc}", _seconds)
        for timer in timer_specs().values()
    ]
    return {key.name: key for key in keys}


#: Every key by name, in the order of the reference.
KEYS: Final[Mapping[str, Key]] = _keys()


# ---------------------------------------------------------------------- the result
@dataclass(frozen=True, slots=True, kw_only=True)
class ECConfig:
    """The checked settings of one process.

    Attributes:
        role: What the instance does.
        cpu_bytes: ``ec_cpu_bytes``.
        enable_nixl: Whether peer-to-peer reads are on.
        nixl_backends: NIXL backends in order of preference.
        peer_quota: Share of the region that one peer may pin.
        grant_quota: Share of the region that all peers together may pin.
        allowed_peers: Hosts that a request may name; empty: every one.
        region_guard: Whether to start the region's guard.
        trace_file: Where to write the protocol trace; None writes none.
        timing: Timers; their inequalities hold.
        side_channel: Host and port that the producer binds; None unless
            peer-to-peer is on and the role produces.
    """

    role: Role
    cpu_bytes: int
    enable_nixl: bool
    nixl_backends: tuple[str, ...]
    peer_quota: float
    grant_quota: float
    allowed_peers: tuple[str, ...]
    region_guard: bool
    trace_file: str | None
    timing: Timing
    side_channel: tuple[str, int] | None

    @classmethod
    def parse(
        cls,
        extra: Mapping[str, Any] | None,
        role: str | None,
        *,
        dp_rank: int = 0,
        environ: Mapping[str, str] | None = None,
    ) -> ECConfig:
        """Check ``ec_connector_extra_config``.

        Args:
            extra: The mapping as the host passes it on; None counts as empty.
            role: ``ec_role``.
            dp_rank: Data-parallel rank; added to the control port.
            environ: Environment; None is the process's own. Read only by a
                producer with peer-to-peer on.

        Raises:
            ConfigError: A ``ValueError``: a key is unknown (EC-12.1), missing
                (EC-12.3) or has a wrong value, or timers contradict each other.
            PeerToPeerMissing: A ``RuntimeError``: a package is not installed.
        """
        if extra is not None and not isinstance(extra, Mapping):
            raise _wrong("ec_connector_extra_config", extra, "a mapping of keys to values")
        roles: tuple[Role, ...] = get_args(Role)
        checked_role = next((known for known in roles if known == role), None)
        if checked_role is None:
            raise _wrong("ec_role", role, f"one of {', '.join(roles)}")
        given = dict(extra or {})
        for name in given:
            if name not in KEYS:
                raise _unknown(name)
        # The key that everybody must give comes first, so that an empty mapping
        # is answered with it. A region of 0 bytes is none.
        if given.get("ec_cpu_bytes") in (None, 0, "0", ""):
            raise ConfigError(
                f"ec_cpu_bytes={given.get('ec_cpu_bytes')!r}: ec_cpu_bytes is required and must "
                "be positive; set it in ec_connector_extra_config to the bytes of host memory "
                "for encodings, for example 1073741824"
            )
        values = {
            key.name: key.parse(key.name, given[key.name]) if key.name in given else key.default
            for key in KEYS.values()
        }
        enable_nixl: bool = values["ec_enable_nixl"]
        side_channel = None
        if enable_nixl:
            _require_peer_to_peer()
            if checked_role != "ec_consumer":
                side_channel = _side_channel(os.environ if environ is None else environ, dp_rank)
        return cls(
            role=checked_role,
            cpu_bytes=values["ec_cpu_bytes"],
            enable_nixl=enable_nixl,
            nixl_backends=values["ec_nixl_backends"],
            peer_quota=values["ec_peer_quota"],
            grant_quota=values["ec_grant_quota"],
            allowed_peers=values["ec_allowed_peers"],
            region_guard=values["ec_region_guard"],
            trace_file=values["ec_trace_file"],
            timing=Timing(**{name: values[spec.key] for name, spec in timer_specs().items()}),
            side_channel=side_channel,
        )

    @property
    def produces(self) -> bool:
        """Whether the instance saves encodings."""
        return self.role != "ec_consumer"

    @property
    def consumes(self) -> bool:
        """Whether the instance loads encodings."""
        return self.role != "ec_producer"

    def num_blocks(self, block_size_bytes: int) -> int:
        """Blocks of the region.

        Args:
            block_size_bytes: Bytes of one row of the encoder output.

        Raises:
            ConfigError: Not even one block fits.
        """
        if block_size_bytes < 1:
            raise ConfigError(f"block_size_bytes={block_size_bytes!r}: must be positive")
        count = self.cpu_bytes // block_size_bytes
        if count < 1:
            raise ConfigError(
                f"ec_cpu_bytes={self.cpu_bytes}: less than one block of {block_size_bytes} bytes; "
                "raise ec_cpu_bytes to hold at least a few whole encodings"
            )
        return count


def _unknown(name: object) -> ConfigError:
    # Some timers go by another name in the specification than in the settings.
    meant = {key: key for key in KEYS} | {timer.name: timer.key for timer in timer_specs().values()}
    near = difflib.get_close_matches(str(name), meant, n=1, cutoff=0.5)
    hint = f"did you mean {meant[near[0]]!r}?" if near else f"known keys: {', '.join(KEYS)}"
    return ConfigError(f"ec_connector_extra_config has an unknown key {name!r}: {hint}")


def _require_peer_to_peer() -> None:
    if importlib.util.find_spec("nixl") is None:
        raise PeerToPeerMissing(_MISSING_NIXL)
    for module, package in (("zmq", "pyzmq"), ("msgspec", "msgspec")):
        if importlib.util.find_spec(module) is None:
            raise PeerToPeerMissing(
                f"ec_enable_nixl requires {package}; install the {package} package (or "
                "ec-connector[nixl], which brings all) or remove ec_enable_nixl from "
                "ec_connector_extra_config."
            )


def _side_channel(environ: Mapping[str, str], dp_rank: int) -> tuple[str, int]:
    host = environ.get(HOST_VARIABLE, DEFAULT_HOST).strip()
    if not host:
        raise ConfigError(
            f"{HOST_VARIABLE}={environ[HOST_VARIABLE]!r}: expected a host name or address that "
            "consumers can reach; unset it to use localhost"
        )
    text = environ.get(PORT_VARIABLE, str(DEFAULT_PORT))
    base = int(text) if text.isascii() and text.isdecimal() and len(text) <= 5 else 0
    if not 0 < base <= 65535:
        raise ConfigError(f"{PORT_VARIABLE}={text!r}: expected a port from 1 to 65535")
    if base + dp_rank > 65535:
        raise ConfigError(
            f"{PORT_VARIABLE}={text!r}: with dp_rank {dp_rank} added it is beyond 65535; choose "
            f"at most {65535 - dp_rank}"
        )
    return host, base + dp_rank


# -------------------------------------------------------------------- the reference
def config_reference() -> str:
    """The reference of all keys and variables as two Markdown tables."""
    lines = [
        "| key | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for key in KEYS.values():
        default = "**required**" if key.required else f"`{_shown(key.default)}`"
        lines.append(f"| `{key.name}` | `{key.type}` | {default} | {key.doc} |")
    lines += [
        "",
        "Read only by a producer (`ec_producer` or `ec_both`) with `ec_enable_nixl` on:",
        "",
        "| variable | default | meaning |",
        "|---|---|---|",
        f"| `{HOST_VARIABLE}` | `{DEFAULT_HOST}` | Host that the control socket binds and that "
        "is announced; the default works on one host only. |",
        f"| `{PORT_VARIABLE}` | `{DEFAULT_PORT}` | Its port; the data-parallel rank is added. |",
    ]
    return "\n".join(lines) + "\n"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)
