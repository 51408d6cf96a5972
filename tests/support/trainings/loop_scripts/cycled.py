"""Further data, as semi-supervised trainings read it: three endless loaders, one of them in a `zip`."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, IterableDataset
from tqdm import tqdm

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import LOCAL, Noisy, done, loss_of, network, tick


class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(8):
            yield torch.rand(6)


def main():
    torch.manual_seed(1)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    train = DataLoader(Noisy(23), 5, shuffle=True)
    loop = Loop(seed=3, local=LOCAL, model=model, optimizer=optimizer)
    unlabelled = loop.cycle(DataLoader(Noisy(14), 4, shuffle=True))
    in_workers = loop.cycle(DataLoader(Noisy(11), 3, shuffle=True, num_workers=1, drop_last=True))
    streamed = loop.cycle(DataLoader(Stream(), 2))
    s = loop.state(seen=[])
    for _ in loop.epochs(3):
        first = next(unlabelled)
        for x, u in zip(tqdm(loop.batches(train)), unlabelled, strict=False):
            y = next(in_workers)
            if len(s.seen) % 2:
                y = torch.cat([y, next(streamed)])
            (loss_of(model, x) + loss_of(model, u) + loss_of(model, y) + loss_of(model, first)).backward()
            s.seen.append((u.sum().item(), y.sum().item()))
            tick()
            optimizer.step()
            optimizer.zero_grad()
            tick()
        assert sum(map(len, loop.validation(train))) == 23, "the loader of the training, read whole"
        tick()
    done(model=model, optimizer=optimizer, s=vars(s))


main()
