# SPDX-License-Identifier: Apache-2.0
"""A hostile peer: ``python -m tests.ec_connector.attacks.attacker WHAT PORT …``.

Each prints one line of JSON with what it saw.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
import time
from typing import Any

import msgspec
import zmq

from ec_connector.network.data.library import load_nixl
from ec_connector.network.data.metadata import parse_agent_metadata
from ec_protocol.p2p import wire
from tests.ec_connector.attacks.victim import BLOCK, COMPAT


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def ask(port: int, name: str) -> wire.XferAck:
    """A grant, as anybody gets one who knows a name and four public facts."""
    sock = zmq.Context.instance().socket(zmq.DEALER)
    sock.connect(f"tcp://127.0.0.1:{port}")
    sock.send_multipart([b"", wire.encode(wire.XferReq(name, COMPAT, "evil.1", 2, 1))])
    if not sock.poll(20_000):
        raise SystemExit("no answer")
    return wire.decode_ack(sock.recv_multipart())


def agent_named(name: Any) -> tuple[Any, Any]:
    api = load_nixl()
    config = api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
    agent = api.nixl_agent(name, config)
    mine = ctypes.create_string_buffer(b"OVERWRITTEN", BLOCK)
    agent.register_memory([(ctypes.addressof(mine), BLOCK, 0, "")], "DRAM")
    return agent, mine


def move(agent: Any, mine: Any, peer: str, op: str, address: int, nbytes: int) -> str:
    try:
        handle = agent.initialize_xfer(
            op,
            agent.get_xfer_descs([(ctypes.addressof(mine), nbytes, 0)], "DRAM"),
            agent.get_xfer_descs([(address, nbytes, 0)], "DRAM"),
            peer,
        )
        agent.transfer(handle)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            state = str(agent.check_xfer_state(handle))
            if state != "PROC":
                return state
            time.sleep(0.0005)
    except Exception as exc:
        return type(exc).__name__
    return "timeout"


def forge(port: int, op: str, offset: int, nbytes: int) -> dict[str, Any]:
    """Claim that all memory is registered, and read or write ``offset`` from the region."""
    ack = ask(port, "picture")
    honest = parse_agent_metadata(ack.agent_metadata).ranges[0]
    old = struct.pack("<QQ", honest.address, honest.nbytes)
    forged = ack.agent_metadata.replace(old, struct.pack("<QQ", 4096, (1 << 47) - 8192))
    agent, mine = agent_named("attacker")
    peer = agent.add_remote_agent(forged)
    peer = peer.decode() if isinstance(peer, bytes) else peer
    state = move(agent, mine, peer, op, honest.address + offset, nbytes)
    return {"state": state, "bytes": mine.raw[:nbytes].hex()}


def notice(port: int) -> dict[str, Any]:
    """A completion notice from an agent whose name is no text."""
    ack = ask(port, "picture")
    agent, _ = agent_named(b"evil\xff\xfe")
    peer = agent.add_remote_agent(ack.agent_metadata)
    peer = peer.decode() if isinstance(peer, bytes) else peer
    agent.send_notif(peer, b"hello")
    end = time.monotonic() + 2
    while time.monotonic() < end:
        try:
            agent.get_new_notifs()
        except Exception:
            break
        time.sleep(0.001)
    return {"status": ack.status}


def flood(mib: int, count: int) -> dict[str, Any]:
    """A producer that answers with gigabytes; says its port, and then floods."""
    router = zmq.Context.instance().socket(zmq.ROUTER)
    router.setsockopt(zmq.SNDHWM, 10_000)
    _say({"port": router.bind_to_random_port("tcp://127.0.0.1")})
    identity, _, payload = router.recv_multipart()
    name = msgspec.msgpack.decode(payload)["mm_hash"]
    rows = [(i * BLOCK + BLOCK, BLOCK, 0) for i in range((mib << 20) // 16)]
    ack = wire.XferAck(
        name,
        0,
        "nobody.1",
        src_block_indices=[0],
        agent_metadata=b"x",
        mem_descriptor=msgspec.msgpack.encode(rows),
    )
    raw = wire.encode(ack)
    for _ in range(count):
        router.send_multipart([identity, b"", raw])
    time.sleep(30)
    return {}


def hang_up() -> dict[str, Any]:
    """A producer that grants, never lets the READ proceed, and hangs up."""
    import mmap

    from ec_connector.network.data import NixlServer

    memory = mmap.mmap(-1, 1 << 20)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    server = NixlServer(f"evil-{time.time_ns()}", address, 1 << 20)
    router = zmq.Context.instance().socket(zmq.ROUTER)
    _say({"port": router.bind_to_random_port("tcp://127.0.0.1")})
    while True:
        identity, _, payload = router.recv_multipart()
        req = wire.decode_request([b"", payload])
        ack = wire.XferAck(
            req.mm_hash,
            0,
            req.session_id,
            agent_metadata=server.agent_metadata,
            attempt_id=req.attempt_id,
            lease_s=30.0,
            incarnation="e",
            base_addr=address,
            block_size=BLOCK,
            extents=[(0, 1)],
            nbytes=BLOCK,
        )
        router.send_multipart([identity, b"", wire.encode(ack)])
        time.sleep(0.7)
        router.close(0)
        time.sleep(120)


def main(what: str, *args: str) -> None:
    if what == "forge":
        _say(forge(int(args[0]), args[1], int(args[2]), int(args[3])))
    elif what == "notice":
        _say(notice(int(args[0])))
    elif what == "flood":
        flood(int(args[0]), int(args[1]))
    elif what == "hang-up":
        hang_up()
    else:
        raise SystemExit(f"{what}?")


if __name__ == "__main__":
    main(*sys.argv[1:])
