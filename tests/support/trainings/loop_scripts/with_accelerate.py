"""accelerate: prepared model, optimizer, loader and scheduler, with its own accumulation."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import Noisy, done, loss_of, network, tick


def main() -> None:
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    train, val = DataLoader(Noisy(), 5, shuffle=True), DataLoader(Noisy(12), 4)
    model, optimizer, train, val, scheduler = accelerator.prepare(model, optimizer, train, val, scheduler)
    loop = Loop(accelerator, seed=11, model=model, optimizer=optimizer, scheduler=scheduler)
    s = loop.state(losses=[])
    for _ in loop.epochs(3):
        model.train()
        for x in loop.batches(train):
            with accelerator.accumulate(model):
                loss = loss_of(model, x)
                accelerator.backward(loss)
                tick()
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            s.losses.append(loss.item())
            tick()
        model.eval()
        with torch.no_grad():
            s.losses.append(sum(loss_of(model, x).item() for x in loop.validation(val)))
        tick()
    done(model=model, optimizer=optimizer, scheduler=scheduler, losses=s.losses)


main()
