# SPDX-License-Identifier: Apache-2.0
"""Keys of instances, in folders of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import zmq

from ec_connector.config.keyfiles import KeyPair, write_key_pair


def new_pair() -> KeyPair:
    public, secret = (key.decode() for key in zmq.curve_keypair())
    return KeyPair(public, secret)


class Fleet:
    """Instances with keys that know each other.

    Args:
        folder: An empty one.
    """

    def __init__(self, folder: Path) -> None:
        self.own = folder / "own"
        self.peers = folder / "peers"
        for made in (self.own, self.peers):
            made.mkdir(mode=0o755)
        self.pairs: dict[str, KeyPair] = {}

    def member(self, name: str, *, listed: bool = True) -> dict[str, Any]:
        """Settings of an instance with new keys."""
        self.pairs[name] = new_pair()
        _, secret = write_key_pair(str(self.own / name), self.pairs[name])
        if listed:
            self.admit(name)
        return {"ec_key_file": str(secret), "ec_peer_keys": str(self.peers)}

    def admit(self, name: str) -> None:
        """Whoever reads the list knows its key."""
        (self.peers / f"{name}.key").write_bytes((self.own / f"{name}.key").read_bytes())

    def remove(self, name: str) -> None:
        """And no more."""
        (self.peers / f"{name}.key").unlink()
