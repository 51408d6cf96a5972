"""
Ranks of trainings with DDP, which a test compares: one training from its first step, and others that go on from the
middle of it.

    python ddp_process.py RANKS FOLDER PORT:STEP[:plainly]...

Ranks are forked, so that torch is imported once. Each step's gradients go into
FOLDER/RANK-STEP[-plainly].txt. One that begins at another STEP than 0 does so from the state that the one before has
left, and with its buckets unless `plainly` follows.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
import torch._dynamo  # which each rank would import at its first step
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from spotrun.training.ddp_buckets import DdpBuckets

STEPS = 6


def main(rank: int, ranks: int, port: str, folder: Path, begins: int, *, plainly: bool) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, 1))
    ddp = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    buckets = DdpBuckets(module, ranks)
    if begins:
        module.load_state_dict(torch.load(folder / f"{begins}.pt"))
    if not plainly:
        buckets.begin(json.loads((folder / f"{begins}.json").read_text()) if begins else ())
    lines = []
    for step in range(begins, STEPS):
        torch.manual_seed(100 * step + rank)
        ddp(torch.randn(8, 64)).square().mean().backward()
        gradients = b"".join(each.grad.numpy().tobytes() for each in module.parameters())
        lines.append(f"{step} {hashlib.sha256(gradients).hexdigest()}")
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and not begins:
            torch.save(module.state_dict(), folder / f"{step + 1}.pt")
            (folder / f"{step + 1}.json").write_text(json.dumps(buckets.dump()))
    (folder / f"{rank}-{begins}{'-plainly' if plainly else ''}.txt").write_text("\n".join(lines))


def fork_ranks(ranks: int, folder: Path, training: str) -> None:
    port, begins, *more = training.split(":")
    children = []
    for rank in range(ranks):
        if (pid := os.fork()) == 0:
            main(rank, ranks, port, folder, int(begins), plainly=bool(more))
            os._exit(0)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * ranks


if __name__ == "__main__":
    of, where, *trainings = sys.argv[1:]
    for each in trainings:
        fork_ranks(int(of), Path(where), each)
