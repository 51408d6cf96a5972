"""Fabric: a model, an optimizer and loaders that it has set up."""

from __future__ import annotations

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import Noisy, done, loss_of, network, tick


def main() -> None:
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.seed_everything(1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    model, optimizer = fabric.setup(model, optimizer)
    train, val = fabric.setup_dataloaders(DataLoader(Noisy(), 5, shuffle=True), DataLoader(Noisy(12), 4))
    loop = Loop(fabric, seed=12, model=model, optimizer=optimizer)
    s = loop.state(losses=[])
    for _ in loop.epochs(3):
        model.train()
        for i, x in loop.enumerate(train):
            loss = loss_of(model, x)
            fabric.backward(loss)
            tick()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
            s.losses.append(loss.item())
            tick()
        model.eval()
        with torch.no_grad():
            s.losses.append(sum(loss_of(model, x).item() for x in loop.validation(val)))
        tick()
    done(model=model, optimizer=optimizer, losses=s.losses)


main()
