"""Training in two phases: a second call of loop.epochs trains on with another optimizer."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import LOCAL, Noisy, done, loss_of, network, tick


def main():
    torch.manual_seed(1)
    body, head = network(), torch.nn.Linear(6, 6)
    model = torch.nn.Sequential(body, head)
    first = torch.optim.AdamW(head.parameters(), 0.01)
    second = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    train = DataLoader(Noisy(), 5, shuffle=True)
    loop = Loop(seed=10, local=LOCAL, model=model, first=first, second=second)
    s = loop.state(losses=[])
    for _ in loop.epochs(2):
        for x in loop.batches(train):
            loss = loss_of(model, x)
            first.zero_grad()
            loss.backward()
            first.step()
            s.losses.append(loss.item())
            tick()
    for _ in loop.epochs(2):
        for x in loop.batches(train):
            loss = loss_of(model, x)
            second.zero_grad()
            loss.backward()
            second.step()
            s.losses.append(loss.item())
            tick()
    done(model=model, first=first, second=second, losses=s.losses)


main()
