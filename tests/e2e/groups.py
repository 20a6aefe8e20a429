# SPDX-License-Identifier: Apache-2.0
"""The groups of servers of ``make e2e``, in the order in which they run.

Two cores are busy with the start of one server for ten seconds and more, most of which
is Python importing things. So the next group's servers start while a group plays, as
soon as it does not mind a busy host; only idle servers are watched in silence.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from tests.e2e import faults, scenarios, ways
from tests.e2e.bench import Bench, Group
from tests.e2e.idle import idle
from tests.e2e.platform import ROOT
from tests.e2e.rows import Row, each
from tests.e2e.server import Server, ServerError, free_port
from tests.world.keys import Fleet

#: Bytes of one picture's encoding in the tiny Qwen2-VL: 64 rows of 128 floats.
PICTURE_BYTES: Final = 64 * 128 * 4
ROOMY: Final = 64 * PICTURE_BYTES
#: What the guide says, and how many such regions there are at a time.
GUIDE_BYTES: Final = 1073741824
REGIONS: Final = 3

#: The first READ between two instances sets up their connection, which takes seconds
#: of processor time on a busy host, and the acks behind it wait. Longer than a
#: heartbeat, so that a producer that hangs is noticed by that.
PATIENT: Final = {"consumer_ack_timeout_s": 10, "read_timeout_s": 14}

#: What checks the traces of a session of tests, and where a group keeps those of its own.
TRACE_TESTS: Final = "tests/test_traces_of_this_run.py"
KEPT: Final = "traces"

Ahead = Callable[[], None]


def connector(role: str, **extra: Any) -> str:
    """``--ec-transfer-config`` that loads our class by its module."""
    return json.dumps(
        {
            "ec_connector": "ECConnector",
            "ec_connector_module_path": "ec_connector.vllm",
            "ec_role": role,
            "ec_connector_extra_config": extra,
        }
    )


class Engine(Group):
    """The tests of our class inside one engine, in one process."""

    name = "engine"
    kinds = ("qwen2vl",)
    planned = (1, 135.0)
    _tests = "tests/ec_connector/vllm/test_vllm_engine.py"

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._log = self.folder / "pytest.log"
        self._child: subprocess.Popen[bytes] | None = None
        self._since = 0.0

    def prepare(self) -> None:
        """Start pytest."""
        env = {"EC_E2E_MODEL": str(self.bench.model("qwen2vl"))}
        tests = [self._tests]
        if self.bench.unchecked:
            env["EC_SESSION_TRACES"] = str(self.folder / KEPT)
        else:
            tests.append(TRACE_TESTS)
        self._since = time.monotonic()
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-q", "-m", "e2e", *tests],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.bench.environment(**env),
            )

    def scenarios(self, ahead: Ahead) -> None:
        """Wait for pytest."""
        ahead()
        if self._child is None:
            raise ServerError("pytest was not started")
        row = Row("one engine in one process")
        try:
            status = self._child.wait(2 * self.bench.start_timeout_s)
        except subprocess.TimeoutExpired:
            status = -1
        row.seconds = time.monotonic() - self._since
        said = self._log.read_text(errors="replace")
        closing = re.findall(r"^.*\b\d+ (?:passed|failed|error).*$", said, re.M)
        row.notes.append(closing[-1].strip("= ") if closing else "pytest did not finish")
        row.expect(status == 0, f"pytest ended with status {status}: {said[-3000:]}")
        self.add(row)

    def end(self) -> None:
        """Kill pytest if it still runs."""
        super().end()
        if self._child is not None:
            self._child.kill()
            self._child.wait()


class Local(Group):
    """(a) local tier and (g) churn on two tensor-parallel ranks: one writes, both load.

    A machine with one GPU has one rank, in a process of its own all the same.
    """

    name = "local"
    kinds = ("qwen2vl",)
    planned = (3, 90.0)

    def prepare(self) -> None:
        """The plain server, and the one with two ranks."""
        self.bench.plain("qwen2vl")
        self._said = "two ranks" if self.bench.platform.ranks > 1 else "one rank"
        self._ranks = self.server(
            f"both-{self._said.replace(' ', '-')}",
            "qwen2vl",
            said=connector("ec_both", ec_cpu_bytes=4 * PICTURE_BYTES),
            # Two pictures in the device's own encoder cache.
            max_model_len=128,
            ranks=2,
            own_worker=True,
        )

    def scenarios(self, ahead: Ahead) -> None:
        """Reload, churn, stop."""
        oracle = self.learn("qwen2vl", each(range(10)))
        self.wait(self._ranks)
        ahead()
        self.add(scenarios.local_tier(self._ranks, oracle, f"local tier, {self._said}"))
        self.add(scenarios.churn(self._ranks, oracle))
        self.add(scenarios.stopped([self._ranks], f"SIGTERM, {self._said}"))


class Ways(Group):
    """Every API behind the proxy, and the requests of other orchestrators."""

    name = "ways"
    kinds = ("qwen2vl",)
    planned = (5, 90.0)

    def prepare(self) -> None:
        """A plain server, a producer and a consumer whose tier holds eight pictures."""
        side = {
            "VLLM_EC_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_EC_SIDE_CHANNEL_PORT": str(free_port()),
        }
        self.bench.plain("qwen2vl")
        self._producer, self._consumer = (
            self.server(
                f"ways-{role}",
                "qwen2vl",
                said=connector(f"ec_{role}", ec_cpu_bytes=room, ec_enable_nixl=True, **PATIENT),
                env=side,
                options=["--enable-scale-out"],
            )
            for role, room in (("producer", ROOMY), ("consumer", 8 * PICTURE_BYTES))
        )

    def scenarios(self, ahead: Ahead) -> None:
        """What comes in by each of them; what does not; what is left without an encoder."""
        producer, consumer = self._producer, self._consumer
        plain = self.bench.plain("qwen2vl")
        oracle = self.learn("qwen2vl", each(range(100, 120)))
        every = ways.learn_ways(plain, range(80, 88))
        films = ways.learn_films(plain, 90)
        self.wait(producer, consumer)
        proxy = self.proxy("ways-proxy", producer, consumer)
        self.wait(proxy)
        ahead()
        self.add(ways.ways(proxy, consumer, every, 6, "chat, responses, messages, completions"))
        self.add(ways.ways(proxy, consumer, films, 3, "films"))
        self.add(ways.naming(proxy, consumer, oracle, 100, 101))
        self.add(ways.orchestrated(producer, consumer, oracle, range(102, 105)))
        self.add(ways.fallen_back(producer, consumer, proxy, oracle, 105, range(106, 115)))


class PeerToPeer(Group):
    """(b) pulls, (d) kill -9, (e) restart, (f) stop, and what else goes wrong; with keys."""

    name = "p2p"
    kinds = ("qwen2vl",)
    planned = (16, 260.0)

    def prepare(self) -> None:
        """A plain server, a producer and a consumer, which know each other by keys."""
        folder = self.folder / "keys"
        folder.mkdir(parents=True)
        fleet = Fleet(folder)
        self._said = {"ec_cpu_bytes": ROOMY, "ec_enable_nixl": True, **PATIENT}
        self._keys = fleet.member("producer")
        self._side = {
            "VLLM_EC_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_EC_SIDE_CHANNEL_PORT": str(free_port()),
        }
        self.bench.plain("qwen2vl")
        self._producer = self._start_producer("producer")
        self._consumer = self.server(
            "consumer",
            "qwen2vl",
            said=connector("ec_consumer", **self._said, **fleet.member("consumer")),
            # It plans the next step before this one is over, on a CPU too.
            ahead=True,
        )

    def _start_producer(self, name: str, **options: Any) -> Server:
        said = connector("ec_producer", **self._said, **self._keys)
        return self.server(name, "qwen2vl", said=said, env=self._side, **options)

    def scenarios(self, ahead: Ahead) -> None:
        """While all is well, while the producer dies, after it has come back."""
        first, consumer = self._producer, self._consumer
        plain = self.bench.plain("qwen2vl")
        mixed = [*each(range(5, 10)), (10, 11, 10)]
        oracle = self.learn("qwen2vl", [*mixed, *each(range(53))])
        self.wait(first, consumer)
        if self.bench.idle_s > 0:
            self.add(idle(plain, [first, consumer], self.bench.idle_s))
        plain.kill()

        keeping = self.proxy("proxy-keep-media", first, consumer, "--keep-media")
        lean = self.proxy("proxy", first, consumer)
        self.wait(keeping, lean)
        kept = each(range(5))
        self.add(scenarios.pull("pull, image kept", keeping, consumer, oracle, kept))
        self.add(scenarios.pull("pull, metadata only", lean, consumer, oracle, mixed))
        streamed = each(range(33, 36))
        self.add(
            scenarios.pull("pull, answer streamed", lean, consumer, oracle, streamed, stream=True)
        )
        reload = scenarios.reload_pulled
        self.add(reload("reload, image kept", keeping, consumer, oracle, range(5)))
        self.add(reload("reload, metadata only", lean, consumer, oracle, range(5, 12)))
        self.add(scenarios.hostile(consumer, oracle, 0))
        abandoned = faults.announce(first, range(36, 41))
        self.add(faults.walked_away(consumer, oracle, abandoned))

        late = faults.announce(first, [22, 23, 24])
        gone = faults.announce(first, [25])
        slow = faults.announce(first, [26])
        self.add(faults.killed(first, consumer, lean, oracle, range(12, 22), late))
        self.add(faults.lost(consumer, oracle, *gone.popitem(), known=0))

        second = self._start_producer("producer-again", own_worker=True)
        ahead()
        self.wait(second)
        again = self.proxy("proxy-again", second, consumer)
        self.wait(again)
        asked = each(range(27, 31))
        self.add(scenarios.pull("restart on the same port", again, consumer, oracle, asked))
        self.add(faults.slow_save(second, consumer, oracle, *slow.popitem()))
        self.add(faults.engine_frozen(second, consumer, oracle, range(41, 43)))
        self.add(faults.data_killed(second, consumer, again, oracle, range(43, 53), known=27))
        self.add(faults.frozen(second, consumer, oracle, range(31, 33)))
        self.add(scenarios.stopped([second, consumer], "SIGTERM to producer, consumer"))


class Counted(Group):
    """Servers whose host names pictures by counting requests, not by their content."""

    name = "counted"
    kinds = ("qwen2vl",)
    planned = (3, 70.0)

    def prepare(self) -> None:
        """A producer and a consumer with both caches off that make the host hash."""
        said = {"ec_cpu_bytes": ROOMY, "ec_enable_nixl": True, **PATIENT}
        self._port = free_port()
        side = {
            "VLLM_EC_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_EC_SIDE_CHANNEL_PORT": str(self._port),
        }
        self._producer, self._consumer = (
            self.server(
                f"counting-{role}",
                "qwen2vl",
                said=connector(f"ec_{role}", **said),
                env=side,
                options=["--mm-processor-cache-gb", "0"],
            )
            for role in ("producer", "consumer")
        )

    def scenarios(self, ahead: Ahead) -> None:
        """Names that mean another picture elsewhere; names that requests bring."""
        pair = producer, consumer = self._producer, self._consumer
        # The other groups have asked the plain server about the same pictures.
        oracle = self.learn("qwen2vl", each(range(6)))
        self.wait(*pair)
        proxy = self.proxy("counting-proxy", producer, consumer)
        self.wait(proxy)
        ahead()
        where = ("127.0.0.1", self._port)
        self.add(scenarios.counted(producer, consumer, proxy, oracle, range(5), where))
        self.add(scenarios.named(producer, consumer, oracle, range(5, 6)))
        for server in pair:
            if "--mm-processor-cache-gb 0 together with" not in server.log.read_text():
                raise ServerError(f"{server.name} did not say at its start what does not work")
        self.add(faults.engine_killed([consumer, producer], oracle, 0))


class Guide(Group):
    """The commands of vLLM's guide to its built-in connector, as they are written there.

    Our class takes the built-in one's name. (c) The model is Qwen3-VL, whose encodings
    are wider than its text.
    """

    name = "guide"
    kinds = ("qwen3vl",)
    planned = (5, 110.0)

    local: Final = """{
  "ec_connector": "ECCPUConnector",
  "ec_role": "ec_both",
  "ec_connector_extra_config": {"ec_cpu_bytes": 1073741824}
}"""
    producer: Final = """{
  "ec_connector": "ECCPUConnector",
  "ec_role": "ec_producer",
  "ec_connector_extra_config": {"ec_enable_nixl": true, "ec_cpu_bytes": 1073741824}
}"""
    consumer: Final = """{
  "ec_connector": "ECCPUConnector",
  "ec_role": "ec_consumer",
  "ec_connector_extra_config": {"ec_enable_nixl": true, "ec_cpu_bytes": 1073741824}
}"""

    def prepare(self) -> None:
        """The plain server and the first command; the others would take much memory."""
        self.bench.plain("qwen3vl")
        self._usual: dict[str, Any] = {
            "env": {
                "EC_CONNECTOR_REPLACE_BUILTIN": "1",
                # Its default may be somebody else's on this host.
                "VLLM_EC_SIDE_CHANNEL_PORT": str(free_port()),
            },
            "prefix_caching": True,
        }
        self._both = self.server(
            "guide-both", "qwen3vl", said=self._fitting(self.local), **self._usual
        )

    @staticmethod
    def _fitting(said: str) -> str:
        """A command whose region fits into ``/dev/shm``, which containers keep small."""
        room = shutil.disk_usage("/dev/shm").free
        return said if room > REGIONS * GUIDE_BYTES else said.replace(str(GUIDE_BYTES), str(ROOMY))

    def scenarios(self, ahead: Ahead) -> None:
        """Local tier, pull, reload, stop."""
        producer, consumer = (
            self.server(name, "qwen3vl", said=self._fitting(said), **self._usual)
            for name, said in (("guide-producer", self.producer), ("guide-consumer", self.consumer))
        )
        wanted = each(range(6))
        oracle = self.learn("qwen3vl", [*wanted, (0, 1, 0)])
        self.bench.plain("qwen3vl").kill()
        self.wait(self._both)
        several = [(0, 1, 0)]
        row = scenarios.local_tier(self._both, oracle, "guide, local tier", several)
        if self._fitting(self.local) != self.local:
            row.notes.append(f"ec_cpu_bytes is {ROOMY} here: /dev/shm is too small for the guide's")
        self.add(row)
        self.add(scenarios.stopped([self._both], "SIGTERM, guide's local tier"))
        self.wait(producer, consumer)
        proxy = self.proxy("guide-proxy", producer, consumer)
        self.wait(proxy)
        self.add(
            scenarios.pull("guide, DeepStack, pull", proxy, consumer, oracle, wanted, patient=False)
        )
        self.add(
            scenarios.reload_pulled("guide, DeepStack, reload", proxy, consumer, oracle, range(4))
        )
        self.add(scenarios.stopped([producer, consumer], "SIGTERM, guide's pair"))
        ahead()


#: By name, in the order in which they run.
GROUPS: Final[dict[str, type[Group]]] = {
    group.name: group for group in (Engine, Local, Ways, PeerToPeer, Counted, Guide)
}
