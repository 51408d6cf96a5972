"""A loader that keeps one iterator over an endless sampler, of which each pass reads a part, so that workers stay."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import LOCAL, Noisy, done, loss_of, network, tick


class Again:
    """Yields the batches of another sampler for ever."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __len__(self):
        return len(self.sampler)

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class Endless(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Again(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


def main():
    torch.manual_seed(1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    loop = Loop(seed=17, local=LOCAL, model=model, optimizer=optimizer)
    train = Endless(Noisy(), 15, shuffle=True)
    for _ in loop.epochs(3):
        for x in loop.batches(train):
            loss = loss_of(model, x)
            optimizer.zero_grad()
            loss.backward()
            tick()
            optimizer.step()
            tick()
    done(model=model)


main()
