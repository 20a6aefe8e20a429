# SPDX-License-Identifier: Apache-2.0
"""An engine whose worker copies between a device and the region, with real data processes.

As a process of its own, a producer::

    python -m tests.ec_connector.processes.on_device DEVICE BLOCKS EXTRA

It prints its port, then answers each line on stdin: ``NAME NBYTES SEED …`` encodes and saves
as many in one step, and is answered when all have landed; ``data`` says which processes it
has, their parent first, once it has all of them. It leaves when stdin closes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import torch

from ec_connector.copies.base import CopyEngine, CopyJob
from ec_connector.copies.cpu import CpuCopyEngine
from ec_connector.copies.cuda import CudaCopyEngine
from tests.ec_connector.processes.alive import everybody, wait_complete
from tests.world.instance import Node, next_line
from tests.world.processes import Child

BLOCKS = 4096


def encoding(seed: int, nbytes: int) -> torch.Tensor:
    """What the encoder makes of a picture, in host memory."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)


def encoded(seed: int, nbytes: int, device: torch.device) -> torch.Tensor:
    """The same, computed on the device: a save has to wait for it."""
    return (encoding(seed, nbytes) ^ 0x5A).to(device) ^ 0x5A


class DeviceNode(Node):
    """A whole instance, its worker on a device.

    Args:
        role: As of ``Node``.
        device: ``cuda`` or ``cpu``.
        extra: As of ``Node``.
        blocks: As of ``Node``.
    """

    def __init__(
        self, role: str, device: str, extra: dict[str, Any], blocks: int = BLOCKS, **more: Any
    ) -> None:
        self.copies: CopyEngine | None = None
        super().__init__(role, blocks, extra=extra, **more)
        try:
            kind = CudaCopyEngine if device == "cuda" else CpuCopyEngine
            self.copies = kind(self.region)
        except BaseException:
            self.close()
            raise

    def save_all(self, encodings: Mapping[str, torch.Tensor]) -> None:
        """What one step's encoder has produced, submitted at once and waited for."""
        assert self.copies is not None
        jobs = []
        for name, tensor in encodings.items():
            copy = self.begin_save(name, tensor.nbytes)
            jobs.append(CopyJob(copy.copy_id, tensor, copy.entry.extents, tensor.nbytes))
        self.copies.submit_saves(jobs)
        self.finish()

    def load(self, name: str, nbytes: int) -> torch.Tensor:
        """An encoding of the tier on the device, as the model's next step reads it."""
        assert self.copies is not None
        assert self.tier.reserve(name)
        copy = self.node.copies.plan_load(name)
        self.node.copies.submit(copy)
        self.tier.end_step()
        tensor = self.copies.empty((nbytes,), torch.uint8)
        self.copies.submit_loads([CopyJob(copy.copy_id, tensor, copy.entry.extents, nbytes)])
        assert self.copies.order_loads() == set()
        return tensor

    def finish(self) -> None:
        """Take steps until no copy is under way."""
        assert self.copies is not None
        while self.copies.pending:
            self.turn()

    def turn(self) -> None:
        super().turn()
        for verdict in self.copies.poll() if self.copies is not None else ():
            assert verdict.ok
            self.node.copies.report(verdict.copy_id, 0, landed=True)

    def close(self) -> None:
        if self.copies is not None:
            self.finish()
            self.copies.shutdown()
        super().close()


class DeviceProducer(Child):
    """The other process.

    Args:
        device: ``cuda`` or ``cpu``.
        extra: More of ``ec_connector_extra_config``.
    """

    def __init__(self, device: str, extra: dict[str, Any]) -> None:
        arguments = [device, str(BLOCKS), json.dumps(extra)]
        name = "tests.ec_connector.processes.on_device"
        super().__init__("-m", name, *arguments, greets=True)
        self.address = ("127.0.0.1", self.hello)

    def data(self) -> list[int]:
        """Its data processes, their parent first, once it has all of them."""
        found: list[int] = self.tell("data")
        return found


def main() -> None:
    device, blocks, extra = sys.argv[1:]
    with DeviceNode("ec_producer", device, json.loads(extra), int(blocks)) as node:
        assert node.copies is not None
        sys.stdout.write(f"{node.address[1]}\n")
        sys.stdout.flush()
        while (line := next_line(node)) is not None:
            words = line.split()
            said: object = sorted(words[::3])
            if words == ["data"]:
                wait_complete(node)
                said = everybody(node)
            else:
                named = zip(words[::3], map(int, words[1::3]), map(int, words[2::3]), strict=True)
                node.save_all(
                    {name: encoded(seed, size, node.copies.device) for name, size, seed in named}
                )
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
