# SPDX-License-Identifier: Apache-2.0
"""What the connector counts, under which names it is published, and how that travels.

The scheduler's process counts; the metrics are served by another process. What was
counted since the last time travels as a plain mapping of strings, numbers and lists
(``Stats``), is added up on the way (``aggregate``), and ends in Prometheus metrics
(``PromRecorder``) and in a log line (``reduce``)::

    source = StatsSource(instance)              # scheduler's process
    stats = source.take()                       # once per engine step; mostly None
    recorder = PromRecorder(Counter, Gauge, Histogram, ["engine"])
    recorder.observe(stats, ["0"])              # server's process

Importing this module needs no prometheus_client: the metric classes are passed in
(vLLM wraps them, for Ray for example).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from ec_connector.instance import SchedulerInstance

Kind = Literal["counter", "gauge", "histogram"]
#: ``{"counters": {key: number}, "gauges": {key: number}, "samples": {key: [seconds]}}``;
#: a key is a family's name, or name and label value with ``/`` between them.
Stats = dict[str, dict[str, Any]]

#: Samples of one histogram that travel at once; of more the latest.
MAX_SAMPLES: Final = 4096


@dataclass(frozen=True, slots=True)
class Family:
    """One metric.

    Attributes:
        name: As published. Counters get ``_total`` behind it from the client library.
        kind: What it is.
        help: What it says.
        label: Its own label's name; ``""`` if it has none.
        buckets: Upper bounds of a histogram, in seconds.
    """

    name: str
    kind: Kind
    help: str
    label: str = ""
    buckets: tuple[float, ...] = ()


_ACK_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
_READ_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 20.0)


def _families() -> dict[str, Family]:
    families = [
        Family(
            "vllm:ec_blocks",
            "gauge",
            "Blocks of the region. free: nobody's. evictable: of encodings that nobody holds. "
            "held: of encodings in use or being written. quarantined: a lost transfer may still "
            "touch them. retired: out of use, because no proof came that it does not.",
            "state",
        ),
        Family("vllm:ec_blocks_all", "gauge", "All blocks of the region."),
        Family("vllm:ec_open_grants", "gauge", "Producer: READs of peers that may be running."),
        Family("vllm:ec_active_reads", "gauge", "Consumer: READs that are running."),
        Family(
            "vllm:ec_producers",
            "gauge",
            "Consumer: producers that are not read from as others are. suspect: a READ from it "
            "was lost or its reader ended, and it has a reader to itself. harmful: that came "
            "again and again, and it is left alone for a while. unreachable: nobody answered a "
            "moment ago.",
            "standing",
        ),
        Family(
            "vllm:ec_stuck_processes",
            "gauge",
            "Data processes that were killed and do not exit. What a reader among them was lent "
            "is quarantined or retired until it does.",
        ),
        Family(
            "vllm:ec_items",
            "counter",
            "Encodings that a step needed. hit: loaded from the tier. miss: encoded.",
            "result",
        ),
        Family(
            "vllm:ec_copies",
            "counter",
            "Copies between device and region: save or load, landed or skipped.",
            "copy",
        ),
        Family("vllm:ec_evictions", "counter", "Encodings that gave way to others."),
        Family(
            "vllm:ec_saves_without_room",
            "counter",
            "Encodings that were not saved: everything was held.",
        ),
        Family(
            "vllm:ec_announcements",
            "counter",
            "Producer: encodings of finished requests. whole: with their address. empty: they "
            "could not be served.",
            "result",
        ),
        Family(
            "vllm:ec_params_refused",
            "counter",
            "Consumer: items whose ec_transfer_params could not be used, by reason. absent: "
            "there were none for them.",
            "reason",
        ),
        Family(
            "vllm:ec_requests_unavailable",
            "counter",
            "Requests that failed: encoding lost, media gone.",
        ),
        Family(
            "vllm:ec_bytes_read", "counter", "Consumer: bytes of encodings read from producers."
        ),
        Family(
            "vllm:ec_checksum_mismatches",
            "counter",
            "Consumer: READs that brought other bytes than their producer had. None is harmless.",
        ),
        Family("vllm:ec_consumer_events", "counter", "Consumer: what became of fetches.", "event"),
        Family("vllm:ec_producer_events", "counter", "Producer: answers and grants.", "event"),
        Family(
            "vllm:ec_tier_events",
            "counter",
            "Events for subscribers. published, resent: how many went out. dropped: the queue "
            "was full.",
            "result",
        ),
        Family(
            "vllm:ec_process_events",
            "counter",
            "What the data processes met, and their ends.",
            "event",
        ),
        Family("vllm:ec_events", "counter", "Other events of the scheduler's half.", "event"),
        Family(
            "vllm:ec_ack_seconds",
            "histogram",
            "Consumer: from a request to the producer's answer.",
            buckets=_ACK_BUCKETS,
        ),
        Family(
            "vllm:ec_read_seconds",
            "histogram",
            "Consumer: from posting a READ to seeing it done.",
            buckets=_READ_BUCKETS,
        ),
    ]
    return {family.name: family for family in families}


#: Every metric by name, in the order of the reference.
FAMILIES: Final[Mapping[str, Family]] = _families()

#: Counters of ``ECScheduler.stats`` -> where they are published.
_SCHEDULER: Final = {
    "hits": "vllm:ec_items/hit",
    "misses": "vllm:ec_items/miss",
    "saves_landed": "vllm:ec_copies/save_landed",
    "saves_skipped": "vllm:ec_copies/save_skipped",
    "loads_landed": "vllm:ec_copies/load_landed",
    "loads_skipped": "vllm:ec_copies/load_skipped",
    "evictions": "vllm:ec_evictions",
    "saves_without_room": "vllm:ec_saves_without_room",
    "announced": "vllm:ec_announcements/whole",
    "announced_without_address": "vllm:ec_announcements/empty",
    "unavailable": "vllm:ec_requests_unavailable",
}
#: Counters of readers that have a metric of their own.
_READS: Final = {
    "bytes_read": "vllm:ec_bytes_read",
    "checksum_mismatches": "vllm:ec_checksum_mismatches",
}
_PARAMS: Final = "params_"
_TIER_EVENTS: Final = "tier_events_"


# ------------------------------------------------------------------ scheduler's process
class StatsSource:
    """Turns an instance's running totals into what was counted since the last call.

    Args:
        instance: The running instance. Engine thread only.
    """

    def __init__(self, instance: SchedulerInstance) -> None:
        self._instance = instance
        self._told: dict[str, int] = {}

    def take(self) -> Stats | None:
        """What was counted since the last call; None if nothing was."""
        counters = {}
        for key, total in self._totals().items():
            if new := total - self._told.get(key, 0):
                counters[key] = new
                self._told[key] = total
        samples = self._samples()
        if not counters and not samples:
            return None
        return {"counters": counters, "gauges": self._gauges(), "samples": samples}

    def _totals(self) -> Counter[str]:
        instance = self._instance
        totals: Counter[str] = Counter()
        for name, count in instance.scheduler.stats().items():
            if name.endswith("_blocks"):
                continue
            if name.startswith(_PARAMS):
                key = f"vllm:ec_params_refused/{name.removeprefix(_PARAMS)}"
            else:
                key = _SCHEDULER.get(name, f"vllm:ec_events/{name}")
            totals[key] += count
        totals["vllm:ec_events/holds_displaced"] += instance.node.holds.displaced
        data = instance.data
        if data is None:
            return totals
        figures, link = data.read_figures(), data.link
        for name, count in figures.totals("reads").items():
            key = f"vllm:ec_consumer_events/{name}"
            totals[_READS.get(name, key)] += count
        for name, count in link.loans.counters.items() if link.loans is not None else ():
            totals[f"vllm:ec_consumer_events/{name}"] += count
        for name, count in figures.totals("grants").items():
            totals[f"vllm:ec_producer_events/{name}"] += count
        for name, count in link.offers.counters.items() if link.offers is not None else ():
            totals[f"vllm:ec_producer_events/{name}"] += count
        for name, count in figures.totals("stats").items():
            event = name.removeprefix(_TIER_EVENTS)
            family = "vllm:ec_process_events" if event == name else "vllm:ec_tier_events"
            totals[f"{family}/{event}"] += count
        for kind, count in figures.exits.items():
            totals[f"vllm:ec_process_events/{kind}_exits"] += count
        return totals

    def _gauges(self) -> dict[str, int]:
        node = self._instance.node
        tier = node.tier
        data = self._instance.data
        figures = None if data is None else data.figures
        blocks = {
            "free": tier.free_blocks,
            "evictable": tier.evictable_blocks,
            "quarantined": tier.quarantined_blocks,
            "retired": tier.retired_blocks,
        }
        others = {
            "vllm:ec_open_grants": figures.gauge("open_grants") if figures else 0,
            "vllm:ec_active_reads": figures.gauge("active_reads") if figures else 0,
            "vllm:ec_stuck_processes": data.stuck if data else 0,
            **{f"vllm:ec_producers/{what}": count for what, count in self._producers().items()},
        }
        blocks["held"] = tier.num_blocks - sum(blocks.values())
        return {
            **{f"vllm:ec_blocks/{state}": count for state, count in blocks.items()},
            "vllm:ec_blocks_all": tier.num_blocks,
            **others,
        }

    def _producers(self) -> dict[str, int]:
        data, scheduler = self._instance.data, self._instance.scheduler
        loans = None if data is None else data.link.loans
        found = {} if loans is None else loans.circuits.amounts(scheduler.clock())
        return {what: found.get(what, 0) for what in ("suspect", "harmful", "unreachable")}

    def _samples(self) -> dict[str, list[float]]:
        data = self._instance.data
        found: dict[str, list[float]] = {}
        for what in ("ack", "read") if data is not None else ():
            if values := data.figures.take_samples(what):  # type: ignore[union-attr]
                found[f"vllm:ec_{what}_seconds"] = values
        return found


# -------------------------------------------------------------------------- on the way
def aggregate(first: Mapping[str, Any], later: Mapping[str, Any]) -> Stats:
    """Both intervals in one: counts add up, of amounts the later one holds."""
    counters = Counter(first.get("counters", {}))
    counters.update(later.get("counters", {}))
    samples = {key: list(values) for key, values in first.get("samples", {}).items()}
    for key, values in later.get("samples", {}).items():
        samples[key] = [*samples.get(key, []), *values][-MAX_SAMPLES:]
    return {
        "counters": dict(counters),
        "gauges": {**first.get("gauges", {}), **later.get("gauges", {})},
        "samples": samples,
    }


def is_empty(stats: Mapping[str, Any]) -> bool:
    """Whether nothing was counted; amounts alone are nothing new."""
    return not stats.get("counters") and not stats.get("samples")


def reduce(stats: Mapping[str, Any]) -> dict[str, int | float]:
    """One number per line of a log: counts, amounts, and percentiles of latencies."""
    result: dict[str, int | float] = {}
    for part in ("counters", "gauges"):
        for key, value in sorted(stats.get(part, {}).items()):
            result[_short(key)] = value
    for key, values in sorted(stats.get("samples", {}).items()):
        ordered = sorted(values)
        for percent in (50, 99):
            at = min(len(ordered) - 1, len(ordered) * percent // 100)
            result[f"{_short(key)} p{percent}"] = round(ordered[at], 6)
    return result


def _short(key: str) -> str:
    return key.removeprefix("vllm:ec_").replace("/", " ")


# --------------------------------------------------------------------- server's process
class PromRecorder:
    """Prometheus metrics of all engines of one server.

    Args:
        counter: ``prometheus_client.Counter`` or a stand-in.
        gauge: Likewise ``Gauge``.
        histogram: Likewise ``Histogram``.
        labelnames: Labels of every metric, such as model and engine.
    """

    def __init__(
        self,
        counter: Callable[..., Any],
        gauge: Callable[..., Any],
        histogram: Callable[..., Any],
        labelnames: Sequence[str],
    ) -> None:
        classes = {"counter": counter, "gauge": gauge, "histogram": histogram}
        self._metrics: dict[str, Any] = {}
        for family in FAMILIES.values():
            more = {"buckets": list(family.buckets)} if family.buckets else {}
            self._metrics[family.name] = classes[family.kind](
                name=family.name,
                documentation=family.help,
                labelnames=[*labelnames, *([family.label] if family.label else [])],
                **more,
            )

    def observe(self, stats: Mapping[str, Any], labelvalues: Sequence[object]) -> None:
        """Record one interval of the engine with these label values.

        Keys of no known metric are left out: the other process may be newer.
        """
        for metric, value in self._known(stats.get("counters", {}), labelvalues):
            if value > 0:
                metric.inc(value)
        for metric, value in self._known(stats.get("gauges", {}), labelvalues):
            metric.set(value)
        for metric, values in self._known(stats.get("samples", {}), labelvalues):
            for value in values:
                metric.observe(value)

    def _known(
        self, values: Mapping[str, Any], labelvalues: Sequence[object]
    ) -> Iterator[tuple[Any, Any]]:
        for key, value in values.items():
            name, _, label = key.partition("/")
            family = FAMILIES.get(name)
            if family is None or bool(label) != bool(family.label):
                continue
            labels = [*map(str, labelvalues), *([label] if label else [])]
            yield (self._metrics[name].labels(*labels) if labels else self._metrics[name]), value


def metrics_reference() -> str:
    """The reference of all metrics as a Markdown table."""
    lines = ["| metric | type | label | meaning |", "|---|---|---|---|"]
    for family in FAMILIES.values():
        name = f"{family.name}_total" if family.kind == "counter" else family.name
        label = f"`{family.label}`" if family.label else ""
        lines.append(f"| `{name}` | {family.kind} | {label} | {family.help} |")
    return "\n".join(lines) + "\n"
