"""A buffer that the first forward pass makes, as rotary embeddings do it, and a layer that is pruned in training."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import LOCAL, WIDTH, Noisy, done, loss_of, network, tick


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.length = network(), 0

    def forward(self, x):
        if len(x) > self.length:
            self.length = len(x)
            angles = torch.arange(self.length).unsqueeze(1) / torch.arange(1, WIDTH + 1)
            self.register_buffer("cos", angles.cos(), persistent=False)
        return self.inner(x * self.cos[: len(x)])


def main():
    torch.manual_seed(1)
    model = Turned()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    train = DataLoader(Noisy(8), 5, shuffle=True)
    loop = Loop(seed=5, local=LOCAL, model=model, optimizer=optimizer)
    for epoch in loop.epochs(6):
        if epoch == 1:
            prune.l1_unstructured(model.inner[0], "weight", 0.3)
        for x in loop.batches(train):
            loss_of(model, x).backward()
            tick()
            optimizer.step()
            optimizer.zero_grad()
            tick()
    done(model=model, optimizer=optimizer, weights=sorted(name for name, _ in model.named_buffers()))


main()
