# SPDX-License-Identifier: Apache-2.0
"""What can be set about the proxy, checked before it starts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

from ec_protocol.errors import ConfigError

Policy = Literal["least-loaded", "round-robin"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)


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
        max_body_bytes: Longest request body, unpacked.
        max_media: Most pieces of media in one request.
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
    max_body_bytes: int = 64 << 20
    max_media: int = 128
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
            ("--max-body-bytes", self.max_body_bytes),
            ("--max-media", self.max_media),
            ("--connect-timeout", self.connect_timeout_s),
            ("--encoder-timeout", self.encoder_timeout_s),
            ("--decoder-timeout", self.decoder_timeout_s),
            ("--health-interval", self.health_interval_s),
        ):
            if not (math.isfinite(number) and number > 0):
                raise ConfigError(f"{option}={number}: expected a positive number")


def split_urls(values: Iterable[str]) -> tuple[str, ...]:
    """URLs as typed: an option may be repeated, and may name several with commas."""
    parts = (part.strip().rstrip("/") for value in values for part in value.split(","))
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
