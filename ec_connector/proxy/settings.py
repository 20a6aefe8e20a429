# SPDX-License-Identifier: Apache-2.0
"""What can be set about the proxy, checked before it starts."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

from ec_protocol.errors import ConfigError

Policy = Literal["least-loaded", "round-robin"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)

#: A host by name or address, or all below a domain, or all; perhaps with a port.
_DOMAIN: Final = re.compile(
    r"(\*|(\*\.)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """Settings of one proxy. All times are seconds.

    Attributes:
        encoders: Base URLs of encoder instances (``ec_role`` ``ec_producer``).
        decoders: Base URLs of decoder instances (``ec_consumer`` or ``ec_both``).
        host: Address to listen on.
        port: Port to listen on; 0 takes any free one.
        keep_media: Leave the media in the request beside the announcement.
        policy: How an instance is chosen.
        max_connections: Most connections of clients at a time.
        max_header_bytes: Longest head of a request, without its first line.
        max_body_bytes: Longest request body.
        max_json_marks: Most commas, colons and opening brackets of a body; how long
            parsing takes and how much memory it needs grows with them.
        max_media: Most pieces of media in one request.
        max_media_bytes: Longest piece of media, as it is before base64.
        max_held_bytes: Of all requests under way, bodies and fetched media together.
        max_answer_bytes: Longest answer of a decoder, and longest event of a stream.
        max_encoder_requests: Most requests to one encoder at a time; others wait
            within ``encoder_timeout_s``.
        client_timeout_s: How long a client may take to begin or go on: with the head
            of a request, and with each piece of the answer.
        body_timeout_s: For one whole request body.
        allowed_media_domains: From where media is fetched: ``example.org`` (with
            ``:8080`` if it is not the usual port), ``*.example.org``, ``*``; empty
            fetches nothing.
        allowed_media_networks: Networks whose addresses such names may have, beside all
            public ones.
        fetch_timeout_s: For one piece of media.
        api_key_file: Keys of clients; None serves everybody.
        operator_key_file: Keys that open ``/metrics`` and the details of ``/health``.
        backend_key_file: The key that encoders and decoders ask for.
        show_backends: Show the instances' addresses to everybody.
        connect_timeout_s: To connect to an instance.
        encoder_timeout_s: For one whole encoder request.
        decoder_timeout_s: Until the decoder's first byte, and between two.
        health_interval_s: Between two health checks of an instance.
        retries: How often another instance is tried when one cannot be reached.
        events: Endpoints of the encoders' events; empty listens to none.
        events_topic: Their topic.

    Raises:
        ConfigError: A value that cannot work; the message names the option.
    """

    encoders: tuple[str, ...]
    decoders: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8100
    keep_media: bool = False
    policy: Policy = "least-loaded"
    max_connections: int = 1024
    max_header_bytes: int = 32 << 10
    max_body_bytes: int = 64 << 20
    max_json_marks: int = 1_000_000
    max_media: int = 128
    max_media_bytes: int = 48 << 20
    max_held_bytes: int = 512 << 20
    max_answer_bytes: int = 64 << 20
    max_encoder_requests: int = 128
    client_timeout_s: float = 30.0
    body_timeout_s: float = 120.0
    allowed_media_domains: tuple[str, ...] = ()
    allowed_media_networks: tuple[str, ...] = ()
    fetch_timeout_s: float = 10.0
    api_key_file: Path | None = None
    operator_key_file: Path | None = None
    backend_key_file: Path | None = None
    show_backends: bool = False
    connect_timeout_s: float = 3.0
    encoder_timeout_s: float = 60.0
    decoder_timeout_s: float = 600.0
    health_interval_s: float = 5.0
    retries: int = 2
    events: tuple[str, ...] = ()
    events_topic: str = "ec"

    def __post_init__(self) -> None:
        for option, urls in (("--encoder", self.encoders), ("--decoder", self.decoders)):
            if not urls:
                raise ConfigError(f"{option}: at least one URL is needed")
            for url in urls:
                _check_url(option, url)
            if len(set(urls)) != len(urls):
                raise ConfigError(f"{option}: an instance is named twice: {', '.join(urls)}")
        for endpoint in self.events:
            scheme, _, rest = endpoint.partition("://")
            if scheme not in ("tcp", "ipc") or not rest or "*" in rest:
                raise ConfigError(
                    f"--events={endpoint!r}: expected where an encoder publishes its events, "
                    "such as tcp://10.0.0.5:5650"
                )
        if len(set(self.events)) != len(self.events):
            raise ConfigError(f"--events: named twice: {', '.join(self.events)}")
        if self.policy not in POLICIES:
            raise ConfigError(f"--policy={self.policy!r}: expected one of {', '.join(POLICIES)}")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port={self.port}: expected 0 to 65535")
        if self.retries < 0:
            raise ConfigError(f"--retries={self.retries}: expected 0 or more")
        for option, number in (
            ("--max-connections", self.max_connections),
            ("--max-header-bytes", self.max_header_bytes),
            ("--max-body-bytes", self.max_body_bytes),
            ("--max-json-marks", self.max_json_marks),
            ("--max-media", self.max_media),
            ("--max-media-bytes", self.max_media_bytes),
            ("--max-held-bytes", self.max_held_bytes),
            ("--max-answer-bytes", self.max_answer_bytes),
            ("--max-encoder-requests", self.max_encoder_requests),
            ("--client-timeout", self.client_timeout_s),
            ("--body-timeout", self.body_timeout_s),
            ("--fetch-timeout", self.fetch_timeout_s),
            ("--connect-timeout", self.connect_timeout_s),
            ("--encoder-timeout", self.encoder_timeout_s),
            ("--decoder-timeout", self.decoder_timeout_s),
            ("--health-interval", self.health_interval_s),
        ):
            if not (math.isfinite(number) and number > 0):
                raise ConfigError(f"{option}={number}: expected a positive number")
        if self.max_held_bytes < self.max_body_bytes:
            raise ConfigError(
                f"--max-held-bytes={self.max_held_bytes}: expected at least --max-body-bytes "
                f"({self.max_body_bytes}), or no such body could ever be taken"
            )
        self._check_fetching()

    def _check_fetching(self) -> None:
        for domain in self.allowed_media_domains:
            if not _DOMAIN.fullmatch(domain):
                raise ConfigError(
                    f"--allowed-media-domain={domain!r}: expected a host without scheme and "
                    "path, such as images.example.org, *.example.org or 10.0.0.5:9000"
                )
        for network in self.allowed_media_networks:
            try:
                ipaddress.ip_network(network)
            except ValueError as exc:
                raise ConfigError(
                    f"--allowed-media-network={network!r}: expected a network such as "
                    f"10.1.0.0/16: {exc}"
                ) from None
        if self.allowed_media_networks and not self.allowed_media_domains:
            raise ConfigError(
                "--allowed-media-network: nothing is fetched without --allowed-media-domain; "
                "name the hosts, or '*' for any in these networks and the public ones"
            )


def split_urls(values: Iterable[str]) -> tuple[str, ...]:
    """URLs as typed: an option may be repeated, and may name several with commas."""
    parts = (part.strip().rstrip("/") for value in values for part in value.split(","))
    return tuple(part for part in parts if part)


def split_names(values: Iterable[str]) -> tuple[str, ...]:
    """Hosts and networks as typed, likewise; in lower case."""
    parts = (part.strip().lower() for value in values for part in value.split(","))
    return tuple(part for part in parts if part)


def _check_url(option: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        # Reading the port checks it.
        usable = usable and parts.port != 0 and not (parts.query or parts.fragment)
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"{option}={url!r}: expected a base URL such as http://127.0.0.1:8000")
