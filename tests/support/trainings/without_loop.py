"""A script that trains by accelerate or Fabric, with or without a `Loop`, as autoload would have prepared it."""

from __future__ import annotations

import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader

job = json.loads(sys.argv[1])
model = nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(torch.zeros(6, 3), 2)
if job["by"] == "accelerate":
    import accelerate.accelerator

    from spotrun.loop import entry

    entry.watch_accelerate(accelerate.accelerator)
    entry.watch_accelerate(accelerate.accelerator)
    launcher = accelerate.Accelerator(cpu=True)
    model, optimizer, loader = launcher.prepare(model, optimizer, loader)
else:
    import lightning.fabric.fabric

    from spotrun.loop import entry

    entry.watch_fabric(lightning.fabric.fabric)
    launcher = lightning.fabric.Fabric(accelerator="cpu", devices=1)
    model, optimizer = launcher.setup(model, optimizer)


def epochs():
    if not job["loop"]:
        return [0], lambda loader: loader
    from spotrun import Loop

    loop = Loop(launcher, model=model, optimizer=optimizer)
    return loop.epochs(1), loop.batches


numbers, batches = epochs()
for _ in numbers:
    for x in batches(loader):
        launcher.backward(model(x).sum())
        optimizer.step()
