"""Iterators that a script keeps: in an attribute, in a global, in a list; with workers; begun again at their end."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import LOCAL, Noisy, done, loss_of, network, tick

torch.manual_seed(1)
mixed = DataLoader(Noisy(14), 4, shuffle=True, generator=torch.Generator().manual_seed(2))
of_global = iter(mixed)


class Both:
    """Two loaders that it reads in turns, as long as it is asked."""

    def __init__(self) -> None:
        self.loaders = [DataLoader(Noisy(10), 3, shuffle=True, drop_last=True), DataLoader(Noisy(8), 2, num_workers=1)]
        self.reading = [iter(loader) for loader in self.loaders]
        self.turns = 0
        self.last = None

    def next(self) -> torch.Tensor:
        number = self.turns % 2
        self.turns += 1
        try:
            return next(self.reading[number])
        except StopIteration:
            self.last = self.reading[number] = iter(self.loaders[number])
            return next(self.last)


def main():
    global of_global
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    train = DataLoader(Noisy(23), 5, shuffle=True)
    both = Both()
    loop = Loop(seed=3, local=LOCAL, model=model, optimizer=optimizer, both=both)
    s = loop.state(seen=[])
    for _ in loop.epochs(3):
        for x in loop.batches(train):
            try:
                u = next(of_global)
            except StopIteration:
                of_global = iter(mixed)
                u = next(of_global)
            v = both.next()
            (loss_of(model, x) + loss_of(model, u) + loss_of(model, v)).backward()
            s.seen.append((u.sum().item(), v.sum().item(), torch.rand(1).item()))
            tick()
            optimizer.step()
            optimizer.zero_grad()
            tick()
        if torch.rand(1) < 0.5:
            next(iter(mixed))
    done(model=model, optimizer=optimizer, s=vars(s), generator=mixed.generator.get_state())


main()
