# SPDX-License-Identifier: Apache-2.0
"""What ``ec_connector_extra_config`` may say, checked before anything starts (EC-12).

The host hands the mapping over as it was typed: numbers may be strings, and nobody
has looked at the keys. ``keys.KEYS`` is the one table of them; the parser, the
did-you-mean of an unknown key and the reference in the documentation
(``config_reference``) are made from it. Nothing of the peer-to-peer half is
imported here, not even to see whether it is there.
"""

from __future__ import annotations

import difflib
import importlib.util
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from ec_connector.config import values as values_of
from ec_connector.config.keys import KEYS
from ec_protocol.engine import Role
from ec_protocol.errors import ConfigError, ECError
from ec_protocol.tables.timing import Timing, timer_specs

logger = logging.getLogger(__name__)

#: ``ec_role`` -> what the node does.
ROLES: Final[Mapping[str, Role]] = {f"ec_{role}": role for role in get_args(Role)}

HOST_VARIABLE: Final = "VLLM_EC_SIDE_CHANNEL_HOST"
PORT_VARIABLE: Final = "VLLM_EC_SIDE_CHANNEL_PORT"
DEFAULT_HOST: Final = "localhost"
DEFAULT_PORT: Final = 5601

_MISSING_NIXL: Final = (
    "ec_enable_nixl requires NIXL; install the nixl package or remove ec_enable_nixl from "
    "ec_connector_extra_config."
)


class PeerToPeerMissing(ECError, RuntimeError):
    """``ec_enable_nixl`` is on, but a package that it needs cannot be imported."""


# ---------------------------------------------------------------------- the result
@dataclass(frozen=True, slots=True, kw_only=True)
class EventSettings:
    """Where events are published, with the data-parallel rank in the endpoints.

    Attributes:
        endpoint: ZMQ endpoint of the PUB socket.
        replay_endpoint: Of the ROUTER socket that sends again; None binds none.
        topic: First frame.
        buffer: Messages kept.
        queue: Events that may wait.
    """

    endpoint: str
    replay_endpoint: str | None
    topic: str
    buffer: int
    queue: int


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
        allowed_peers: Hosts that a request may name.
        region_guard: Whether to start the region's guard.
        trace_file: Where to write the protocol trace; None writes none.
        timing: Timers; their inequalities hold.
        side_channel: Host and port that the producer binds; None unless
            peer-to-peer is on and the role produces.
        advertised: Host and port that it announces; a None means the bound one.
        encoder_widths: Elements per row by modality, ``*`` for the others; empty:
            the model's configuration tells.
        events: Where events are published; None publishes none.
        server_maps_writable: Whether the serving process may write the region.
        key_file: This instance's own keys; None: peers have no keys.
        peer_keys: The public keys of its peers; None likewise.
        insecure_control: Whether strangers on other hosts may read from here.
        encoder_revision: What the operator calls this encoder; None: it is looked at.
        require_encoder_hash: Whether peers must say which encoder is theirs.
        integrity: ``off``, or ``checksum``: what is read is compared with its checksum.
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
    advertised: tuple[str | None, int | None] = (None, None)
    encoder_widths: Mapping[str, int] = field(default_factory=dict)
    events: EventSettings | None = None
    server_maps_writable: bool = False
    key_file: str | None = None
    peer_keys: str | None = None
    insecure_control: bool = False
    encoder_revision: str | None = None
    require_encoder_hash: bool = False
    integrity: str = "off"

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
            raise values_of.wrong("ec_connector_extra_config", extra, "a mapping of keys to values")
        checked_role = ROLES.get(role) if isinstance(role, str) else None
        if checked_role is None:
            raise values_of.wrong("ec_role", role, f"one of {', '.join(ROLES)}")
        given = dict(extra or {})
        for name in given:
            if name not in KEYS:
                raise _unknown(name)
        # The key that everybody must give comes first, so that an empty mapping
        # is answered with it. A region of 0 bytes is none.
        if given.get("ec_cpu_bytes") in (None, 0, "0", ""):
            raise ConfigError(
                f"ec_cpu_bytes={given.get('ec_cpu_bytes')!r}: how much host memory encodings may "
                "take has no default; give a number of bytes above 0 in "
                "ec_connector_extra_config, for example 1073741824"
            )
        values = {
            key.name: key.parse(key.name, given[key.name]) if key.name in given else key.default
            for key in KEYS.values()
        }
        enable_nixl: bool = values["ec_enable_nixl"]
        side_channel = None
        _check_keys(values)
        advertised = _advertised(values, dp_rank)
        if enable_nixl:
            _require_peer_to_peer(checksums=values["ec_integrity"] != "off")
            if checked_role != "consumer":
                side_channel = _side_channel(os.environ if environ is None else environ, dp_rank)
                _check_announced(side_channel[0], advertised[0])
        return cls(
            role=checked_role,
            cpu_bytes=values["ec_cpu_bytes"],
            enable_nixl=enable_nixl,
            server_maps_writable=values["ec_server_maps_writable"],
            key_file=values["ec_key_file"],
            peer_keys=values["ec_peer_keys"],
            insecure_control=values["ec_insecure_control"],
            encoder_revision=values["ec_encoder_revision"],
            require_encoder_hash=values["ec_require_encoder_hash"],
            integrity=values["ec_integrity"],
            nixl_backends=values["ec_nixl_backends"],
            peer_quota=values["ec_peer_quota"],
            grant_quota=values["ec_grant_quota"],
            allowed_peers=values["ec_allowed_peers"],
            region_guard=values["ec_region_guard"],
            trace_file=values["ec_trace_file"],
            timing=Timing(**{name: values[spec.key] for name, spec in timer_specs().items()}),
            side_channel=side_channel,
            advertised=advertised,
            encoder_widths=values["ec_encoder_widths"] or {},
            events=_events(values, dp_rank),
        )

    @property
    def consumes(self) -> bool:
        """Whether the instance loads encodings."""
        return self.role != "producer"

    @property
    def serves_anywhere(self) -> bool:
        """Whether it may be reached from other hosts (EC-15.5)."""
        return self.key_file is not None or self.insecure_control

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


def _require_peer_to_peer(*, checksums: bool) -> None:
    if importlib.util.find_spec("nixl") is None:
        raise PeerToPeerMissing(_MISSING_NIXL)
    for module, package in (("zmq", "pyzmq"), ("msgspec", "msgspec")):
        if importlib.util.find_spec(module) is None:
            raise PeerToPeerMissing(
                f"ec_enable_nixl: true, but {package} cannot be imported; install "
                "ec-connector[nixl], which brings all that reads between servers need, or leave "
                "ec_enable_nixl out"
            )
    if checksums and importlib.util.find_spec("xxhash") is None:
        raise PeerToPeerMissing(
            "ec_integrity: checksum, but xxhash cannot be imported; install ec-connector[nixl], "
            "which brings all that reads between servers need, or set ec_integrity to off"
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
    return host, _with_rank(PORT_VARIABLE, base, dp_rank, text)


def _advertised(values: Mapping[str, Any], dp_rank: int) -> tuple[str | None, int | None]:
    host, port = values["ec_advertised_host"], values["ec_advertised_port"]
    if port is not None:
        port = _with_rank("ec_advertised_port", port, dp_rank)
    return host, port


def _with_rank(name: str, port: int, dp_rank: int, said: object = None) -> int:
    if port + dp_rank > 65535:
        raise ConfigError(
            f"{name}={port if said is None else said!r}: with dp_rank {dp_rank} added it is "
            f"beyond 65535; choose at most {65535 - dp_rank}"
        )
    return port + dp_rank


def _check_announced(bound: str, advertised: str | None) -> None:
    """What is announced must be an address that somebody else can connect to."""
    if bound in values_of.WILDCARDS and advertised is None:
        raise ConfigError(
            f"{HOST_VARIABLE}={bound!r}: every interface is bound, so no address is known to "
            "announce to consumers; set ec_advertised_host to one that they can reach, or "
            f"{HOST_VARIABLE} to this host's own"
        )


def _check_keys(values: Mapping[str, Any]) -> None:
    """Both or none: keys that everybody's would do for prove nothing."""
    own, peers = values["ec_key_file"], values["ec_peer_keys"]
    if own is None and peers is None:
        return
    if own is None:
        raise ConfigError(
            f"ec_peer_keys={peers!r}: a key of this instance's own is missing; make one with "
            "`ec-connector keygen`, and set ec_key_file too"
        )
    if peers is None:
        raise ConfigError(
            f"ec_key_file={own!r}: whose keys are let in is missing; set ec_peer_keys to a folder "
            "with the .key files of this instance's peers"
        )
    if not values["ec_enable_nixl"]:
        raise ConfigError(
            f"ec_key_file={own!r}: keys are for peer-to-peer; set ec_enable_nixl to true, or "
            "remove ec_key_file and ec_peer_keys"
        )


def _events(values: Mapping[str, Any], dp_rank: int) -> EventSettings | None:
    endpoint, replay = values["ec_events_endpoint"], values["ec_events_replay_endpoint"]
    if endpoint is None:
        if replay is not None:
            raise ConfigError(
                f"ec_events_replay_endpoint={replay!r}: there is nothing to send again without "
                "ec_events_endpoint; set that too"
            )
        return None
    if not values["ec_enable_nixl"]:
        raise ConfigError(
            f"ec_events_endpoint={endpoint!r}: events are part of peer-to-peer; set "
            "ec_enable_nixl to true, or remove ec_events_endpoint"
        )
    if endpoint == replay:
        raise ConfigError(
            f"ec_events_replay_endpoint={replay!r}: is ec_events_endpoint too; choose another one"
        )
    return EventSettings(
        endpoint=_of_rank("ec_events_endpoint", endpoint, dp_rank),
        replay_endpoint=(
            None if replay is None else _of_rank("ec_events_replay_endpoint", replay, dp_rank)
        ),
        topic=values["ec_events_topic"],
        buffer=values["ec_events_buffer"],
        queue=values["ec_events_queue"],
    )


def _of_rank(name: str, endpoint: str, dp_rank: int) -> str:
    """The endpoint of one data-parallel rank; rank 0 has the one that was configured."""
    if endpoint.startswith("ipc://"):
        return f"{endpoint}_dp{dp_rank}" if dp_rank else endpoint
    address, _, port = endpoint.rpartition(":")
    return f"{address}:{_with_rank(name, int(port), dp_rank)}"


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
