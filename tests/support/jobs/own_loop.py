"""A loop of one's own that draws. With `--local` its loss feeds on a local variable, which no checkpoint holds."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from spotrun import Loop


def main() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    train = DataLoader(TensorDataset(torch.randn(28, 4)), 4, shuffle=True)
    loop = Loop(seed=1, model=model, optimizer=optimizer, scheduler=scheduler)
    s = loop.state(total=0.0)
    total = 0.0
    for _ in loop.epochs(4):
        for (x,) in loop.batches(train):
            loss = (model(x + torch.rand(4)) ** 2).mean() * (1 + s.total + total)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            s.total += 0.01
            total += 0.01 * ("--local" in sys.argv)
        scheduler.step()
        loop.log(total=s.total)


main()
