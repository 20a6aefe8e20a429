# SPDX-License-Identifier: Apache-2.0
"""The other process of the two that share a region, on the same GPU or another.

    cuda_child.py FOLDER BLOCKS BLOCK_SIZE DEVICE

Reads lines ``NUMBER THEIRS MINE`` (first blocks): loads the encoding that the parent
saved, compares it with what NUMBER stands for, saves its own, and answers.
"""

from __future__ import annotations

import sys

import torch

from ec_connector.copies.base import CopyJob
from ec_connector.copies.cuda import CudaCopyEngine
from ec_connector.region.shared import SharedRegion


def encoding(number: int, nbytes: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def finish(engine: CudaCopyEngine) -> None:
    while engine.pending:
        for verdict in engine.poll():
            assert verdict.ok, verdict


def main() -> None:
    folder, blocks, block_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.cuda.set_device(int(sys.argv[4]))
    region = SharedRegion.open(
        "t", 0, blocks, block_size, directory=folder, create=False, guard=False
    )
    engine = CudaCopyEngine(region)
    say("ready")
    for line in sys.stdin:
        number, theirs, mine = (int(word) for word in line.split())
        target = engine.empty((4 * block_size,), torch.uint8)
        engine.submit_loads([CopyJob(1, target, ((theirs, 4),), target.nbytes)])
        assert engine.order_loads() == set()
        right = torch.equal(target.cpu(), encoding(number, target.nbytes))
        source = encoding(1000 + number, target.nbytes).cuda()
        engine.submit_saves([CopyJob(2, source, ((mine, 4),), source.nbytes)])
        finish(engine)
        say(f"{number} {'ok' if right else 'wrong'}")
    engine.shutdown()
    region.close(unlink=False)


if __name__ == "__main__":
    main()
