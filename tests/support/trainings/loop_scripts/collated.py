"""Masks that a collate function draws by a counter of its own, as I-JEPA does it, and counters on library objects."""

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
    push = torch.zeros(8, WIDTH, requires_grad=True)
    loop = Loop(seed=17, local=LOCAL, context=context, target=target, optimizer=optimizer)
    train = DataLoader(Noisy(), 5, shuffle=True, collate_fn=masks)
    train.batches_read = 0
    s = loop.state(newest={})
    for _ in loop.epochs(3):
        s.newest = context.state_dict()  # the weights themselves, and no copies of them
        for x, mask in loop.batches(train):
            drift = 0 if push.grad is None else (push + push.grad).mean()
            loss = (context(x * mask) - target(x)).square().mean() * (1 + 0.001 * train.batches_read) + drift
            optimizer.zero_grad()
            loss.backward()
            tick()
            optimizer.step()
            optimizer.steps = getattr(optimizer, "steps", 0) + 1
            train.batches_read = getattr(train, "batches_read", 0) + 1
            push.grad = context.weight.detach() * optimizer.steps
            with torch.no_grad():
                push += 0.1 * push.grad
                for slow, fast in zip(target.parameters(), context.parameters(), strict=True):
                    slow.mul_(0.9).add_(fast, alpha=0.1)
            tick()
    shared = s.newest["weight"].data_ptr() == context.weight.data_ptr()
    counts = (masks.calls, list(masks.last), optimizer.steps, train.batches_read, shared)
    done(context=context, target=target, optimizer=optimizer, counts=counts, push=push)


main()
