"""Shards in tar files, read by workers that live on, with a shuffle buffer."""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import LOCAL, WIDTH, done, job, loss_of, network, tick


def write_shard(path: str, seed: int) -> None:
    drawn = torch.Generator().manual_seed(seed)
    with tarfile.open(path, "w") as tar:
        for number in range(9):
            content = io.BytesIO()
            torch.save(torch.randn(WIDTH, generator=drawn), content)
            info = tarfile.TarInfo(f"{number}.pt")
            info.size = content.tell()
            content.seek(0)
            tar.addfile(info, content)


class Shards(IterableDataset):
    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        worker = get_worker_info()
        kept = []
        for path in self.paths[worker.id :: worker.num_workers]:
            with tarfile.open(path) as tar:
                for member in tar:
                    kept.append(torch.load(io.BytesIO(tar.extractfile(member).read())))
                    if len(kept) > 4:
                        yield kept.pop(random.randrange(len(kept)))
        while kept:
            yield kept.pop(random.randrange(len(kept)))


def main():
    torch.manual_seed(1)
    paths = [f"{job['result']}-{number}.tar" for number in range(4)]
    for number, path in enumerate(paths):
        if not Path(path).exists():
            write_shard(path, number)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    loop = Loop(seed=19, local=LOCAL, model=model, optimizer=optimizer)
    train = DataLoader(Shards(paths), 5, num_workers=2, persistent_workers=True)
    for _ in loop.epochs(3):
        for x in loop.batches(train):
            loss = loss_of(model, x)
            optimizer.zero_grad()
            loss.backward()
            tick()
            optimizer.step()
            tick()
    done(model=model, optimizer=optimizer)


main()
