# SPDX-License-Identifier: Apache-2.0
"""What reads bytes of others, and what must hold whatever they are.

A target takes any bytes. It raises nothing but what its reader is documented to raise, which
is caught here; anything else is a finding, and so is a broken bound or invariant.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from ec_connector.config.keyfiles import KeyFileError, KeyList, KeyPair, read_key_pair
from ec_connector.config.keys import KEYS
from ec_connector.config.settings import ECConfig
from ec_connector.events import codec
from ec_connector.network.data.base import BadAgentMetadata
from ec_connector.network.data.metadata import DRAM, parse_agent_metadata
from ec_connector.proxy.errors import ProxyError
from ec_connector.proxy.intake import parse as parse_body
from ec_connector.proxy.media import read_announcement
from ec_connector.region.header import RegionHeader, identify
from ec_protocol.announcements import PeerRules, Source, read_source
from ec_protocol.errors import ConfigError, RemoteProtocolError, TraceError
from ec_protocol.items import make_item
from ec_protocol.p2p import wire, words
from ec_protocol.tables.files import spec_dir
from ec_verify.kit.language.schedule import VERBS, CaseError, load_file
from ec_verify.kit.language.times import ScheduleError
from ec_verify.traces.load import load_run
from tests.fuzz.bounds import check_ack, check_request
from tests.fuzz.conversation import conversation
from tests.fuzz.metadata import agent_metadata
from tests.world.core import BLOCK, World


@dataclass(frozen=True, slots=True)
class Target:
    """One reader of foreign bytes.

    Attributes:
        run: Reads an input; raises on a finding.
        seeds: Inputs to begin with, some of them sound.
        max_len: Longest input that is tried.
        words: Names that mean something to the reader.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]
    max_len: int = 4096
    words: Sequence[str] = ()


# --------------------------------------------------------------------------- the wire
@cache
def vectors(*messages: str) -> tuple[bytes, ...]:
    """Golden vectors of these messages."""
    found = []
    for path in sorted((spec_dir() / "wire").rglob("*.json")):
        vector = json.loads(path.read_text(encoding="utf-8"))
        if not messages or vector["message"] in messages:
            found.append(bytes.fromhex(vector["hex"]))
    return tuple(found)


def request(data: bytes) -> None:
    """A request to a server."""
    try:
        req = wire.decode_request([b"", data])
    except RemoteProtocolError:
        return
    check_request(req)
    assert wire.decode_request([b"", wire.encode(req)]) == req


def ack(data: bytes) -> None:
    """An answer to a reader, and where it says that the bytes are."""
    try:
        answer = wire.decode_ack([b"", data])
    except RemoteProtocolError:
        return
    check_ack(answer)
    assert wire.decode_ack([b"", wire.encode(answer)]) == answer
    try:
        pieces = wire.source_pieces(answer, BLOCK, max(answer.nbytes % 4096, 1))
    except RemoteProtocolError:
        return
    assert all(address >= 0 and size > 0 for address, size in pieces)


_KINDS: Final = (
    words.ToReader,
    words.FromReader,
    words.ToServer,
    words.ToParent,
    words.FromParent,
    words.FromData,
    words.ToData,
)


def word(data: bytes) -> None:
    """A message between the processes of an instance."""
    for kinds in _KINDS:
        try:
            said = words.decode(data, kinds)
        except RemoteProtocolError:
            continue
        assert words.decode(words.encode(said), kinds) == said or _has_nan(said)


def _has_nan(said: Any) -> bool:
    return any(value != value for value in msgspec.structs.astuple(said))


def event(data: bytes) -> None:
    """A message of a publisher."""
    try:
        batch = codec.decode(data)
    except RemoteProtocolError:
        return
    codec.decode(codec.encode(batch))


def metadata(data: bytes) -> None:
    """The metadata of a NIXL agent, before NIXL has it."""
    try:
        known = parse_agent_metadata(data)
    except BadAgentMetadata:
        return
    assert known.name
    assert known.ranges
    for item in known.ranges:
        if item.kind == DRAM:
            known.check_covers(item.address, item.nbytes, item.device_id)


# ------------------------------------------------------------ requests, files, settings
def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def transfer_params(data: bytes) -> None:
    """``ec_transfer_params`` of a request."""
    announced = _json(data)
    item = make_item("picture", 3, 16, 2)
    capacity = 1 << 20
    for rules in (None, PeerRules(known=lambda key: True), PeerRules(lambda host: "." in host)):
        found = read_source(announced, item, capacity, rules)
        if isinstance(found, Source):
            assert 1 <= found.port <= 65535
            assert found.host
            assert "/" not in found.host
            assert bool(found.key) == (rules is not None and rules.known is not None)


def config(data: bytes) -> None:
    """``ec_connector_extra_config``."""
    extra = _json(data)
    for role in ("ec_producer", "ec_consumer", "ec_both"):
        try:
            parsed = ECConfig.parse(extra, role, environ={})
        except ConfigError:
            continue
        assert parsed.cpu_bytes > 0


def body(data: bytes) -> None:
    """A request to the proxy, and an encoder's answer."""
    try:
        parsed = parse_body(data)
    except ProxyError:
        return
    read_announcement(parsed)
    read_announcement({"ec_transfer_params": parsed})


@cache
def _scratch() -> Path:
    """A file in memory, for readers of files."""
    return Path(f"/proc/self/fd/{os.memfd_create('fuzz')}")


def _file(data: bytes) -> Path:
    path = _scratch()
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()
    return path


def region(data: bytes) -> None:
    """The last page of a file that claims to be a region."""
    fd = os.open(_file(data), os.O_RDWR)
    try:
        found = identify(fd)
    finally:
        os.close(fd)
    if isinstance(found, RegionHeader):
        assert found.num_blocks > 0
        assert found.block_size_bytes > 0
        assert found.file_bytes == len(data)


def trace(data: bytes) -> None:
    """A recorded run that somebody sent."""
    try:
        load_run(_file(data))
    except TraceError:
        return


def schedule(data: bytes) -> None:
    """A file of conformance cases."""
    try:
        load_file(_file(data))
    except (CaseError, ScheduleError):
        return


def keys(data: bytes) -> None:
    """A file of keys."""
    path = str(_file(data))
    said = ""
    for read in (lambda: read_key_pair(path), lambda: KeyList(path)):
        try:
            found = read()
        except KeyFileError as exc:
            said += str(exc)
            continue
        if isinstance(found, KeyPair):
            said += repr(found)
            assert found.secret not in said, "a secret is not for messages"


def any_of_them(data: bytes) -> None:
    """All targets in one; the first byte says which."""
    if data:
        target = TARGETS[sorted(TARGETS)[data[0] % len(TARGETS)]]
        target.run(data[1 : 1 + target.max_len])


def _all_seeds() -> list[bytes]:
    found = []
    for number, name in enumerate(sorted(TARGETS)):
        found += [bytes([number]) + seed for seed in TARGETS[name].seeds()[:8]]
    return found


# ------------------------------------------------------------------------- where to begin
def _header(num_blocks: int) -> bytes:
    header = RegionHeader("i", 0, num_blocks, 64, b"n" * 16, b"d" * 16, 1, "b" * 36)
    return bytes(header.data_bytes) + header.pack()


def _of(folder: str, pattern: str, most: int = 1 << 14) -> list[bytes]:
    found = [path.read_bytes() for path in sorted((spec_dir() / folder).glob(pattern))]
    return [text for text in found if len(text) <= most]


def _announcements() -> list[bytes]:
    said = {"peer_host": "10.0.0.7", "peer_port": 5601, "size_bytes": 96, "shape": [3, 16]}
    keyed = {**said, "metadata": {}, "peer_key": "0" * 40}
    return [json.dumps({"picture": one}).encode() for one in (said, keyed, None)]


def _settings() -> list[bytes]:
    plain: dict[str, Any] = {"ec_cpu_bytes": 1 << 20}
    p2p = {**plain, "ec_enable_nixl": True, "ec_allowed_peers": ["10.0.0.0/8"]}
    return [json.dumps(one).encode() for one in (plain, p2p, {**plain, "lease_s": 3})]


def _bodies() -> list[bytes]:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    chat = {"model": "m", "messages": [{"role": "user", "content": [part]}]}
    told = {"ec_transfer_params": {"h": {"peer_host": "p", "peer_port": 1, "metadata": {}}}}
    return [json.dumps(one).encode() for one in (chat, told)]


def _key_files() -> list[bytes]:
    public, secret = "0" * 40, "1" * 40
    return [
        f'curve\n    public-key = "{public}"\n'.encode(),
        f'curve\n    public-key = "{public}"\n    secret-key = "{secret}"\n'.encode(),
    ]


def _traces() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        from ec_protocol.trace import NdjsonSink

        path = Path(folder) / "run.ndjson"
        sink = NdjsonSink(path)
        world = World(sink=sink)
        world.producer.save("picture", 100)
        world.fetch("picture", 100)
        world.exchange()
        sink.close()
        return [path.read_bytes()]


def _fields(*kinds: Any) -> list[str]:
    return [field.name for kind in kinds for field in msgspec.structs.fields(kind)]


_WORDS: Final = ("Lend", "TakeBack", "Words", "Events", "Replace", "Stop", "Up", "Leaving")
_MEANT: Final = ("peer_host", "peer_port", "peer_key", "size_bytes", "shape", "metadata")

TARGETS: Final[dict[str, Target]] = {
    "request": Target(
        request, lambda: vectors("XferReq"), 8192, [*_fields(wire.XferReq), "type", "XferReq"]
    ),
    "ack": Target(ack, lambda: vectors("XferAck"), 8192, [*_fields(wire.XferAck), "type"]),
    "word": Target(word, vectors, 4096, _WORDS),
    "event": Target(event, vectors, 4096, [*_fields(codec.EventBatch), *_fields(codec.Event)]),
    "metadata": Target(metadata, agent_metadata, 2048, ["nixlSerDes|", "MemSection", "nixlDList"]),
    "conversation": Target(
        conversation, lambda: [bytes([1, 0, 0, 0, 2, 0, 3, 0, 5, 0, 6, 0, 4, 0]), b""], 256
    ),
    "transfer_params": Target(transfer_params, _announcements, words=_MEANT),
    "config": Target(config, _settings, words=tuple(KEYS)),
    "body": Target(body, _bodies, words=["ec_transfer_params", *_MEANT]),
    "region": Target(region, lambda: [_header(1), _header(4)], 8192),
    "trace": Target(trace, _traces, 1 << 14),
    "schedule": Target(schedule, lambda: _of("conformance", "*.json"), 1 << 14, tuple(VERBS)),
    "keys": Target(keys, _key_files, words=["public-key", "secret-key", "curve"]),
}

#: What a session that has ten seconds looks through.
ANY: Final = Target(any_of_them, _all_seeds, 4097)
