"""Masks that a collate function draws by a counter of its own, shared between processes, as I-JEPA does it."""

from __future__ import annotations

from multiprocessing import Array, Value

import torch
from torch import nn
from torch.utils.data import DataLoader, default_collate

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import LOCAL, WIDTH, Noisy, done, tick


class Masks:
    def __init__(self):
        self.calls = 0
        self.shared = Value("i", -1)
        self.last = Array("d", 2)

    def __call__(self, batch):
        self.calls += 1
        with self.shared.get_lock():
            self.shared.value += 1
        self.last[:] = [self.last[1], float(self.shared.value)]
        drawn = torch.Generator().manual_seed(self.shared.value + 100 * self.calls)
        return default_collate(batch), torch.rand(len(batch), WIDTH, generator=drawn) > 0.4 + self.last[0] / 1000


def main():
    torch.manual_seed(1)
    context, target = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8).requires_grad_(False)
    optimizer = torch.optim.AdamW(context.parameters(), 0.01)
    masks = Masks()
    loop = Loop(seed=17, local=LOCAL, context=context, target=target, optimizer=optimizer)
    train = DataLoader(Noisy(), 5, shuffle=True, collate_fn=masks)
    for _ in loop.epochs(3):
        for x, mask in loop.batches(train):
            loss = (context(x * mask) - target(x)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            tick()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(target.parameters(), context.parameters(), strict=True):
                    slow.mul_(0.9).add_(fast, alpha=0.1)
            tick()
    done(context=context, target=target, optimizer=optimizer, calls=masks.calls, last=list(masks.last))


main()
