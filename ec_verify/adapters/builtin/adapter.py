# SPDX-License-Identifier: Apache-2.0
"""The adapter ``vllm``: the ECCPUConnector that vLLM 0.32 ships, under the kit.

Its connector, scheduler half, cache, sessions, transports, worker and region are the
installed classes; ``vllm_stage`` and ``vllm_device`` stand in for clock, sockets, NIXL and
GPU. The kit's settings become its configuration as far as it has one: of the timers only
``consumer_ack_timeout_s``. The others are constants of its modules and are told to the
kit, which plays the cases with them. ``make_shipped`` leaves that one as it ships too.

It has no thread of its own and moves with engine steps, which never stop while
peer-to-peer reads are on. So after every operation that is not part of a step the adapter
makes two: every request that was deferred is asked about again, or one without media if
there is none, and an empty step is built. That is the best case for it: steps that take no
time, and traffic that never ends. (At one moment of the virtual clock it may send
``_REQUESTS_AT_ONCE`` requests, since it asks again in the very step of a refusal.)
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from typing import Any, Final

from ec_verify.adapters.builtin.device import Rank
from ec_verify.adapters.builtin.host import BuiltinHost
from ec_verify.adapters.builtin.requests import METADATA, make_request, modality_of, text_request
from ec_verify.kit.adapter import Json, Result, Unsupported

if importlib.util.find_spec("vllm") is None:
    raise ImportError("vLLM is not installed: run this with the Python of .venv-e2e (make e2e)")

_ROLES: Final = {"producer": "ec_producer", "consumer": "ec_consumer", "both": "ec_both"}
#: How often it may ask peers in steps that take no time.
_REQUESTS_AT_ONCE: Final = 8
#: Encodings by which the kit only asks whether there is room.
_PROBE: Final = "room-"


class Builtin(BuiltinHost):
    """One engine instance of vLLM's connector."""

    #: Whether the ack timeout stays as it ships, instead of the kit's.
    shipped = False

    def __init__(self) -> None:
        super().__init__()
        self._requests: dict[str, Any] = {}
        self._deferred: dict[str, Any] = {}
        self._failed: set[str] = set()
        self._bytes: dict[str, int] = {}
        self._in_step = False
        self._metadata: Any = None
        self._sent_now = 0

    # ----------------------------------------------------------------- life cycle
    def start(self, *, now: float, settings: Mapping[str, Json]) -> Result:
        """See ``Adapter.start``."""
        self._at(now, steps=False)
        self._element_size = settings["element_size"]
        self._block_size = settings["block_size_bytes"]
        self._p2p = settings["p2p"]
        if settings["compat"]["vllm_version"] != self._modules["version"].__version__:
            raise Unsupported("a compatibility hash of another version of vLLM")
        self._stage.dtype = settings["compat"]["dtype"]
        timers = self._timers(settings["timers"], shipped=self.shipped)
        extra = {
            "ec_cpu_bytes": settings["blocks"] * self._block_size,
            "ec_enable_nixl": self._p2p,
            "consumer_ack_timeout_s": timers["ack_timeout_s"],
        }
        self._config = self._configuration(settings, _ROLES[settings["role"]], extra)
        host, port = settings["peer"]
        os.environ["VLLM_EC_SIDE_CHANNEL_HOST"] = host
        os.environ["VLLM_EC_SIDE_CHANNEL_PORT"] = str(port)
        role = self._modules["base"].ECConnectorRole.SCHEDULER
        self._connector = self._modules["connector"].ECCPUConnector(self._config, role)
        self._half = self._connector.connector_scheduler
        self._region = self._half._region
        self._region.blocks.fill_(-0x34)
        return {
            "base_addr": self._region.blocks.data_ptr(),
            "agent": self._stage.agent.hex(),
            "timers": {k: v for k, v in timers.items() if v != settings["timers"][k]},
        }

    def tick(self, *, now: float) -> Result:
        """See ``Adapter.tick``."""
        self._at(now)
        return {}

    def stop(self, *, now: float) -> Result:
        """See ``Adapter.stop``."""
        self._at(now)
        self._region = None
        self._connector.shutdown()
        return {}

    # --------------------------------------------------------------------- engine
    def available(self, *, now: float, request: Result) -> Result:
        """See ``Adapter.available``."""
        self._at(now)
        self._whole_blocks(request)
        host = self._request(request)
        ready = bool(self._connector.ensure_cache_available(host, 0))
        self._take_failed()
        if not ready and host.request_id not in self._failed:
            self._deferred[host.request_id] = host
        else:
            self._deferred.pop(host.request_id, None)
        return {"ready": ready}

    def _whole_blocks(self, request: Result) -> None:
        """Its announcements count whole blocks, and it falls back from any other.

        Raises:
            Unsupported: An encoding is announced whose last block is used in part.
        """
        params = request["params"] if isinstance(request["params"], dict) else {}
        for item in request["items"]:
            row = params.get(item["hash"])
            announced = row.get("size_bytes") if isinstance(row, dict) else None
            if announced == item["bytes"] and announced % self._block_size:
                raise Unsupported("an announcement of less than whole blocks")

    def has(self, *, now: float, request: Result, item: int) -> Result:
        """See ``Adapter.has``."""
        self._at(now, steps=False)
        feature = self._request(request).mm_features[item]
        has = bool(self._connector.has_cache_item(feature.identifier))
        self._in_step = self._in_step or has
        return {"has": has}

    def alloc(self, *, now: float, request: Result, item: int) -> Result:
        """See ``Adapter.alloc``."""
        self._at(now, steps=False)
        self._in_step = True
        self._connector.update_state_after_alloc(self._request(request), item)
        return {}

    def build(self, *, now: float) -> Result:
        """See ``Adapter.build``."""
        self._at(now, steps=False)
        metadata = self._metadata = self._connector.build_connector_meta(None)
        self._in_step = False
        copies = [
            {
                "copy": f"save:{mm_hash}",
                "kind": "save",
                "hash": mm_hash,
                "spans": self._spans(blocks, self._bytes[mm_hash]),
                "ranks": [0],
            }
            for mm_hash, blocks in metadata.saves.items()
        ]
        for mm_hash, (number, blocks, shape) in metadata.loads.items():
            nbytes = shape[0] * shape[1] * self._element_size
            copies.append(
                {
                    "copy": number,
                    "kind": "load",
                    "hash": mm_hash,
                    "spans": self._spans(blocks, nbytes),
                    "ranks": list(range(self._config.parallel_config.tensor_parallel_size)),
                }
            )
        self._steps()
        return {"copies": copies}

    def report(self, *, now: float, copy: Json, rank: int, landed: bool) -> Result:
        """See ``Adapter.report``. A copy that was not made is nothing that it can report.

        A mere question for room lands, or each one would cost a case its blocks (EC-4.3 has
        cases of its own).
        """
        self._at(now)
        landed = landed or str(copy).startswith(f"save:{_PROBE}")
        saves, loads = [], []
        if isinstance(copy, str):
            saves.append(copy.removeprefix("save:"))
        elif landed:
            loads.append(copy)
        else:
            raise Unsupported("a rank that does not copy: every rank copies every load")
        if not landed:
            entry = self._half._cache.get(saves[0])
            return {"accepted": entry is not None and not entry.ready}
        before = self._reported(saves, loads)
        report = self._modules["common"].ECCPUWorkerMetadata(saves, loads)
        self._connector.update_connector_output(
            self._modules["outputs"].ECConnectorOutput(ec_connector_worker_meta=report)
        )
        accepted = before != self._reported(saves, loads)
        self._steps()
        return {"accepted": accepted}

    def _reported(self, saves: list[str], loads: list[int]) -> list[Any]:
        """What a report would change."""
        entries = [self._half._cache.get(mm_hash) for mm_hash in saves]
        return [
            *(entry is not None and entry.ready for entry in entries),
            *(self._half._load_acks.get(number) for number in loads),
        ]

    def finish(self, *, now: float, request: Result, aborted: bool) -> Result:
        """See ``Adapter.finish``."""
        self._at(now)
        host = self._request(request)
        _, params = self._connector.request_finished(host)
        self._requests.pop(request["id"], None)
        self._deferred.pop(request["id"], None)
        self._failed.discard(request["id"])
        self._steps()
        return {"params": params}

    def failed(self, *, now: float) -> Result:
        """See ``Adapter.failed``."""
        self._take_failed()
        failed, self._failed = self._failed, set()
        return {"requests": sorted(failed)}

    def pending(self, *, now: float) -> Result:
        """See ``Adapter.pending``.

        With peer-to-peer reads on it wants steps for ever, to poll its sockets; that is told
        in ``docs/conformance/vllm-0.32.0.md`` once, and does not fail every case that ends idle.
        """
        if self._p2p:
            return {"pending": self._half._cache.has_held_entries()}
        return {"pending": bool(self._connector.has_pending_push_work())}

    def blocks(self, *, now: float) -> Result:
        """See ``Adapter.blocks``. It keeps no such account; this is read off its parts."""
        cache = self._half._cache
        sessions = self._half._sessions.values()
        quarantined = sum(len(x.block_indices) for s in sessions for x in s._quarantined)
        # What a question for room has left behind, see ``report``, goes for the asking.
        probes = [e for name, e in cache._entries.items() if name.startswith(_PROBE)]
        return {
            "free": len(cache._free_blocks) + sum(len(e.block_ids) for e in probes if e.evictable),
            "retired": 0,
            "quarantined": quarantined,
            "total": cache._num_blocks,
        }

    # -------------------------------------------------------------------- workers
    def work(self, *, now: float, rank: int, held: list[str], encoded: list[str]) -> Result:
        """See ``Adapter.work``."""
        self._at(now)
        if rank not in self._ranks:
            self._ranks[rank] = Rank(self._config, rank)
        there, produced = ({name: self._bytes[name] for name in names} for names in (held, encoded))
        started, reports = self._ranks[rank].work(self._metadata, there, produced)
        return {"started": started, "reports": reports}

    def copied(self, *, now: float, rank: int, copy: Json, ok: bool) -> Result:
        """See ``Adapter.copied``."""
        self._at(now)
        if not ok:
            raise Unsupported("a device that fails: the process ends")
        return {"reports": self._ranks[rank].copied(copy)}

    # -------------------------------------------------------------------- control
    def request(self, *, now: float, identity: str, frames: list[str]) -> Result:
        """See ``Adapter.request``."""
        if self._stage.router is None:
            raise Unsupported("requests to an instance that does not produce")
        if self._in_step:
            raise Unsupported("an answer within an engine step: it answers when it is built")
        self._stage.router.inbox.append([bytes.fromhex(f) for f in (identity, *frames)])
        self._at(now)
        return {}

    def answer(self, *, now: float, peer: list[Json], frames: list[str]) -> Result:
        """See ``Adapter.answer``."""
        self._at(now, steps=False)
        self._stage.network.deliver((peer[0], peer[1]), [bytes.fromhex(f) for f in frames])
        self._steps()
        return {}

    def peer(self, *, now: float, peer: list[Json], up: bool) -> Result:
        """See ``Adapter.peer``. It does not watch connections being made."""
        self._at(now, steps=False)
        network = self._stage.network
        (network.heard if up else network.lost)((peer[0], peer[1]))
        self._steps()
        return {}

    def silent(self, *, now: float, peer: list[Json]) -> Result:
        """See ``Adapter.silent``. A connection that is not made yet tells it nothing either."""
        self._at(now, steps=False)
        self._stage.network.falls_silent((peer[0], peer[1]))
        self._steps()
        return {}

    # ----------------------------------------------------------------------- data
    def notice(self, *, now: float, notice: str) -> Result:
        """See ``Adapter.notice``."""
        self._stage.notices.append(bytes.fromhex(notice))
        self._at(now)
        return {}

    def data(self, *, now: float, read: Json, event: str) -> Result:
        """See ``Adapter.data``."""
        if event not in ("done", "error"):
            raise Unsupported(f"data {event}: it tears no endpoint down and asks for no abort")
        posted = self._stage.reads.get(read)
        if posted is not None:  # not by a process before this one
            posted.state = {"done": "DONE", "error": "ERR"}[event]
        self._at(now)
        return {}

    def prepare_takes(self, *, now: float, seconds: float) -> Result:
        """See ``Adapter.prepare_takes``: registering a peer and laying out its blocks."""
        self._at(now)
        self._stage.prepare_s = seconds
        return {}

    # ------------------------------------------------------------------- internals
    def _at(self, now: float, *, steps: bool = True) -> None:
        if now != self._stage.now:
            self._sent_now = 0
        self._enter(now)
        if steps:
            self._steps()

    def _steps(self) -> None:
        """Two engine steps in which nothing is scheduled; none within a step."""
        for _ in range(2):
            if self._in_step or self._sent_now >= _REQUESTS_AT_ONCE:
                return
            before = len(self._out)
            waiting = list(self._deferred.values()) or [text_request()]
            for host in waiting:
                if self._connector.ensure_cache_available(host, 0):
                    self._deferred.pop(host.request_id, None)
            self._take_failed()
            self._connector.build_connector_meta(None)
            self._sent_now += sum(isinstance(o.get("to"), list) for o in self._out[before:])

    def _take_failed(self) -> None:
        failed = self._connector.take_unavailable_requests()
        self._failed |= failed
        for request_id in failed:
            # The engine aborts them: it does not ask again.
            self._deferred.pop(request_id, None)

    def _request(self, raw: Result) -> Any:
        known = self._requests.get(raw["id"])
        if known is not None:
            return known
        for item in raw["items"]:
            self._bytes[item["hash"]] = item["bytes"]
            # The width of an encoder's output belongs to its modality.
            width = item["shape"][1]
            modality = modality_of(item)
            self._config.ec_transfer_config.mm_encoder_output_widths[modality] = width
            self._half._metadata_resolver._cache[modality] = {METADATA}
        known = make_request(raw, self._modules["inputs"].PlaceholderRange)
        self._requests[raw["id"]] = known
        return known

    def _spans(self, blocks: list[int], nbytes: int) -> list[list[int]]:
        spans: list[list[int]] = []
        for block in blocks:
            offset, size = block * self._block_size, min(self._block_size, nbytes)
            if spans and sum(spans[-1]) == offset:
                spans[-1][1] += size
            else:
                spans.append([offset, size])
            nbytes -= size
        return spans


class Shipped(Builtin):
    """The same with every timer as it ships."""

    shipped = True


def make() -> Builtin:
    """A fresh process of vLLM's connector, with the kit's ack timeout."""
    return Builtin()


def make_shipped() -> Builtin:
    """A fresh process of vLLM's connector, with its own timers only."""
    return Shipped()
