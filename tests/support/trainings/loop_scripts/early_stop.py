"""Early stopping by a break out of both loops, and a file that is written behind them."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import Noisy, done, loss_of, network, tick


def main():
    torch.manual_seed(1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    train = DataLoader(Noisy(), 5, shuffle=True)
    loop = Loop(seed=8, model=model, optimizer=optimizer)
    s = loop.state(steps=0, stop=False)
    for _ in loop.epochs(10):
        for x in loop.batches(train):
            loss = loss_of(model, x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            s.steps += 1
            tick()
            if s.steps == 19:
                s.stop = True
                break
        tick()
        if s.stop:
            break
    tick()
    done(model=model, optimizer=optimizer, steps=s.steps)


main()
