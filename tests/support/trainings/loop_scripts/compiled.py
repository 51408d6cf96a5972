"""A model that `torch.compile` has compiled."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import LOCAL, Noisy, done, loss_of, network, tick


def main():
    torch.manual_seed(1)
    model = network()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    loop = Loop(seed=18, local=LOCAL, model=compiled, optimizer=optimizer)
    train = DataLoader(Noisy(), 5, shuffle=True)
    for _ in loop.epochs(3):
        for x in loop.batches(train):
            loss = loss_of(compiled, x)
            optimizer.zero_grad()
            loss.backward()
            tick()
            optimizer.step()
            tick()
    done(model=model, optimizer=optimizer)


main()
