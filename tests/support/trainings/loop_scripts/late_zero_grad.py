"""Gradients are zeroed in front of the backward pass, and clipped by their norm before."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import Noisy, done, loss_of, network, tick

torch.manual_seed(1)
model = network()
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
train = DataLoader(Noisy(), 5, shuffle=True, drop_last=True)
loop = Loop(seed=9, model=model, optimizer=optimizer)
norms = []
total = 0.0
for epoch in loop.epochs(3):
    running = 0.0
    for i, x in loop.enumerate(train, start=1):
        before = [p.grad.norm().item() for p in model.parameters() if p.grad is not None]
        norms.append(sum(before))
        loss = loss_of(model, x) + 0.01 * sum(before)
        if i % 4:
            optimizer.zero_grad()
        loss.backward()
        tick()
        optimizer.step()
        running += loss.item()
        total += loss.item()
        tick()
    print(epoch, running / i, loss.item())
done(model=model, optimizer=optimizer, norms=norms, total=total, running=running)
