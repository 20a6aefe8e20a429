# SPDX-License-Identifier: Apache-2.0
"""What the kit asks of an implementation: one instance, driven by named operations.

An adapter wraps ONE engine instance of the implementation under test: its scheduler
half with the region behind it, and if it has them its workers. Everything around it
is simulated by the kit: the host engine, the network, the DMA, other peers and time.
An operation takes and returns JSON values, so that an adapter in another language is
a program that reads one JSON line per operation and writes one (``stdio``). Bytes are
hex strings everywhere.

The Python form is any object with one method per operation; this base class says
which there are. A method that is missing, or raises ``Unsupported``, makes the cases
that need it UNSUPPORTED and no other. Any other exception is a failure of the
implementation. Every call carries ``now``, seconds of a virtual monotonic clock. The
adapter sets its clock to it, does the operation, lets every timer run out that has, and
goes on with whatever the implementation does next without waiting. (So what comes over
the wire is seen before a timer that runs out at the same moment. A case that wants the
timer first says ``tick`` before; a case that does not say it plays a process that was
stopped meanwhile.)

**Outputs.** What the implementation sends or starts meanwhile is collected and
returned with the operation, in order, as a list of objects (``drain``)::

    {"kind": "connect", "peer": [host, port]}          a control connection is wanted
    {"kind": "close",   "peer": [host, port]}          and not any more
    {"kind": "frames",  "to": [host, port] or identity, "frames": [hex, ...]}
                                    sent by DEALER: ["", payload]; by ROUTER likewise,
                                    the identity left out
    {"kind": "read",    "read": ID, "agent": hex, "device": int, "notice": hex,
                        "local": [[offset, bytes], ...], "remote": [[address, bytes], ...]}
                                    a READ is posted: the kit moves the bytes from now on
    {"kind": "abandon", "read": ID}                    it is not waited for any more
    {"kind": "release", "read": ID}                    its handle is given up
    {"kind": "gone",    "read": ID}                    its process has ended: nothing more
                                    is written; see ``kill``
    {"kind": "notify",  "agent": hex, "notice": hex}   a notice without a READ
    {"kind": "event",   "frames": [topic, number, map]}    a published message, hex

**The kit owns time, the wires and the DMA, the adapter owns the region.** ``peek`` and
``poke`` are how the simulated DMA reads and writes its blocks, at any moment after the
implementation has handed them to a copy or a READ, also long after it gave them up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

Json = Any
Result = dict[str, Json]

#: Version of this interface; ``start`` is given it and an adapter may refuse it.
INTERFACE_VERSION: Final = 1


class Unsupported(Exception):
    """The implementation has no such operation, or not with these arguments."""


class Adapter:
    """One instance of an implementation. Subclass it, or write a class alike.

    Single-threaded: the kit waits for each operation to return. Arguments and results
    are JSON values. The operations a first adapter needs are ``start``, ``tick``,
    ``peek``, ``poke``, ``available``, ``has``, ``alloc``, ``build``, ``report`` and
    ``finish``; the control and data operations add peer-to-peer reads; the rest is
    optional.
    """

    def __init__(self) -> None:
        self._out: list[Result] = []

    # ------------------------------------------------------------------ plumbing
    def emit(self, kind: str, **fields: Json) -> None:
        """Note an output of the implementation."""
        self._out.append({"kind": kind, **fields})

    def drain(self) -> list[Result]:
        """Outputs since the last call."""
        out, self._out = self._out, []
        return out

    # ----------------------------------------------------------------- life cycle
    def start(self, *, now: float, settings: Mapping[str, Json]) -> Result:
        """Start the instance.

        Args:
            now: Seconds.
            settings: ``interface`` (1); ``role`` (``producer``, ``consumer``, ``both``);
                ``blocks`` and ``block_size_bytes`` of the region; ``ranks`` that load;
                ``timers``, every name of ``spec/timing.toml`` with seconds; ``peer``,
                the ``[host, port]`` to announce; ``compat`` with ``vllm_version``,
                ``model`` and ``dtype``; ``element_size`` of ``dtype``; ``quotas`` with
                ``peer``, ``grants`` and ``holds``, shares of the region; ``p2p``,
                whether peer-to-peer reads are on; ``authenticated``, whether the peers that
                it reads from prove who they are; ``terms``, with ``encoder_hash``,
                ``encoder_required`` and ``checksum`` (EC-8.9 on), mostly empty; ``events``,
                whether to publish events.

        Returns:
            ``base_addr``: address of the region as READs see it. ``agent``: hex metadata
            of the data plane's agent, as in acks. ``identity``: hex identity of its
            DEALER sockets, if it sets one. ``timers``: the timers that it cannot be
            given and the values they have (cases are then played with these).
            ``terms``: names of those that it can be given. ``events``: whether it publishes
            any. ``processes``: whether it has some that ``kill`` can end.
        """
        raise Unsupported("start")

    def tick(self, *, now: float) -> Result:
        """Only let time pass."""
        raise Unsupported("tick")

    def stop(self, *, now: float) -> Result:
        """Orderly shutdown. A crash is no operation: the kit drops the adapter."""
        raise Unsupported("stop")

    # --------------------------------------------------------------------- memory
    def peek(self, *, now: float, offset: int, size: int) -> Result:
        """``{"data": hex}``: bytes of the region."""
        raise Unsupported("peek")

    def poke(self, *, now: float, offset: int, data: str) -> Result:
        """Write bytes of the region, as a copy or a READ does."""
        raise Unsupported("poke")

    # --------------------------------------------------------------------- engine
    # A request is {"id", "items": [{"hash", "bytes", "shape": [rows, width], "media":
    # bool}], "params": what its ec_transfer_params are, of any JSON type}.
    def available(self, *, now: float, request: Result) -> Result:
        """``{"ready": bool}``: may the request be scheduled (``ensure_cache_available``)?

        False defers it: a fetch is under way, or it failed (see ``failed``).
        """
        raise Unsupported("available")

    def has(self, *, now: float, request: Result, item: int) -> Result:
        """``{"has": bool}``: can item ``item`` be loaded in this step (``has_cache_item``)?"""
        raise Unsupported("has")

    def alloc(self, *, now: float, request: Result, item: int) -> Result:
        """The step includes the item (``update_state_after_alloc``): load or save it."""
        raise Unsupported("alloc")

    def build(self, *, now: float) -> Result:
        """The step is built (``build_connector_meta``): what do the workers copy?

        Returns:
            ``{"copies": [{"copy": ID, "kind": "save" or "load", "hash", "spans":
            [[offset, bytes], ...], "ranks": [int, ...]}]}``: spans in the order of the
            encoding's bytes, ranks that have to report.
        """
        raise Unsupported("build")

    def report(self, *, now: float, copy: Json, rank: int, landed: bool) -> Result:
        """A rank says how its copy ended. ``{"accepted": bool}``."""
        raise Unsupported("report")

    def finish(self, *, now: float, request: Result, aborted: bool) -> Result:
        """The request is over (``request_finished``). ``{"params": object or null}``."""
        raise Unsupported("finish")

    def failed(self, *, now: float) -> Result:
        """``{"requests": [id, ...]}`` that cannot be served, each told once."""
        raise Unsupported("failed")

    def pending(self, *, now: float) -> Result:
        """``{"pending": bool}``: must the engine go on stepping without requests?"""
        raise Unsupported("pending")

    def blocks(self, *, now: float) -> Result:
        """``{"free", "retired", "quarantined", "total"}`` in blocks."""
        raise Unsupported("blocks")

    # -------------------------------------------------------------------- workers
    def work(self, *, now: float, rank: int, held: list[str], encoded: list[str]) -> Result:
        """A rank's process takes the step of the last ``build``.

        Args:
            now: Seconds.
            rank: Which.
            held: Encodings that its encoder cache has when the step begins; of those the
                encoder produces none.
            encoded: Encodings that the encoder has produced in this step.

        Returns:
            ``{"started": [copy, ...], "reports": [[copy, landed], ...]}``: copies that its
            device now makes (the kit moves the bytes), and what it reports already.
        """
        raise Unsupported("work")

    def copied(self, *, now: float, rank: int, copy: Json, ok: bool) -> Result:
        """The rank's device ended a copy. ``{"reports": [[copy, landed], ...]}``."""
        raise Unsupported("copied")

    # -------------------------------------------------------------------- control
    def request(self, *, now: float, identity: str, frames: list[str]) -> Result:
        """Frames reach the producer's ROUTER from a peer (the frames after the identity).

        ``identity`` is the one that its socket has chosen, hex. Read as text it begins with
        the name of the host that its packets come from, and a slash (EC-15.1).
        """
        raise Unsupported("request")

    def answer(self, *, now: float, peer: list[Json], frames: list[str]) -> Result:
        """Frames reach the consumer's DEALER for ``peer``."""
        raise Unsupported("answer")

    def peer(self, *, now: float, peer: list[Json], up: bool) -> Result:
        """The connection to a peer was made, or is lost."""
        raise Unsupported("peer")

    def silent(self, *, now: float, peer: list[Json]) -> Result:
        """From now on nothing comes from a peer: no answer, no heartbeat, no handshake.

        Its host is unplugged, or its process stands still. Nobody says that the connection is
        lost: to find that out in time is the implementation's own affair. ``peer`` with ``up``
        or an ``answer`` ends the silence. An implementation that leaves heartbeats to a library
        which does not run under the kit either plays the library (ours does), with the settings
        that it gives it, or does not support this.
        """
        raise Unsupported("silent")

    # ----------------------------------------------------------------------- data
    def notice(self, *, now: float, notice: str) -> Result:
        """A completion notice reaches the producer over the data plane."""
        raise Unsupported("notice")

    def data(self, *, now: float, read: Json, event: str) -> Result:
        """The data plane says something about a posted READ.

        Args:
            now: Seconds.
            read: As in its ``read`` output.
            event: ``done`` (every byte moved), ``error``, ``aborted`` (confirmed), or
                ``endpoint_closed`` (the local endpoint is torn down: nothing more is
                written).
        """
        raise Unsupported("data")

    def prepare_takes(self, *, now: float, seconds: float) -> Result:
        """From now on it takes this long between an ack and the posting of its READ."""
        raise Unsupported("prepare_takes")

    # ------------------------------------------------------------------ data processes
    def kill(self, *, now: float, kind: str, read: Json) -> Result:
        """Processes of the instance end without a word, and its kernel has seen to it.

        For who serves, or READs, in processes beside the engine's own. The kit lets go of
        the READs that ended with them: the adapter names each in an output ``gone``, which
        may also follow ``endpoint_closed``, and nothing else.

        Args:
            now: Seconds.
            kind: ``server`` or ``reader``.
            read: Only the one that has posted this READ; null: every one of the kind.

        Returns:
            ``{"agent": hex}``: agent metadata in acks from now on.
        """
        raise Unsupported("kill")

    # --------------------------------------------------- configuration, compatibility
    def config(self, *, now: float, settings: Mapping[str, Json]) -> Result:
        """Would this configuration start? ``{"ok": bool, "error": text}``.

        Args:
            now: Seconds.
            settings: Keys of ``ec_connector_extra_config``.
        """
        raise Unsupported("config")

    def compat_hash(self, *, now: float, facts: Mapping[str, Json]) -> Result:
        """``{"hash": text}`` of ``vllm_version``, ``model``, ``dtype``, ``block_size_bytes``."""
        raise Unsupported("compat_hash")

    def region(self, *, now: float, action: str, args: Mapping[str, Json]) -> Result:
        """Real files under ``/dev/shm``; see ``docs/conformance/adapter.md``."""
        raise Unsupported("region")


#: Makes a fresh adapter: a new process of the implementation.
Factory = Callable[[], Any]

#: Every operation by name, with the names of its arguments but ``now``.
OPERATIONS: Final[dict[str, tuple[str, ...]]] = {
    "start": ("settings",),
    "tick": (),
    "stop": (),
    "peek": ("offset", "size"),
    "poke": ("offset", "data"),
    "available": ("request",),
    "has": ("request", "item"),
    "alloc": ("request", "item"),
    "build": (),
    "report": ("copy", "rank", "landed"),
    "finish": ("request", "aborted"),
    "failed": (),
    "pending": (),
    "blocks": (),
    "work": ("rank", "held", "encoded"),
    "copied": ("rank", "copy", "ok"),
    "request": ("identity", "frames"),
    "answer": ("peer", "frames"),
    "peer": ("peer", "up"),
    "silent": ("peer",),
    "notice": ("notice",),
    "data": ("read", "event"),
    "prepare_takes": ("seconds",),
    "kill": ("kind", "read"),
    "config": ("settings",),
    "compat_hash": ("facts",),
    "region": ("action", "args"),
}
