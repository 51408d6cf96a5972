"""
A stream without a state_dict that counts its passes, and whose collate function counts: what it gives depends on both.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, default_collate

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import LOCAL, WIDTH, Noisy, done, tick


class Stream(IterableDataset):
    def __init__(self):
        self.passes = 0
        self.served = []

    def __iter__(self):
        data = Noisy(19)
        self.passes += 1
        for i in range(len(data)):
            self.served.append(i)
            yield data[i] * (1 + self.passes + len(self.served) / 100)


class Counts:
    def __init__(self):
        self.calls = []

    def __call__(self, batch):
        self.calls.append(len(batch))
        return default_collate(batch) * (1 + len(self.calls) / 100)


def main():
    torch.manual_seed(1)
    model = nn.Linear(WIDTH, 4)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    counts = Counts()
    loop = Loop(seed=17, local=LOCAL, model=model, optimizer=optimizer)
    train = DataLoader(Stream(), 5, collate_fn=counts)
    for _ in loop.epochs(3):
        for x in loop.batches(train):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            tick()
            optimizer.step()
            tick()
    stream = train.dataset
    done(model=model, counts=(counts.calls, stream.passes, stream.served))


main()
