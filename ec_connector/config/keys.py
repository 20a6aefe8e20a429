# SPDX-License-Identifier: Apache-2.0
"""The one table of the keys of ``ec_connector_extra_config``: name, type, default, parser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ec_connector.config import values as values_of
from ec_connector.config.peers import ONLY_HERE
from ec_protocol.tables.timing import timer_specs


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
            values_of.size,
            required=True,
        ),
        Key(
            "ec_enable_nixl",
            "bool",
            False,
            'Peer-to-peer reads over NIXL. "true", "1" and "yes" enable it, anything else does '
            "not. While it is off, no NIXL, ZMQ or msgspec is imported.",
            values_of.gate,
        ),
        Key(
            "ec_nixl_backends",
            "list[str]",
            ("UCX",),
            "NIXL backends, in order of preference; a list or a comma-separated string.",
            values_of.names_of,
        ),
        Key(
            "ec_peer_quota",
            "float",
            0.5,
            "Producer: share of the region that one peer may keep pinned at a time.",
            values_of.share_of,
        ),
        Key(
            "ec_grant_quota",
            "float",
            0.9,
            "Producer: share of the region that all peers together may keep pinned at a time. "
            "A larger encoding is granted to one peer at a time, with a lease in between.",
            values_of.share_of,
        ),
        Key(
            "ec_server_maps_writable",
            "bool",
            False,
            "Producer: map the region writable in the process that serves it, for NIXL backends "
            "that cannot register read-only memory. A peer that has the agent's metadata can "
            "then write into the region.",
            values_of.flag,
        ),
        Key(
            "ec_allowed_peers",
            "list[str]",
            ONLY_HERE,
            "Consumer: hosts that a request may name as producers: names, addresses or networks; "
            "a list or a comma-separated string. The default is this host. `*` allows every host, "
            "an empty list none.",
            values_of.peers,
        ),
        Key(
            "ec_key_file",
            "str",
            None,
            "This instance's own keys, as `ec-connector keygen` writes them (the `.key_secret`). "
            "With them peers authenticate each other and what they say is encrypted (CURVE). Only "
            "its owner may read the file. Needs ec_peer_keys.",
            values_of.path,
        ),
        Key(
            "ec_peer_keys",
            "str",
            None,
            "Public keys of the instances that may read from this one, and that this one reads "
            "from: a folder of `.key` files, or one file of all of them. A change counts within a "
            "second. Needs ec_key_file.",
            values_of.path,
        ),
        Key(
            "ec_insecure_control",
            "bool",
            False,
            "Producer: serve other hosts without keys. Whoever reaches the control socket can then "
            "read the whole region: for a network that nobody else is on.",
            values_of.flag,
        ),
        Key(
            "ec_encoder_revision",
            "str",
            None,
            "A name for what this encoder puts out, in place of what its weights, configuration "
            "and processor settings say of it. Instances with the same one read from each other: "
            "give another whenever any of that changes.",
            values_of.name,
        ),
        Key(
            "ec_require_encoder_hash",
            "bool",
            False,
            "Exchange nothing with peers that do not say which encoder is theirs. Otherwise only "
            "one that says another is refused; vLLM's own connector says none.",
            values_of.flag,
        ),
        Key(
            "ec_integrity",
            "str",
            "off",
            "`checksum`: a producer gives a checksum of each encoding to peers that ask for it; a "
            "consumer asks, compares what it has read, encodes for itself if that differs, and "
            "reads from nobody that gives none. `off`: neither.",
            values_of.integrity,
        ),
        Key(
            "ec_advertised_host",
            "str",
            None,
            "Producer: host that is announced instead of the one that is bound. Needed when "
            "that one is a wildcard, or is known to consumers by another name.",
            values_of.host,
        ),
        Key(
            "ec_advertised_port",
            "int",
            None,
            "Producer: port that is announced instead of the one that is bound; the "
            "data-parallel rank is added.",
            values_of.port,
        ),
        Key(
            "ec_encoder_widths",
            "dict[str, int]",
            None,
            "Elements per row of the encoder output, for models whose configuration does not "
            "tell: a number, or by modality, with `*` for the others. Encoders and decoders "
            "need the same.",
            values_of.widths,
        ),
        Key(
            "ec_events_endpoint",
            "str",
            None,
            "Publish what happens to encodings on this ZMQ endpoint, `tcp://HOST:PORT` or "
            "`ipc://PATH`. The data-parallel rank is added to the port, or put behind the path. "
            "Needs ec_enable_nixl.",
            values_of.endpoint,
        ),
        Key(
            "ec_events_replay_endpoint",
            "str",
            None,
            "Send subscribers again what they have missed, on this endpoint; likewise.",
            values_of.endpoint,
        ),
        Key(
            "ec_events_topic",
            "str",
            "ec",
            "First frame of every event message.",
            values_of.topic,
        ),
        Key(
            "ec_events_buffer",
            "int",
            10_000,
            "Event messages that are kept to be sent again, at most 64 MiB of them.",
            values_of.count,
        ),
        Key(
            "ec_events_queue",
            "int",
            100_000,
            "Events that may wait to be published; of more, subscribers are told that some are "
            "missing.",
            values_of.count,
        ),
        Key(
            "ec_region_guard",
            "bool",
            True,
            "Start a tiny process that removes the region's file even when every process of "
            "the instance is killed. Without it the next start on the host does.",
            values_of.flag,
        ),
        Key(
            "ec_trace_file",
            "str",
            None,
            "Write every protocol action to this file, for `ec-protocol trace check`.",
            values_of.path,
        ),
    ]
    keys += [
        Key(timer.key, "float", timer.default, f"Seconds. {timer.doc}", values_of.seconds)
        for timer in timer_specs().values()
    ]
    return {key.name: key for key in keys}


#: Every key by name, in the order of the reference.
KEYS: Final[Mapping[str, Key]] = _keys()
