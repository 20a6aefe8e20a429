#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden wire vectors of ``spec/wire/`` and ``spec/wire/processes/``.

The msgpack bytes are laid out here by hand, from the msgpack specification and
section 8 of ``spec/PROTOCOL.md``, and not by ``ec_protocol.p2p.wire`` or any msgpack
library: an encoder that agrees with these files agrees with something that it did
not write itself. The output depends on nothing but this file.

Usage: ``make_wire_vectors.py [--check] [FOLDER]``; ``--check`` writes nothing and
exits 1 when the folder differs.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parent.parent / "spec" / "wire"

STATUSES: Final = {
    "ok": 0,
    "missing": 1,
    "incompat": 2,
    "version": 3,
    "internal": 4,
    "not-ready": 5,
}

FACTS: Final[dict[str, Any]] = {
    "vllm_version": "0.32.0",
    "model": "Qwen/Qwen3-VL-8B-Instruct",
    "dtype": "bfloat16",
    "block_size_bytes": 16384,
}
MM_HASH: Final = hashlib.sha256(b"a picture").hexdigest()
#: Of an encoder; what it is made of is each implementation's own.
ENCODER: Final = hashlib.sha256(b"an encoder").hexdigest()
#: XXH3 of no bytes, as its authors give it.
NOTHING: Final = "99aa06d3014798d86001c324468d497f"
METADATA: Final = bytes(range(40))
BASE: Final = 0x7F00_0000_0000
#: A public key in Z85, as ZeroMQ's RFC 26 prints one.
KEY: Final = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"


# ------------------------------------------------------------- msgpack by hand
def pack(value: Any) -> bytes:
    """The shortest msgpack form of a value; floats are always 64 bits."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return _pack_int(value)
        case float():
            return b"\xcb" + struct.pack(">d", value)
        case str():
            data = value.encode()
            return _head(len(data), 0xA0, 32, (0xD9, 0xDA, 0xDB)) + data
        case bytes():
            return _head(len(value), None, 0, (0xC4, 0xC5, 0xC6)) + value
        case list():
            return _head(len(value), 0x90, 16, (None, 0xDC, 0xDD)) + b"".join(map(pack, value))
        case dict():
            body = b"".join(pack(k) + pack(v) for k, v in value.items())
            return _head(len(value), 0x80, 16, (None, 0xDE, 0xDF)) + body
    raise TypeError(f"no msgpack form here for {type(value).__name__}")


def _pack_int(value: int) -> bytes:
    if value < 0 or value >= 1 << 64:
        raise ValueError(f"{value}: the protocol has natural numbers only")
    if value < 0x80:
        return bytes([value])
    for tag, size in ((0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)):
        if value < 1 << 8 * size:
            return bytes([tag]) + value.to_bytes(size, "big")
    raise AssertionError("unreachable")


def _head(size: int, fix: int | None, below: int, tags: tuple[int | None, int, int]) -> bytes:
    if fix is not None and size < below:
        return bytes([fix | size])
    for tag, width in zip(tags, (1, 2, 4), strict=True):
        if tag is not None and size < 1 << 8 * width:
            return bytes([tag]) + size.to_bytes(width, "big")
    raise ValueError(f"{size} items are too many")


# ------------------------------------------------------------------ the vectors
def compatibility_hash() -> str:
    """Section 8, EC-8.4, done by hand: JSON without spaces, SHA-256, lower-case hex."""
    text = '["0.32.0","Qwen/Qwen3-VL-8B-Instruct","bfloat16",16384]'
    return hashlib.sha256(text.encode()).hexdigest()


def request(name: str, version: int, **fields: Any) -> dict[str, Any]:
    """An XferReq vector."""
    body = {"mm_hash": MM_HASH, "compatibility_hash": compatibility_hash(), **fields}
    return vector(name, "XferReq", version, body, pack({"type": "req", **body}))


def ack(name: str, version: int, status: str, **fields: Any) -> dict[str, Any]:
    """An XferAck vector."""
    body = {"mm_hash": MM_HASH, "status": STATUSES[status], **fields}
    return vector(name, "XferAck", version, body, pack({"type": "ack", **body}))


def vector(
    name: str, message: str, version: int, fields: dict[str, Any], data: bytes
) -> dict[str, Any]:
    """One vector as it goes into its file."""
    shown = {k: {"hex": v.hex()} if isinstance(v, bytes) else v for k, v in fields.items()}
    return {
        "name": name,
        "message": message,
        "version": version,
        "fields": shown,
        "hex": data.hex(),
    }


def descriptor(num_blocks: int, block_size: int, device: int = 0) -> list[list[int]]:
    """The old form's table: one row for each block of the region."""
    return [[BASE + i * block_size, block_size, device] for i in range(num_blocks)]


def notice(name: str, version: int, session_id: str) -> dict[str, Any]:
    """A completion notice: session, colon, hash; no msgpack."""
    fields = {"session_id": session_id, "mm_hash": MM_HASH}
    return vector(name, "notice", version, fields, f"{session_id}:{MM_HASH}".encode())


def terms(version: int) -> list[dict[str, Any]]:
    """A request and its answer between two that say which encoder is theirs and compare."""
    v, number = f"v{version}", 40 + version
    asked = {"session_id": f"c0ffee.{number}", "connector_version": version, "attempt_id": number}
    asks = {"incarnation": "c0ffee", "encoder_hash": ENCODER, "checksum": "xxh3_128"}
    granted = {
        "session_id": f"c0ffee.{number}",
        "agent_metadata": METADATA,
        "attempt_id": number,
        "lease_s": 30.0,
        "incarnation": "decaf",
        "base_addr": BASE,
        "block_size": 16384,
        "extents": [[130, 270], [7, 5]],
        "nbytes": 4_505_600,
        "encoder_hash": ENCODER,
        "checksum": f"xxh3_128:{NOTHING}",
    }
    return [
        request(f"req-{v}-terms", version, **asked, **asks),
        ack(f"ack-{v}-ok-terms", version, "ok", **granted),
    ]


def vectors() -> list[dict[str, Any]]:
    """All of them. ``version`` is that of the peer that sends the message."""
    made = []
    for version in (1, 2):
        old, v = f"consumer-{version}", f"v{version}"
        # A peer whose own version is the default of its struct leaves it out.
        made.append(request(f"req-{v}-old", version, session_id=old))
        made.append(request(f"req-{v}-old-bare", version))
        made.append(
            request(f"req-{v}-old-named", version, session_id=old, connector_version=version)
        )
        made.append(
            request(
                f"req-{v}-extended",
                version,
                session_id=f"c0ffee.{40 + version}",
                connector_version=version,
                attempt_id=40 + version,
                incarnation="c0ffee",
            )
        )
        made.append(
            ack(
                f"ack-{v}-ok-old",
                version,
                "ok",
                session_id=old,
                src_block_indices=[2, 3, 4, 0],
                agent_metadata=METADATA,
                mem_descriptor=pack(descriptor(6, 16384)),
            )
        )
        made.append(
            ack(
                f"ack-{v}-ok-extended",
                version,
                "ok",
                session_id=f"c0ffee.{40 + version}",
                agent_metadata=METADATA,
                attempt_id=40 + version,
                lease_s=30.0,
                incarnation="decaf",
                base_addr=BASE,
                block_size=16384,
                extents=[[130, 270], [7, 5]],
                nbytes=4_505_600,
            )
        )
        for status in STATUSES:
            if status == "ok":
                continue
            made.append(ack(f"ack-{v}-nack-{status}-old", version, status, session_id=old))
            made.append(
                ack(
                    f"ack-{v}-nack-{status}-extended",
                    version,
                    status,
                    session_id=f"c0ffee.{40 + version}",
                    attempt_id=40 + version,
                    incarnation="decaf",
                )
            )
        made += terms(version)
        made.append(notice(f"notice-{v}-old", version, old))
        made.append(notice(f"notice-{v}-extended", version, f"c0ffee.{40 + version}"))
        made.append(
            vector(
                f"mem-descriptor-{v}",
                "mem_descriptor",
                version,
                {"base_addr": BASE, "num_blocks": 6, "block_size": 16384},
                pack(descriptor(6, 16384)),
            )
        )
        made.append(
            vector(
                f"compatibility-hash-{v}",
                "compatibility_hash",
                version,
                FACTS,
                bytes.fromhex(compatibility_hash()),
            )
        )
    return made


def words() -> list[dict[str, Any]]:
    """What processes of one instance say to each other (EC-14.4), all fields written."""
    said: list[tuple[str, str, dict[str, Any]]] = [
        (
            "lend",
            "Lend",
            {
                "loan": 7,
                "mm_hash": MM_HASH,
                "host": "10.0.0.7",
                "port": 5601,
                "nbytes": 4_505_600,
                "extents": [[130, 270], [7, 5]],
                "deadline": 1025.5,
                "key": KEY,
            },
        ),
        ("take-back", "TakeBack", {"loan": 7}),
        (
            "words",
            "Words",
            {
                "words": [
                    ["landed", 7],
                    ["failed", 8],
                    ["lost", 9],
                    ["proven", 9],
                    ["unreachable", 10],
                ]
            },
        ),
        (
            "events",
            "Events",
            {
                "events": [
                    ["stored", MM_HASH, 4_505_600, [275, 8192]],
                    ["evicted", "käse", 70_000, None],
                ],
                "missing": 3,
            },
        ),
        ("events-none", "Events", {"events": [], "missing": 0}),
        ("hello", "Hello", {"version": 2}),
        (
            "working-server",
            "Working",
            {"host": "10.0.0.7", "port": 5601, "bound": 5601, "key": KEY},
        ),
        ("working-reader", "Working", {"host": "", "port": 0, "bound": 0, "key": ""}),
        ("drain", "Drain", {"reason": "a READ is lost"}),
        ("failing", "Failing", {"error": "ec_nixl_backends=['NOPE']: unknown"}),
        ("take", "Take", {"port": 5601}),
        ("take-first", "Take", {"port": 0}),
        ("stop", "Stop", {}),
        (
            "up-server",
            "Up",
            {
                "process": 3,
                "kind": "server",
                "pid": 4711,
                "host": "10.0.0.7",
                "port": 5601,
                "bound": 5601,
                "key": KEY,
            },
        ),
        (
            "up-reader",
            "Up",
            {
                "process": 4,
                "kind": "reader",
                "pid": 4712,
                "host": "",
                "port": 0,
                "bound": 0,
                "key": "",
            },
        ),
        ("leaving", "Leaving", {"process": 4, "killed": False}),
        ("leaving-killed", "Leaving", {"process": 4, "killed": True}),
        (
            "trouble",
            "Trouble",
            {"level": 30, "text": "a.b: no room", "fatal": False, "who": "ec-reader 4"},
        ),
        (
            "trouble-fatal",
            "Trouble",
            {"level": 40, "text": "no such backend", "fatal": True, "who": "ec-parent"},
        ),
        ("replace", "Replace", {"process": 3, "reason": "server 3 keeps too much"}),
    ]
    return [
        vector(name, message, 2, fields, pack({"type": message, **fields}))
        for name, message, fields in said
    ]


def files() -> dict[str, str]:
    """File name -> content."""
    return {f"{v['name']}.json": json.dumps(v, indent=2) + "\n" for v in vectors()}


def word_files() -> dict[str, str]:
    """The same in the folder ``processes``."""
    return {f"{v['name']}.json": json.dumps(v, indent=2) + "\n" for v in words()}


def main(arguments: list[str]) -> int:
    """Write or check the folder; the exit status."""
    check = "--check" in arguments
    rest = [a for a in arguments if a != "--check"]
    folder = Path(rest[0]) if rest else FOLDER
    parts = {folder: files(), folder / "processes": word_files()}
    return max(_one(place, wanted, check=check) for place, wanted in parts.items())


def _one(folder: Path, wanted: dict[str, str], *, check: bool) -> int:
    found = {p.name: p.read_text(encoding="utf-8") for p in sorted(folder.glob("*.json"))}
    if check:
        wrong = sorted(n for n in wanted | found if wanted.get(n) != found.get(n))
        for name in wrong:
            sys.stderr.write(f"{folder / name} differs; run tools/make_wire_vectors.py\n")
        return 1 if wrong else 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in found.keys() - wanted.keys():
        (folder / name).unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(wanted)} vectors in {folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
