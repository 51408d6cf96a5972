"""Validation each few steps within the epoch, a plateau scheduler, and the best weights kept."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import Noisy, done, loss_of, network, tick


def main():
    torch.manual_seed(1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    train, val = DataLoader(Noisy(), 5, shuffle=True), DataLoader(Noisy(12), 4)
    loop = Loop(seed=7, model=model, optimizer=optimizer, scheduler=scheduler)
    s = loop.state(step=0, best=1e9, weights=None, seen=[])
    for epoch in loop.epochs(3):
        for i, x in loop.enumerate(train):
            model.train()
            loss_of(model, x).backward()
            optimizer.step()
            optimizer.zero_grad()
            s.step += 1
            tick()
            if s.step % 3 == 0:
                model.eval()
                with torch.no_grad():
                    found = [loss_of(model, v).item() for v in loop.validation(val)]
                tick()
                scheduler.step(sum(found))
                s.seen.append((epoch, i, sum(found)))
                if sum(found) < s.best:
                    s.best = sum(found)
                    s.weights = {name: value.clone() for name, value in model.state_dict().items()}
    done(model=model, optimizer=optimizer, scheduler=scheduler, best=s.best, weights=s.weights, seen=s.seen)


main()
