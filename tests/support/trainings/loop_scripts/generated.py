"""A data set that is a generator, read once, and an iterable one, read again in each epoch."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, IterableDataset

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import done, loss_of, network, tick


class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(30):
            yield torch.randn(6) + torch.rand(6)


def main():
    torch.manual_seed(1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    train = DataLoader(Stream(), 4)
    loop = Loop(seed=6, model=model, optimizer=optimizer)
    for _ in loop.epochs(3):
        for x in loop.batches(train):
            loss_of(model, x).backward()
            optimizer.step()
            optimizer.zero_grad()
            tick()
        for x in loop.batches(torch.randn(6, 6) for _ in range(5)):
            loss_of(model, x).backward()
            optimizer.step()
            optimizer.zero_grad()
            tick()
    done(model=model, optimizer=optimizer)


main()
