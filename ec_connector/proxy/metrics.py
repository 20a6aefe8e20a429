# SPDX-License-Identifier: Apache-2.0
"""The proxy's Prometheus metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ec_connector.proxy.fleet import Fleet

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class ProxyMetrics:
    """Metrics of one proxy, in registries of their own: those with addresses are apart."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.backends = CollectorRegistry()
        registry = self.registry
        self.requests = Counter(
            "ec_proxy_requests",
            "Completions on all paths by HTTP status; 499: the client went away.",
            ["status"],
            registry=registry,
        )
        self.media = Counter(
            "ec_proxy_media",
            "Pieces of media. replaced: the decoder got a reference; announced: it got the "
            "media and an announcement; kept: it got the media alone.",
            ["outcome"],
            registry=registry,
        )
        self.retries = Counter(
            "ec_proxy_retries",
            "Requests sent once more. encoding_lost: with the media put back; "
            "encoder_failed, decoder_failed: to another instance.",
            ["reason"],
            registry=registry,
        )
        self.events = Counter(
            "ec_proxy_events", "Events of encoders that were heard.", registry=registry
        )
        self.announcements = Counter(
            "ec_proxy_announcements",
            "Announcements that were kept. reused: no encoder was asked. forgotten: an event "
            "said that the encoding is gone. lost: the same, while the request was prepared.",
            ["outcome"],
            registry=registry,
        )
        self.encode_seconds = Histogram(
            "ec_proxy_encode_seconds",
            "Time until all encoders of a request had answered.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.first_byte_seconds = Histogram(
            "ec_proxy_first_byte_seconds",
            "Time from the request to the first byte for the client.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.up = Gauge(
            "ec_proxy_backend_up",
            "1 while the instance answers.",
            ["kind", "url"],
            registry=self.backends,
        )
        self.inflight = Gauge(
            "ec_proxy_backend_inflight",
            "Requests that the instance is working on for this proxy.",
            ["kind", "url"],
            registry=self.backends,
        )

    def page(self, *fleets: Fleet) -> bytes:
        """The text of ``/metrics``.

        Args:
            fleets: Those of whose instances it tells, by address.
        """
        for fleet in fleets:
            for backend in fleet.backends:
                self.up.labels(backend.kind, backend.url).set(backend.up)
                self.inflight.labels(backend.kind, backend.url).set(backend.inflight)
        page: bytes = generate_latest(self.registry)
        return page + generate_latest(self.backends) if fleets else page
