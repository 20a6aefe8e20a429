# SPDX-License-Identifier: Apache-2.0
"""The `ec-connector proxy` command."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ec_protocol.errors import ECError

# Module -> distribution.
_NEEDS = {"aiohttp": "aiohttp", "prometheus_client": "prometheus-client"}
_EVENTS_NEED = {"msgspec": "msgspec", "zmq": "pyzmq"}


def proxy(
    encoder: Annotated[
        list[str],
        typer.Option(help="Base URL of an encoder instance; repeat it, or separate by commas."),
    ],
    decoder: Annotated[
        list[str],
        typer.Option(help="Base URL of a decoder instance; repeat it, or separate by commas."),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any free one.")] = 8100,
    keep_media: Annotated[
        bool,
        typer.Option(
            "--keep-media",
            help="Leave the media in the request beside the announcement: costs bytes and "
            "preprocessing, and a lost encoding is simply encoded again.",
        ),
    ] = False,
    policy: Annotated[
        str, typer.Option(help="How an instance is chosen: least-loaded or round-robin.")
    ] = "least-loaded",
    max_connections: Annotated[int, typer.Option(help="Most connections of clients.")] = 1024,
    max_header_bytes: Annotated[
        int, typer.Option(help="Longest headers of a request, all together.")
    ] = 32 << 10,
    max_body_bytes: Annotated[int, typer.Option(help="Longest request body.")] = 64 << 20,
    max_json_marks: Annotated[
        int,
        typer.Option(
            help="Most commas, colons and opening brackets of a request body, to which the "
            "time and memory that it costs are in proportion."
        ),
    ] = 1_000_000,
    max_media: Annotated[int, typer.Option(help="Most pieces of media in one request.")] = 128,
    max_media_bytes: Annotated[
        int, typer.Option(help="Longest piece of media, before base64.")
    ] = 48 << 20,
    max_held_bytes: Annotated[
        int,
        typer.Option(
            help="Of all requests under way, bodies and fetched media together; the process "
            "needs up to five times as much memory."
        ),
    ] = 512 << 20,
    max_answer_bytes: Annotated[
        int, typer.Option(help="Longest answer of a decoder, and longest event of a stream.")
    ] = 64 << 20,
    max_encoder_requests: Annotated[
        int, typer.Option(help="Most requests to one encoder at a time; others wait in line.")
    ] = 128,
    client_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds that a client may take for the head of a request, idle between two, "
            "or take nothing of its answer."
        ),
    ] = 30.0,
    body_timeout: Annotated[float, typer.Option(help="Seconds for one request body.")] = 120.0,
    allowed_media_domain: Annotated[
        list[str] | None,
        typer.Option(
            help="Host from which media may be fetched: images.example.org, *.example.org, "
            "10.0.0.5:9000 or *; repeat it, or separate by commas. By default nothing is "
            "fetched and media must be in the request.",
            show_default=False,
        ),
    ] = None,
    allowed_media_network: Annotated[
        list[str] | None,
        typer.Option(
            help="Network whose addresses such a host may have, such as 10.1.0.0/16, beside "
            "all public ones; likewise.",
            show_default=False,
        ),
    ] = None,
    fetch_timeout: Annotated[float, typer.Option(help="Seconds to fetch a piece of media.")] = 10.0,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="Keys of clients, one a line, in a file that nobody else may read; by default "
            "everybody is served.",
            show_default=False,
        ),
    ] = None,
    operator_key_file: Annotated[
        Path | None,
        typer.Option(
            help="Keys that open /metrics, and the details of /health; likewise.",
            show_default=False,
        ),
    ] = None,
    backend_key_file: Annotated[
        Path | None,
        typer.Option(
            help="The key that encoders and decoders ask for; likewise.", show_default=False
        ),
    ] = None,
    show_backends: Annotated[
        bool,
        typer.Option(
            "--show-backends",
            help="Show the instances' addresses in /health and /metrics to everybody.",
        ),
    ] = False,
    connect_timeout: Annotated[
        float, typer.Option(help="Seconds to connect to an instance.")
    ] = 3.0,
    encoder_timeout: Annotated[
        float, typer.Option(help="Seconds for one encoder request; then the media stays.")
    ] = 60.0,
    decoder_timeout: Annotated[
        float, typer.Option(help="Seconds that a decoder may be silent.")
    ] = 600.0,
    health_interval: Annotated[
        float, typer.Option(help="Seconds between two health checks.")
    ] = 5.0,
    retries: Annotated[
        int, typer.Option(help="How often another instance is tried when one cannot be reached.")
    ] = 2,
    events: Annotated[
        list[str] | None,
        typer.Option(
            help="Where an encoder publishes its events (ec_events_endpoint), one per "
            "data-parallel rank; repeat it, or separate by commas. Announcements are then used "
            "again for the same media, until the encoding is gone.",
            show_default=False,
        ),
    ] = None,
    events_topic: Annotated[str, typer.Option(help="Topic of these events.")] = "ec",
) -> None:
    """Serve completions from encoders and decoders (OpenAI- and Anthropic-compatible).

    Media goes to an encoder; the decoder gets a reference in its place and reads the
    encoding from the encoder. Encoders run as ec_producer, decoders as ec_consumer or
    ec_both.
    """
    needs = _NEEDS | (_EVENTS_NEED if events else {})
    missing = [dist for module, dist in needs.items() if not importlib.util.find_spec(module)]
    if missing:
        extras = "proxy,events" if events else "proxy"
        _fail(
            f"the proxy needs {', '.join(missing)}: install them with: "
            f"pip install 'ec-connector[{extras}]'"
        )
    import asyncio
    import logging
    from typing import cast

    from ec_connector.proxy.listening import serve
    from ec_connector.proxy.settings import Policy, ProxySettings, split_names, split_urls

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        settings = ProxySettings(
            encoders=split_urls(encoder),
            decoders=split_urls(decoder),
            host=host,
            port=port,
            keep_media=keep_media,
            policy=cast(Policy, policy),  # checked there
            max_connections=max_connections,
            max_header_bytes=max_header_bytes,
            max_body_bytes=max_body_bytes,
            max_json_marks=max_json_marks,
            max_media=max_media,
            max_media_bytes=max_media_bytes,
            max_held_bytes=max_held_bytes,
            max_answer_bytes=max_answer_bytes,
            max_encoder_requests=max_encoder_requests,
            client_timeout_s=client_timeout,
            body_timeout_s=body_timeout,
            allowed_media_domains=split_names(allowed_media_domain or ()),
            allowed_media_networks=split_names(allowed_media_network or ()),
            fetch_timeout_s=fetch_timeout,
            api_key_file=api_key_file,
            operator_key_file=operator_key_file,
            backend_key_file=backend_key_file,
            show_backends=show_backends,
            connect_timeout_s=connect_timeout,
            encoder_timeout_s=encoder_timeout,
            decoder_timeout_s=decoder_timeout,
            health_interval_s=health_interval,
            retries=retries,
            events=split_urls(events or ()),
            events_topic=events_topic,
        )
        asyncio.run(serve(settings, on_ready=lambda url: typer.echo(f"listening on {url}")))
    except ECError as error:
        _fail(str(error))


def _fail(problem: str) -> NoReturn:
    typer.echo(f"error: {problem}", err=True)
    raise typer.Exit(1)
